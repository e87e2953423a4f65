//! Leaves out fields of Kubernetes controllers and injectors.
//!
//! Manifests have placeholders for them. Applying one causes an endless conflict. All are optional;
//! [`controller_fields()`] names those required at creation.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;
use tidewatch_api::{
    IgnoredFields,
    object::{Gvk, ObjectRef},
};

/// Annotations of Kubernetes controllers, as found in exported manifests.
const ANNOTATIONS: [&str; 9] = [
    "autoscaling.alpha.kubernetes.io/conditions",
    "autoscaling.alpha.kubernetes.io/current-metrics",
    "deployment.kubernetes.io/revision",
    "deprecated.daemonset.template.generation",
    "pv.kubernetes.io/bind-completed",
    "pv.kubernetes.io/bound-by-controller",
    "volume.beta.kubernetes.io/storage-provisioner",
    "volume.kubernetes.io/selected-node",
    "volume.kubernetes.io/storage-provisioner",
];

/// Annotations that request a `caBundle`.
const CA_INJECTORS: [&str; 5] = [
    "cert-manager.io/inject-apiserver-ca",
    "cert-manager.io/inject-ca-from",
    "cert-manager.io/inject-ca-from-secret",
    "certmanager.k8s.io/inject-ca-from",
    "service.beta.openshift.io/inject-cabundle",
];

const ADMISSION: &str = "admissionregistration.k8s.io";
const CA_BUNDLE: &str = "caBundle";

pub(super) fn remove_controller_fields(object: &mut Value) {
    let Some(gvk) = gvk_of(object) else { return };
    remove_annotations(object);
    match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("rbac.authorization.k8s.io", "ClusterRole") if !object["aggregationRule"].is_null() => {
            remove(object, "rules");
        }
        (ADMISSION, "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration") => {
            let injected = is_injected(object);
            let webhooks = object.get_mut("webhooks").and_then(Value::as_array_mut);
            for config in webhooks.into_iter().flatten().filter_map(|w| w.get_mut("clientConfig")) {
                remove_ca_bundle(config, injected);
            }
        }
        ("apiextensions.k8s.io", "CustomResourceDefinition") => {
            let injected = is_injected(object);
            if let Some(config) = object.pointer_mut("/spec/conversion/webhook/clientConfig") {
                remove_ca_bundle(config, injected);
            }
            remove_default_conversion(object);
        }
        ("apiregistration.k8s.io", "APIService") => {
            let injected = is_injected(object);
            if let Some(spec) = object.get_mut("spec") {
                remove_ca_bundle(spec, injected);
            }
        }
        ("", "Service") => remove_allocated(object),
        ("", "Secret") if object["type"] == "kubernetes.io/service-account-token" => {
            remove(object, "data");
            remove(object, "stringData");
        }
        _ => {}
    }
}

fn gvk_of(object: &Value) -> Option<Gvk> {
    Some(Gvk::of(object["apiVersion"].as_str()?, object["kind"].as_str()?))
}

fn remove(object: &mut Value, field: &str) {
    if let Some(members) = object.as_object_mut() {
        members.remove(field);
    }
}

fn remove_annotations(object: &mut Value) {
    let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) else {
        return;
    };
    for key in ANNOTATIONS {
        annotations.remove(key);
    }
}

fn is_injected(object: &Value) -> bool {
    CA_INJECTORS.iter().any(|key| !object["metadata"]["annotations"][*key].is_null())
}

/// A `caBundle` without certificate is a placeholder. The API server refuses invalid base64.
fn remove_ca_bundle(config: &mut Value, injected: bool) {
    let is_placeholder = match &config[CA_BUNDLE] {
        Value::Null => true,
        Value::String(text) => STANDARD
            .decode(text.trim())
            .is_ok_and(|bundle| !String::from_utf8_lossy(&bundle).contains("-----BEGIN")),
        _ => false,
    };
    if injected || is_placeholder {
        remove(config, CA_BUNDLE);
    }
}

/// An operator may replace the default conversion by its own webhook.
fn remove_default_conversion(definition: &mut Value) {
    let Some(spec) = definition.get_mut("spec") else { return };
    if spec["conversion"].as_object().is_some_and(|conversion| {
        conversion.iter().all(|(field, value)| value.is_null() || field == "strategy" && value == "None")
    }) {
        remove(spec, "conversion");
    }
}

/// The API server allocates unset addresses and node ports.
fn remove_allocated(service: &mut Value) {
    let Some(spec) = service.get_mut("spec") else { return };
    for field in ["clusterIP", "clusterIPs", "healthCheckNodePort"] {
        if is_unset(&spec[field]) {
            remove(spec, field);
        }
    }
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        if is_unset(&port["nodePort"]) {
            remove(port, "nodePort");
        }
    }
}

fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.iter().all(is_unset),
        Value::Number(number) => number.as_i64() == Some(0),
        _ => false,
    }
}

/// Returns fields that controllers change after creation:
///
/// - replicas of workloads with a scaler (`spec.scaleTargetRef`, as of a `HorizontalPodAutoscaler`);
/// - the spec of a Lease, for its holder.
#[must_use]
pub fn controller_fields<'a>(objects: impl IntoIterator<Item = &'a Value>) -> Vec<IgnoredFields> {
    objects.into_iter().filter_map(|object| scaled_by(object).or_else(|| lease_fields(object))).collect()
}

fn scaled_by(object: &Value) -> Option<IgnoredFields> {
    let target = object["spec"]["scaleTargetRef"].as_object()?;
    let text = |field: &str| target.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
    Some(IgnoredFields {
        // KEDA accepts references with only a name.
        group: Gvk::of(text("apiVersion").unwrap_or("apps/v1"), "").group,
        kind: text("kind").unwrap_or("Deployment").to_owned(),
        name: text("name")?.to_owned(),
        namespace: ObjectRef::of(object)?.namespace,
        paths: vec!["/spec/replicas".to_owned()],
    })
}

fn lease_fields(object: &Value) -> Option<IgnoredFields> {
    let id = ObjectRef::of(object)?;
    let is_lease = (id.gvk.group.as_str(), id.gvk.kind.as_str()) == ("coordination.k8s.io", "Lease");
    is_lease.then(|| IgnoredFields {
        group: id.gvk.group,
        kind: id.gvk.kind,
        name: id.name,
        namespace: id.namespace,
        paths: vec!["/spec".to_owned()],
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn applied(mut object: Value) -> Value {
        remove_controller_fields(&mut object);
        object
    }

    fn role(rules: &Value, aggregation: &Value) -> Value {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "pilot"},
               "aggregationRule": aggregation, "rules": rules})
    }

    #[test]
    fn rules_of_an_aggregated_role_are_not_applied() {
        let aggregation = json!({"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]});
        for rules in [json!([]), json!(null), json!([{"verbs": ["get"]}])] {
            let applied = applied(role(&rules, &aggregation));
            assert!(applied.get("rules").is_none(), "{applied}");
            assert_eq!(applied["aggregationRule"], aggregation);
        }
        let plain = role(&json!([]), &json!(null));
        assert_eq!(applied(plain.clone()), plain, "a role that is not aggregated");
        let mut namespaced = role(&json!([]), &aggregation);
        namespaced["kind"] = "Role".into();
        assert_eq!(applied(namespaced.clone()), namespaced, "Roles are not aggregated");
    }

    fn with_bundle(bundle: &Value, annotations: &Value) -> [(Value, &'static str); 4] {
        let metadata = json!({"name": "a", "annotations": annotations});
        let webhooks = |kind: &str| {
            json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": metadata,
                   "webhooks": [{"name": "a.b.c", "clientConfig": {"caBundle": bundle, "url": "https://a"}}]})
        };
        [
            (webhooks("ValidatingWebhookConfiguration"), "/webhooks/0/clientConfig"),
            (webhooks("MutatingWebhookConfiguration"), "/webhooks/0/clientConfig"),
            (
                json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": metadata,
                       "spec": {"conversion": {"strategy": "Webhook", "webhook": {"clientConfig": {"caBundle": bundle, "url": "https://a"}}}}}),
                "/spec/conversion/webhook/clientConfig",
            ),
            (
                json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": metadata,
                       "spec": {"caBundle": bundle, "url": "https://a"}}),
                "/spec",
            ),
        ]
    }

    #[test]
    fn placeholder_ca_bundles_are_not_applied() {
        let certificate =
            json!(STANDARD.encode("-----BEGIN CERTIFICATE-----\nMII=\n-----END CERTIFICATE-----\n"));
        let injector = json!({"cert-manager.io/inject-ca-from": "kyma-system/serving-cert"});
        for (bundle, annotations, is_kept) in [
            (json!(null), json!(null), false),
            (json!(""), json!(null), false),
            (json!("Cg=="), json!({}), false),
            (json!("e30="), json!(null), false),
            (certificate.clone(), json!({"a": "b"}), true),
            (certificate, injector, false),
            (json!("${CA_BUNDLE}"), json!(null), true),
            (json!(7), json!(null), true),
        ] {
            for (object, at) in with_bundle(&bundle, &annotations) {
                let applied = applied(object.clone());
                assert_eq!(applied.pointer(at).unwrap().get(CA_BUNDLE).is_some(), is_kept, "{object}");
                assert_eq!(applied.pointer(at).unwrap()["url"], "https://a", "the rest stays");
            }
        }
    }

    #[test]
    fn the_default_crd_conversion_is_not_applied() {
        let definition = |conversion: Value| {
            json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "a"},
                   "spec": {"group": "b", "conversion": conversion}})
        };
        for default in [json!({"strategy": "None"}), json!({"strategy": "None", "webhook": null}), json!({})]
        {
            assert_eq!(applied(definition(default))["spec"], json!({"group": "b"}));
        }
        let own =
            definition(json!({"strategy": "Webhook", "webhook": {"clientConfig": {"url": "https://a"}}}));
        assert_eq!(applied(own.clone()), own);
    }

    #[test]
    fn empty_values_the_api_server_allocates_are_not_applied() {
        let service = |spec: Value| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": spec});
        assert_eq!(
            applied(service(
                json!({"clusterIP": "", "clusterIPs": [""], "healthCheckNodePort": 0, "ports": [{"port": 1, "nodePort": 0}]})
            )),
            service(json!({"ports": [{"port": 1}]}))
        );
        let chosen = service(
            json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": [{"port": 1, "nodePort": 30100}]}),
        );
        assert_eq!(applied(chosen.clone()), chosen);
    }

    #[test]
    fn controller_annotations_and_token_data_are_not_applied() {
        let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a",
            "annotations": {"deployment.kubernetes.io/revision": "3", "b": "c"}}});
        assert_eq!(applied(deployment)["metadata"]["annotations"], json!({"b": "c"}));
        let token = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"},
            "type": "kubernetes.io/service-account-token", "data": {"token": ""}});
        assert!(applied(token).get("data").is_none());
        for odd in [
            json!(null),
            json!([]),
            json!({"kind": "Service", "apiVersion": "v1", "spec": 7}),
            json!({"apiVersion": 1}),
        ] {
            assert_eq!(applied(odd.clone()), odd);
        }
    }

    #[test]
    fn scaled_replicas_are_left_to_the_scaler() {
        let scaler = |api: &str, kind: &str, target: Value| json!({"apiVersion": api, "kind": kind, "metadata": {"name": "s", "namespace": "n"}, "spec": {"scaleTargetRef": target}});
        let named = |object: &Value| {
            controller_fields([object])
                .into_iter()
                .map(|f| format!("{}/{} {}/{} {}", f.group, f.kind, f.namespace, f.name, f.paths.join(",")))
                .collect::<Vec<_>>()
        };
        for (object, expected) in [
            (
                scaler(
                    "autoscaling/v2",
                    "HorizontalPodAutoscaler",
                    json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "store"}),
                ),
                vec!["apps/StatefulSet n/store /spec/replicas"],
            ),
            (
                scaler("keda.sh/v1alpha1", "ScaledObject", json!({"name": "api"})),
                vec!["apps/Deployment n/api /spec/replicas"],
            ),
            (scaler("keda.sh/v1alpha1", "ScaledObject", json!({})), vec![]),
            (
                json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l", "namespace": "n"}, "spec": {}}),
                vec!["coordination.k8s.io/Lease n/l /spec"],
            ),
            (json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}), vec![]),
        ] {
            assert_eq!(named(&object), expected, "{object}");
        }
    }
}
