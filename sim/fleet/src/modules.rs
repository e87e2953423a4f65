//! Synthetic modules of realistic size, equal in each run. Pure.

use serde_json::{Value, json};
use tidewatch_api::names::RUNTIME_NAMESPACE;

/// Highest version.
pub const VERSIONS: u32 = 9;
/// Most modules; each adds a CRD.
pub const MAX_MODULES: usize = 100;
/// Fewest objects of a module.
pub const MIN_OBJECTS: usize = 4;
/// Most objects of a module.
pub const MAX_OBJECTS: usize = 100;

/// Size of each runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Modules.
    pub modules: usize,
    /// Objects per module, without default CR; even versions have one more.
    pub objects: usize,
}

/// Identity of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    /// API group; empty for the core group.
    pub group: String,
    /// API version.
    pub version: String,
    /// Plural name.
    pub resource: String,
    /// Namespace, or empty.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// A name without digits, as the ecosystem requires.
pub fn name(module: usize) -> String {
    let letter = |n: usize| char::from(b'a' + u8::try_from(n % 26).unwrap_or_default());
    format!("tide-{}{}{}", letter(module / 676), letter(module / 26), letter(module))
}

/// OCM component.
pub fn component(module: usize) -> String {
    format!("tidewatch.dev/module/{}", name(module))
}

/// Version as text.
pub fn version(number: u32) -> String {
    format!("{number}.0.0")
}

fn group(module: usize) -> String {
    format!("{}.simulated.tidewatch.dev", name(module))
}

fn meta(name: &str, namespace: &str) -> Value {
    json!({"name": name, "namespace": namespace})
}

fn id(group: &str, version: &str, resource: &str, namespace: &str, name: &str) -> Id {
    Id {
        group: group.into(),
        version: version.into(),
        resource: resource.into(),
        namespace: namespace.into(),
        name: name.into(),
    }
}

/// Objects of a version, the best sign of progress first.
pub fn objects(module: usize, number: u32, count: usize) -> Vec<(Id, Value)> {
    let (own, version) = (name(module), version(number));
    let space = RUNTIME_NAMESPACE;
    let keeper = format!("{own}-keeper");
    let app = json!({"app.kubernetes.io/name": own});
    let container = json!({
        "name": "keeper", "image": format!("example.local/{own}:{version}"), "args": ["--leader-elect"],
        "env": [{"name": "MODULE", "value": own}, {"name": "VERSION", "value": version}],
        "ports": [{"containerPort": 8080, "name": "metrics", "protocol": "TCP"}],
        "resources": {"limits": {"cpu": "100m", "memory": "64Mi"}, "requests": {"cpu": "10m", "memory": "32Mi"}},
        "securityContext": {"allowPrivilegeEscalation": false},
    });
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta(&keeper, space),
        "spec": {"replicas": 2, "selector": {"matchLabels": app}, "template": {
            "metadata": {"labels": app},
            "spec": {"containers": [container], "serviceAccountName": keeper, "terminationGracePeriodSeconds": 10}}},
    });
    let settings = format!("{own}-settings");
    let text = format!(
        "# settings of {own} {version}\n{}",
        "lamp: fresnel, period: 10 s, colour: white\n".repeat(24)
    );
    let settings_map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta(&settings, space),
        "data": {"version": version, "settings.txt": text},
    });
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta(&keeper, space)});
    let crd_name = format!("lights.{}", group(module));
    let mut all = vec![
        (id("apps", "v1", "deployments", space, &keeper), deployment),
        (id("", "v1", "configmaps", space, &settings), settings_map),
        (id("", "v1", "serviceaccounts", space, &keeper), account),
        (
            id("apiextensions.k8s.io", "v1", "customresourcedefinitions", "", &crd_name),
            crd(module, &crd_name),
        ),
    ];
    all.extend((0..count.saturating_sub(MIN_OBJECTS)).map(|index| further(&own, index)));
    if number.is_multiple_of(2) {
        // Each upgrade creates or prunes an object.
        let extra = format!("{own}-extra");
        let body = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta(&extra, space), "data": {"even": version},
        });
        all.push((id("", "v1", "configmaps", space, &extra), body));
    }
    all
}

/// An additional object, equal in all versions.
fn further(own: &str, index: usize) -> (Id, Value) {
    const RBAC: &str = "rbac.authorization.k8s.io";
    let (space, name) = (RUNTIME_NAMESPACE, format!("{own}-{index}"));
    let app = json!({"app.kubernetes.io/name": own});
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}]);
    let subjects = json!([{"kind": "ServiceAccount", "name": format!("{own}-keeper"), "namespace": space}]);
    let role = |kind: &str| json!({"apiGroup": RBAC, "kind": kind, "name": format!("{own}-{}", index.saturating_sub(1))});
    // Roles precede bindings.
    let (group, version, kind, resource, rest) = match index % 7 {
        0 => (
            "",
            "v1",
            "Service",
            "services",
            json!({"spec": {"selector": app, "ports": [{"port": 8080, "protocol": "TCP"}]}}),
        ),
        1 => (RBAC, "v1", "ClusterRole", "clusterroles", json!({"rules": rules})),
        2 => {
            let rest = json!({"roleRef": role("ClusterRole"), "subjects": subjects});
            (RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", rest)
        }
        3 => (RBAC, "v1", "Role", "roles", json!({"rules": rules})),
        4 => (
            RBAC,
            "v1",
            "RoleBinding",
            "rolebindings",
            json!({"roleRef": role("Role"), "subjects": subjects}),
        ),
        5 => {
            let spec = json!({"spec": {"podSelector": {"matchLabels": app}, "policyTypes": ["Egress"]}});
            ("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", spec)
        }
        _ => ("", "v1", "ConfigMap", "configmaps", json!({"data": {"place": index.to_string()}})),
    };
    let namespace = if kind.starts_with("Cluster") { "" } else { space };
    let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let mut body = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}});
    if !namespace.is_empty() {
        body["metadata"]["namespace"] = namespace.into();
    }
    for (field, value) in rest.as_object().into_iter().flatten() {
        body[field] = value.clone();
    }
    (id(group, version, resource, namespace, &name), body)
}

fn crd(module: usize, name: &str) -> Value {
    let schema = json!({"type": "object", "description": "Light is one light.", "properties": {
        "spec": {"type": "object", "properties": {
            "colour": {"type": "string", "description": "Of the light.", "default": "white"},
            "periodSeconds": {"type": "integer", "minimum": 1, "maximum": 60}}},
        "status": {"type": "object", "properties": {"state": {"type": "string"}}}}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": name},
        "spec": {"group": group(module), "scope": "Namespaced",
            "names": {"kind": "Light", "listKind": "LightList", "plural": "lights", "singular": "light"},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": schema}}]},
    })
}

/// The default custom resource.
pub fn default_cr(module: usize) -> (Id, Value) {
    let id = Id {
        group: group(module),
        version: "v1".into(),
        resource: "lights".into(),
        namespace: RUNTIME_NAMESPACE.into(),
        name: name(module),
    };
    let body = json!({
        "apiVersion": format!("{}/v1", group(module)), "kind": "Light",
        "metadata": meta(&name(module), RUNTIME_NAMESPACE), "spec": {"periodSeconds": 10},
    });
    (id, body)
}

/// YAML manifest of a version.
pub fn raw_manifest(module: usize, number: u32, count: usize) -> String {
    let documents: Vec<String> =
        objects(module, number, count).iter().map(|(_, object)| object.to_string()).collect();
    documents.join("\n---\n")
}

/// Whether `actual` contains `wanted`, with equally long lists.
pub fn has(actual: &Value, wanted: &Value) -> bool {
    match (actual, wanted) {
        (Value::Object(actual), Value::Object(wanted)) => {
            wanted.iter().all(|(key, value)| actual.get(key).is_some_and(|actual| has(actual, value)))
        }
        (Value::Array(actual), Value::Array(wanted)) => {
            actual.len() == wanted.len()
                && actual.iter().zip(wanted).all(|(actual, wanted)| has(actual, wanted))
        }
        (actual, wanted) => actual == wanted,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn module_names_are_distinct_letters() {
        let names: BTreeSet<String> = (0..MAX_MODULES).map(name).collect();
        assert_eq!(names.len(), MAX_MODULES);
        assert!(names.iter().all(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '-')));
    }

    #[test]
    fn each_version_changes_adds_or_prunes_an_object() {
        let ids =
            |number| objects(0, number, MIN_OBJECTS).into_iter().map(|(id, _)| id).collect::<BTreeSet<_>>();
        assert_eq!(ids(2).difference(&ids(1)).count(), 1);
        assert_eq!(ids(2).difference(&ids(3)).count(), 1);
        let image = |number| {
            objects(0, number, MIN_OBJECTS)[0].1["spec"]["template"]["spec"]["containers"][0]["image"].clone()
        };
        assert_ne!(image(1), image(2));
    }

    #[test]
    fn a_module_has_the_requested_number_of_distinct_objects() {
        for count in [MIN_OBJECTS, 14, MAX_OBJECTS] {
            let ids: BTreeSet<Id> = objects(0, 1, count).into_iter().map(|(id, _)| id).collect();
            assert_eq!(ids.len(), count);
        }
    }

    #[test]
    fn additional_fields_are_not_a_difference() {
        let wanted = json!({"spec": {"a": 1, "list": [{"b": 2}]}});
        assert!(has(&json!({"spec": {"a": 1, "list": [{"b": 2, "c": 3}], "d": 4}, "status": {}}), &wanted));
        assert!(!has(&json!({"spec": {"a": 1, "list": [{"b": 2}, {"b": 2}]}}), &wanted));
        assert!(!has(&json!({"spec": {"a": 2, "list": [{"b": 2}]}}), &wanted));
        assert!(!has(&json!({}), &wanted));
    }
}
