//! Schemas of built-in kinds: `k8s-openapi` plus facts that it lacks.

use std::sync::LazyLock;

use k8s_openapi::{
    api::{
        admissionregistration::v1 as admission,
        apps::v1 as apps,
        authentication::v1 as authentication,
        autoscaling::{v1 as scaling, v2 as autoscaling},
        batch::v1 as batch,
        certificates::v1 as certificates,
        coordination::v1 as coordination,
        core::v1 as core,
        events::v1 as events,
        networking::v1 as networking,
        policy::v1 as policy,
        rbac::v1 as rbac,
        scheduling::v1 as scheduling,
        storage::v1 as storage,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions,
    apimachinery::pkg::apis::meta::v1 as meta,
    kube_aggregator::pkg::apis::apiregistration::v1 as apiregistration,
};
use schemars::{SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::View;

/// The file describes its format.
const FACTS: &str = include_str!("facts.txt");
pub(crate) const PREFIX: &str = "#/components/schemas/";
pub(crate) const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const DEEPEST: usize = 64;

static DEFINITIONS: LazyLock<Map<String, Value>> = LazyLock::new(definitions_from_types);

/// Keyed by name, such as `io.k8s.api.core.v1.Pod`.
pub(crate) fn definitions() -> &'static Map<String, Value> {
    &DEFINITIONS
}

pub(crate) fn view(definition: &str) -> View<'static> {
    DEFINITIONS.get(definition).map_or(View::unknown(), |schema| View::new(schema, Some(&DEFINITIONS)))
}

pub(crate) fn object_meta() -> View<'static> {
    view(OBJECT_META)
}

fn definitions_from_types() -> Map<String, Value> {
    let mut settings = SchemaSettings::draft07();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    let mut generator = settings.into_generator();
    collect(&mut generator);
    let mut definitions = generator.take_definitions(false);
    for (name, definition) in &mut definitions {
        settle(name, definition, 0);
    }
    facts(&mut definitions);
    definitions
}

fn collect(all: &mut SchemaGenerator) {
    macro_rules! kinds { ($($kind:ty),* $(,)?) => { $( all.subschema_for::<$kind>(); )* } }
    kinds![
        core::Namespace,
        core::ConfigMap,
        core::Secret,
        core::ServiceAccount,
        core::Service,
        core::Pod,
        core::Event,
        core::PersistentVolumeClaim,
        events::Event,
        apps::Deployment,
        apps::StatefulSet,
        apps::DaemonSet,
        apps::ReplicaSet,
        authentication::TokenRequest,
        batch::Job,
        batch::CronJob,
        rbac::Role,
        rbac::RoleBinding,
        rbac::ClusterRole,
        rbac::ClusterRoleBinding,
        apiextensions::CustomResourceDefinition,
        certificates::CertificateSigningRequest,
        coordination::Lease,
        networking::NetworkPolicy,
        policy::PodDisruptionBudget,
        autoscaling::HorizontalPodAutoscaler,
        scaling::Scale,
        scheduling::PriorityClass,
        admission::ValidatingWebhookConfiguration,
        admission::MutatingWebhookConfiguration,
        apiregistration::APIService,
        storage::StorageClass,
        meta::ListMeta,
        meta::Status,
        meta::DeleteOptions,
    ];
}

/// Converts to the published form.
fn settle(name: &str, schema: &mut Value, depth: usize) {
    let Some(map) = schema.as_object_mut() else { return };
    if depth > DEEPEST {
        return;
    }
    if depth == 0 {
        match name {
            "io.k8s.apimachinery.pkg.util.intstr.IntOrString" => {
                map.remove("x-kubernetes-int-or-string");
                map.insert("format".into(), json!("int-or-string"));
                map.insert("oneOf".into(), json!([{"type": "integer"}, {"type": "string"}]));
            }
            "io.k8s.apimachinery.pkg.api.resource.Quantity" => {
                map.remove("x-kubernetes-int-or-string");
                map.insert("format".into(), json!("quantity"));
                map.insert("oneOf".into(), json!([{"type": "string"}, {"type": "number"}]));
            }
            _ if [".JSON", ".FieldsV1", ".RawExtension"].iter().any(|end| name.ends_with(end)) => {
                map.remove("type");
            }
            _ => {}
        }
    }
    // Without `allOf`, `$ref` hides other keywords.
    if map.len() > 1
        && let Some(target) = map.get("$ref").and_then(Value::as_str).map(str::to_owned)
    {
        map.remove("$ref");
        map.insert("allOf".into(), json!([{"$ref": target}]));
    }
    for keyword in ["properties"] {
        for child in map.get_mut(keyword).and_then(Value::as_object_mut).into_iter().flatten() {
            settle(name, child.1, depth + 1);
        }
    }
    for keyword in ["items", "additionalProperties"] {
        if let Some(child) = map.get_mut(keyword) {
            settle(name, child, depth + 1);
        }
    }
}

fn facts(definitions: &mut Map<String, Value>) {
    let mut current = String::new();
    for line in FACTS.lines().filter(|line| !line.starts_with('#')) {
        if !line.starts_with(' ') {
            current = ["io.k8s.api.", "io.k8s."]
                .map(|prefix| format!("{prefix}{line}"))
                .into_iter()
                .find(|name| definitions.contains_key(name))
                .unwrap_or_default();
            continue;
        }
        let mut words = line.split_whitespace();
        let Some(definition) = definitions.get_mut(&current) else { continue };
        let schema_at = match words.next() {
            Some(".") => Some(definition),
            Some(field) => definition.get_mut("properties").and_then(|all| all.get_mut(field)),
            None => None,
        };
        let Some(schema_at) = schema_at.and_then(Value::as_object_mut) else { continue };
        for fact in words {
            note(schema_at, fact);
        }
        // As above.
        if let Some(target) = schema_at.remove("$ref") {
            schema_at.insert("allOf".into(), json!([{"$ref": target}]));
        }
    }
}

fn note(schema_at: &mut Map<String, Value>, fact: &str) {
    let Some((keyword, value)) = fact.split_once('=') else { return };
    match (keyword, value.split_once(':')) {
        ("list", Some((kind, keys))) => {
            schema_at.insert("x-kubernetes-list-type".into(), json!(kind));
            schema_at.insert("x-kubernetes-list-map-keys".into(), keys.split(',').collect());
        }
        ("list", None) => _ = schema_at.insert("x-kubernetes-list-type".into(), json!(value)),
        ("map-type", _) => _ = schema_at.insert("x-kubernetes-map-type".into(), json!(value)),
        ("patch", _) => _ = schema_at.insert("x-kubernetes-patch-strategy".into(), json!(value)),
        ("key", _) => _ = schema_at.insert("x-kubernetes-patch-merge-key".into(), json!(value)),
        ("default", _) => {
            let value = serde_json::from_str(value).unwrap_or(Value::Null);
            schema_at.insert("default".into(), value);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Relation, *};

    #[test]
    fn schema_facts_apply_to_their_fields() {
        let spec = view("io.k8s.api.core.v1.PodSpec");
        let containers = spec.property("containers").unwrap();
        assert_eq!(containers.list(), Relation::Keyed(vec!["name"]));
        assert_eq!(containers.patch_key(), Some("name"));
        let port = containers.items().property("ports").unwrap();
        assert_eq!(port.list(), Relation::Keyed(vec!["containerPort", "protocol"]));
        assert_eq!(port.items().property("protocol").unwrap().default(), Some(&json!("TCP")));
        let selector = view("io.k8s.api.apps.v1.Deployment").property("spec").unwrap().property("selector");
        assert!(selector.unwrap().map_is_atomic());
    }

    #[test]
    fn every_schema_fact_names_an_existing_field() {
        let mut current = String::new();
        for line in FACTS.lines().filter(|line| !line.starts_with('#')) {
            if !line.starts_with(' ') {
                let names = ["io.k8s.api.", "io.k8s."].map(|prefix| format!("{prefix}{line}"));
                current = names
                    .into_iter()
                    .find(|name| DEFINITIONS.contains_key(name))
                    .unwrap_or_else(|| panic!("{line}"));
                continue;
            }
            let field = line.split_whitespace().next().unwrap();
            let known = field == "." || view(&current).property(field).is_some();
            assert!(known, "{current}.{field}");
        }
    }
}
