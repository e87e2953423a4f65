//! Objects of KCP of a realistic size, as they are read.

use serde_json::{Value, json};
use tidewatch_api::{Kyma, Manifest};

/// Modules of each Kyma.
pub(crate) const MODULES: usize = 10;
/// Objects of each module.
pub(crate) const OBJECTS: usize = 14;

fn condition(type_: &str, message: &str) -> Value {
    json!({"type": type_, "status": "True", "reason": "Ready", "message": message, "observedGeneration": 3,
           "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

/// A Kyma with ten modules, Ready.
pub(crate) fn kyma(name: &str) -> Kyma {
    let module = |n: usize| {
        let component = format!("example.dev/module/module-{n}");
        json!({"name": format!("module-{n}"), "channel": "regular", "version": "1.2.0", "state": "Ready", "fqdn": component,
               "ocmComponentName": component,
               "manifest": {"apiVersion": "operator.kyma-project.io/v1beta2", "kind": "Manifest",
                            "metadata": {"name": format!("{name}-module-{n}-223596{n}007"), "namespace": "kcp-system"}},
               "resource": {"apiVersion": format!("module-{n}.example.dev/v1"), "kind": "Settings",
                            "metadata": {"name": "default", "namespace": "kyma-system"}},
               "template": {"apiVersion": "operator.kyma-project.io/v1beta2", "kind": "ModuleTemplate",
                            "metadata": {"name": format!("module-{n}-1.2.0"), "namespace": "kcp-system", "generation": 1}}})
    };
    let modules: Vec<Value> = (0..MODULES).map(module).collect();
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "kcp-system", "uid": format!("{name}-0a2b-4c6d-8e0f"), "generation": 3,
            "resourceVersion": "123456", "finalizers": ["operator.kyma-project.io/Kyma"],
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"kyma-project.io/runtime-id": format!("{name}-runtime"), "kyma-project.io/shoot-name": name,
                "kyma-project.io/global-account-id": format!("{name}-account"), "operator.kyma-project.io/managed-by": "kcp",
                "kyma-project.io/region": "eu-west-1", "kyma-project.io/broker-plan-name": "standard"},
            "annotations": {"skr-domain": format!("{name}.example.dev")}},
        "spec": {"channel": "regular"},
        "status": {"state": "Ready", "activeChannel": "regular", "modules": modules,
            "lastOperation": {"operation": "kyma is ready", "lastUpdateTime": "2026-01-01T00:00:00Z"},
            "conditions": [condition("CRDsSync", "CRDs are synchronized to the SKR"),
                condition("Modules", "all modules are in ready state"),
                condition("ModuleCatalog", "module templates are synchronized"),
                condition("RuntimeEvents", "events arrive")]}
    }))
    .unwrap()
}

/// The Manifest of one of its modules, Ready.
pub(crate) fn manifest(kyma: &str, n: usize) -> Manifest {
    let component = format!("example.dev/module/module-{n}");
    let kinds = [
        ("apps", "Deployment"),
        ("", "ConfigMap"),
        ("", "Service"),
        ("", "ServiceAccount"),
        ("rbac.authorization.k8s.io", "ClusterRole"),
        ("rbac.authorization.k8s.io", "ClusterRoleBinding"),
        ("apiextensions.k8s.io", "CustomResourceDefinition"),
    ];
    let object = |i: usize| {
        let (group, kind) = kinds[i % kinds.len()];
        json!({"group": group, "version": "v1", "kind": kind, "namespace": "kyma-system",
               "name": format!("module-{n}-controller-manager-{i}")})
    };
    let synced: Vec<Value> = (0..OBJECTS).map(object).collect();
    serde_json::from_value(json!({
        "metadata": {"name": format!("{kyma}-module-{n}-223596{n}007"), "namespace": "kcp-system",
            "uid": format!("{kyma}-{n}-4c6d-8e0f"), "generation": 3, "resourceVersion": format!("12345{n}"),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": ["declarative.kyma-project.io/finalizer", "resource.kyma-project.io/finalizer"],
            "labels": {"operator.kyma-project.io/kyma-name": kyma, "operator.kyma-project.io/channel": "regular",
                "operator.kyma-project.io/controller-name": "", "operator.kyma-project.io/managed-by": "kcp",
                "operator.kyma-project.io/module-name": format!("module-{n}")},
            "annotations": {"operator.kyma-project.io/fqdn": component, "operator.kyma-project.io/ocm-component-name": component},
            "ownerReferences": [{"apiVersion": "operator.kyma-project.io/v1beta2", "kind": "Kyma", "name": kyma,
                "uid": format!("{kyma}-0a2b-4c6d-8e0f"), "controller": true, "blockOwnerDeletion": true}]},
        "spec": {"remote": false, "version": "1.2.0", "customResourcePolicy": "CreateAndDelete",
            "install": {"name": "raw-manifest", "source": {"name": component, "repo": "registry.example.dev/modules",
                "ref": format!("sha256:{}", "0a".repeat(32)), "type": "oci-dir"}},
            "localizedImages": [format!("registry.example.dev/images/module-{n}:1.2.0")],
            "resource": {"apiVersion": format!("module-{n}.example.dev/v1"), "kind": "Settings",
                "metadata": {"name": "default", "namespace": "kyma-system"}, "spec": {"replicas": 1}}},
        "status": {"state": "Ready", "synced": synced,
            "lastOperation": {"operation": "resources are ready", "lastUpdateTime": "2026-01-01T00:00:00Z"},
            "conditions": [condition("Resources", "resources are parsed and ready for use"),
                condition("Installation", "installation is ready and resources can be used"),
                condition("ModuleCR", "module CR was created")]}
    }))
    .unwrap()
}
