//! Runtimes of realistic size.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};
use tidewatch_fake_apiserver::{Cluster, Outcome, PatchKind, Query, Request, Target, User, Verb};

const MODULES: u64 = 10;

fn apply(
    cluster: &mut Cluster,
    user: &Arc<User>,
    path: [&str; 3],
    namespace: &str,
    object: &Value,
    status: bool,
) {
    let target = Target {
        group: path[0].into(),
        version: path[1].into(),
        resource: path[2].into(),
        namespace: namespace.into(),
        name: object["metadata"]["name"].as_str().unwrap().into(),
        subresource: if status { "status".into() } else { String::new() },
    };
    let query = Query { field_manager: "lifecycle".into(), force: Some(true), ..Query::default() };
    let verb = Verb::Patch(PatchKind::Apply, object.clone());
    let request = Request { user: Arc::clone(user), agent: "test".into(), verb, target, query };
    match cluster.apply(&request, Timestamp::now()) {
        Outcome::Object(answer) => assert!(answer.code < 300, "{}", answer.object),
        other => panic!("{other:?}"),
    }
}

/// One module of a runtime.
struct Module<'a> {
    cluster: &'a mut Cluster,
    user: &'a Arc<User>,
    runtime: u64,
    number: u64,
    name: String,
}

impl Module<'_> {
    /// `path`: group, version, plural and kind.
    fn put(&mut self, path: [&str; 4], suffix: &str, rest: Value) {
        let Self { name, number, .. } = self;
        let [group, version, plural, kind] = path;
        let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        let labels = json!({
            "app.kubernetes.io/name": name, "app.kubernetes.io/managed-by": "lifecycle", "app.kubernetes.io/version": "1.0.5",
            "operator.kyma-project.io/module": name,
        });
        let mut object = json!({
            "apiVersion": api_version, "kind": kind,
            "metadata": {"name": format!("{name}{suffix}"), "labels": labels, "annotations": {"checksum/config": format!("{number:064x}")}},
        });
        object.as_object_mut().unwrap().extend(rest.as_object().cloned().unwrap_or_default());
        apply(self.cluster, self.user, [group, version, plural], "kyma-system", &object, false);
    }

    fn workload(&mut self) {
        let container = json!({
            "name": "manager", "image": "registry.example.org/prod/module-manager:1.0.5", "args": ["--leader-elect", "--metrics-bind-address=:8080"],
            "env": (0..8).map(|index| json!({"name": format!("VARIABLE_{index}"), "value": "some value or other"})).collect::<Vec<_>>(),
            "ports": [{"containerPort": 8080, "name": "metrics"}, {"containerPort": 9443, "name": "webhook"}],
            "livenessProbe": {"httpGet": {"path": "/healthz", "port": 8081}}, "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8081}},
            "resources": {"limits": {"cpu": "500m", "memory": "512Mi"}, "requests": {"cpu": "10m", "memory": "64Mi"}},
            "volumeMounts": [{"name": "cert", "mountPath": "/tmp/cert"}],
        });
        self.put(["apps", "v1", "deployments", "Deployment"], "",
            json!({"spec": {
                "selector": {"matchLabels": {"app": self.name}}, "template": {
                    "metadata": {"labels": {"app": self.name}},
                    "spec": {"serviceAccountName": self.name, "containers": [container], "volumes": [{"name": "cert", "secret": {"secretName": "cert"}}]},
                },
            }}),
        );
        self.put(
            ["", "v1", "services", "Service"],
            "",
            json!({"spec": {"ports": [{"port": 443, "targetPort": 9443}], "selector": {"app": self.name}}}),
        );
    }

    fn access(&mut self) {
        let rules = json!((0..12).map(|rule| json!({"apiGroups": ["operator.kyma-project.io"], "resources": [format!("kind{rule}"), "modules/status"], "verbs": ["get", "list", "watch", "patch"]})).collect::<Vec<_>>());
        self.put(["", "v1", "serviceaccounts", "ServiceAccount"], "", json!({}));
        self.put(["rbac.authorization.k8s.io", "v1", "roles", "Role"], "", json!({"rules": rules}));
        self.put(
            ["rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"],
            "",
            json!({
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": self.name},
                "subjects": [{"kind": "ServiceAccount", "name": self.name, "namespace": "kyma-system"}],
            }),
        );
    }

    fn configuration(&mut self) {
        self.put(
            ["", "v1", "configmaps", "ConfigMap"],
            "-config",
            json!({"data": {"config.yaml": "key: value\n".repeat(200)}}),
        );
        self.put(
            ["", "v1", "configmaps", "ConfigMap"],
            "-dashboard",
            json!({"data": {"dashboard.json": "{\"panels\": []}".repeat(150)}}),
        );
        self.put(["networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy"], "",
            json!({"spec": {"podSelector": {"matchLabels": {"app": self.name}}, "ingress": [{"ports": [{"port": 9443}]}]}}),
        );
    }

    /// Objects that differ in each runtime.
    fn own_objects(&mut self) {
        let Self { runtime, number, .. } = *self;
        self.put(
            ["coordination.k8s.io", "v1", "leases", "Lease"],
            "",
            json!({"spec": {"holderIdentity": format!("manager-{runtime}-{number}")}}),
        );
        self.put(["example.org", "v1", "samples", "Sample"], "",
            json!({"spec": {"resourceFilePath": "./module-data/yaml", "runtime": format!("runtime-{runtime}")}}),
        );
        let status = json!({"apiVersion": "example.org/v1", "kind": "Sample", "metadata": {"name": self.name}, "status": {"state": "Ready", "conditions": [
            {"type": "Installation", "status": "True", "reason": "Ready", "message": "installed", "lastTransitionTime": format!("2026-11-21T10:{:02}:{:02}Z", runtime % 60, number)},
        ]}});
        apply(self.cluster, self.user, ["example.org", "v1", "samples"], "kyma-system", &status, true);
    }
}

fn module(cluster: &mut Cluster, user: &Arc<User>, runtime: u64, number: u64) {
    let mut module = Module { cluster, user, runtime, number, name: format!("module-{number}") };
    module.workload();
    module.access();
    module.configuration();
    module.own_objects();
}

/// Fills a runtime with ten modules of ten objects, in realistic sizes.
pub(crate) fn fill(cluster: &mut Cluster, user: &Arc<User>, runtime: u64) {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kyma-system"}});
    apply(cluster, user, ["", "v1", "namespaces"], "", &namespace, false);
    let properties: serde_json::Map<String, Value> = (0..40)
        .map(|index| {
            (
                format!("field{index}"),
                json!({"type": "string", "description": "What this field is about, in some words."}),
            )
        })
        .collect();
    let mut properties = Value::Object(properties);
    properties["resourceFilePath"] = json!({"type": "string"});
    properties["runtime"] = json!({"type": "string"});
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "samples.example.org"},
        "spec": {"group": "example.org", "scope": "Namespaced", "names": {"plural": "samples", "kind": "Sample"}, "versions": [{
            "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "spec": {"type": "object", "properties": properties},
                "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            }}},
        }]},
    });
    apply(cluster, user, ["apiextensions.k8s.io", "v1", "customresourcedefinitions"], "", &crd, false);
    for number in 0..MODULES {
        module(cluster, user, runtime, number);
    }
}
