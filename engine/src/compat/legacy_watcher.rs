//! Objects of the Go manager's watcher in a runtime. They are removed when the agent's event path is proven.

use serde_json::Value;
use tidewatch_api::{
    names::{self, field_managers, labels},
    object::{Gvk, ObjectRef},
};

const NAME: &str = "skr-webhook";
const POLICIES: [&str; 4] = [
    "kyma-project.io--seed-to-watcher",
    "kyma-project.io--watcher-to-apiserver",
    "kyma-project.io--metrics-to-watcher",
    "kyma-project.io--watcher-to-dns",
];

fn object(api_version: &str, kind: &str, namespace: &str, name: &str) -> ObjectRef {
    ObjectRef { gvk: Gvk::of(api_version, kind), namespace: namespace.into(), name: name.into() }
}

/// The first object to delete: without it, no user's write waits for the watcher.
#[must_use]
pub fn first() -> ObjectRef {
    object("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "", NAME)
}

/// The last object to delete: while it exists, the removal is incomplete.
#[must_use]
pub fn last() -> ObjectRef {
    object("v1", "Secret", names::RUNTIME_NAMESPACE, "skr-webhook-tls")
}

/// All objects in deletion order: users of an object go before it.
#[must_use]
pub fn objects() -> Vec<ObjectRef> {
    let in_runtime_namespace =
        |api_version, kind, name| object(api_version, kind, names::RUNTIME_NAMESPACE, name);
    let mut all = vec![
        first(),
        in_runtime_namespace("apps/v1", "Deployment", NAME),
        in_runtime_namespace("v1", "Service", NAME),
        in_runtime_namespace("v1", "Service", "skr-webhook-metrics"),
    ];
    all.extend(POLICIES.map(|name| in_runtime_namespace("networking.k8s.io/v1", "NetworkPolicy", name)));
    // Older watchers had a service account.
    all.push(object("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "", "read-kymas"));
    all.push(object("rbac.authorization.k8s.io/v1", "ClusterRole", "", "kyma-reader"));
    all.push(in_runtime_namespace("v1", "ServiceAccount", "skr-webhook-sa"));
    all.push(object("scheduling.k8s.io/v1", "PriorityClass", "", "skr-webhook-priority"));
    all.push(last());
    all
}

/// Whether the Go manager applied the object: it has the manager's label and field manager. Other objects of this name stay.
#[must_use]
pub fn is_applied_by_go_manager(metadata: &Value) -> bool {
    let entries = metadata["managedFields"].as_array().into_iter().flatten();
    let mut applied = entries.filter(|entry| entry["operation"] == "Apply");
    metadata["labels"][labels::MANAGED_BY] == labels::MANAGED_BY_RUNTIME
        && applied.any(|entry| entry["manager"] == field_managers::KCP)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_webhook_goes_first_and_its_certificate_last() {
        let all = objects();
        assert_eq!((all.first(), all.last()), (Some(&first()), Some(&last())));
        let position = |kind: &str| all.iter().position(|o| o.gvk.kind == kind).unwrap();
        assert!(
            position("Deployment") < position("Service") && position("Service") < position("NetworkPolicy")
        );
    }

    #[test]
    fn only_objects_applied_by_the_go_manager_are_legacy() {
        let metadata = |label: &str, operation: &str, manager: &str| {
            json!({"labels": {labels::MANAGED_BY: label}, "managedFields": [
                {"manager": "kube-controller-manager", "operation": "Update", "subresource": "status"},
                {"manager": manager, "operation": operation}]})
        };
        assert!(is_applied_by_go_manager(&metadata("kyma", "Apply", "lifecycle-manager")));
        for (label, operation, manager) in [
            ("me", "Apply", "lifecycle-manager"),
            ("kyma", "Update", "lifecycle-manager"),
            ("kyma", "Apply", "kubectl"),
        ] {
            assert!(
                !is_applied_by_go_manager(&metadata(label, operation, manager)),
                "{label} {operation} {manager}"
            );
        }
        for malformed in [json!(null), json!({}), json!({"managedFields": [7], "labels": "x"})] {
            assert!(!is_applied_by_go_manager(&malformed), "{malformed}");
        }
    }
}
