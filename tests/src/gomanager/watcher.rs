//! The Go manager's watcher in a runtime.

use anyhow::Result;
use kube::Client;
use serde_json::{Value, json};
use tidewatch_api::names::{GROUP, RUNTIME_NAMESPACE, labels};

use super::api;

/// Returns the objects of the Go manager's watcher. Its certificates are invalid.
pub fn watcher() -> Vec<Value> {
    let (app, name) = (json!({"app": "skr-webhook"}), "skr-webhook");
    let object = |api_version: &str, kind: &str, name: &str, rest: Value| {
        let mut object = rest;
        object["apiVersion"] = api_version.into();
        object["kind"] = kind.into();
        object["metadata"]["name"] = name.into();
        object["metadata"]["labels"][labels::MANAGED_BY] = labels::MANAGED_BY_RUNTIME.into();
        if !matches!(kind, "PriorityClass" | "ValidatingWebhookConfiguration") {
            object["metadata"]["namespace"] = RUNTIME_NAMESPACE.into();
        }
        object
    };
    let policy = |name: &str, spec: Value| {
        let mut spec = spec;
        spec["podSelector"] = json!({"matchLabels": app});
        object("networking.k8s.io/v1", "NetworkPolicy", name, json!({"spec": spec}))
    };
    let service = |name: &str, port: u16, to: &str| {
        object(
            "v1",
            "Service",
            name,
            json!({"spec": {"selector": app, "ports": [{"name": "a", "port": port, "targetPort": to}]}}),
        )
    };
    let pods = json!({"metadata": {"labels": app}, "spec": {"priorityClassName": "skr-webhook-priority",
        "containers": [{"name": "server", "image": "example.test/watcher:1", "volumeMounts": [{"name": "ssl", "mountPath": "/ssl"}]}],
        "volumes": [{"name": "ssl", "secret": {"secretName": "skr-webhook-tls"}}]}});
    let egress = json!({"policyTypes": ["Egress"], "egress": [{"ports": [{"port": 53, "protocol": "UDP"}]}]});
    let ingress =
        json!({"policyTypes": ["Ingress"], "ingress": [{"ports": [{"port": 2112, "protocol": "TCP"}]}]});
    vec![
        object(
            "scheduling.k8s.io/v1",
            "PriorityClass",
            "skr-webhook-priority",
            json!({"value": 1_000_000_000}),
        ),
        object(
            "v1",
            "Secret",
            "skr-webhook-tls",
            json!({"data": {"ca.crt": "YQ==", "tls.crt": "YQ==", "tls.key": "YQ=="}}),
        ),
        service(name, 443, "watcher-port"),
        service("skr-webhook-metrics", 2112, "metrics-port"),
        object(
            "apps/v1",
            "Deployment",
            name,
            json!({"spec": {"replicas": 1, "selector": {"matchLabels": app}, "template": pods}}),
        ),
        policy("kyma-project.io--seed-to-watcher", ingress.clone()),
        policy("kyma-project.io--metrics-to-watcher", ingress),
        policy("kyma-project.io--watcher-to-apiserver", egress.clone()),
        policy("kyma-project.io--watcher-to-dns", egress),
        object(
            "admissionregistration.k8s.io/v1",
            "ValidatingWebhookConfiguration",
            name,
            json!({"webhooks": [{
            "name": "kcp-system.go-watcher.operator.kyma-project.io", "admissionReviewVersions": ["v1"], "failurePolicy": "Ignore",
            "sideEffects": "NoneOnDryRun", "timeoutSeconds": 15,
            "clientConfig": {"service": {"name": name, "namespace": RUNTIME_NAMESPACE, "path": "/validate/lifecycle-manager"}},
            "objectSelector": {"matchLabels": {labels::WATCHED_BY: labels::WATCHED_BY_KYMA}},
            "rules": [{"apiGroups": [GROUP], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE", "DELETE"],
                       "resources": ["kymas"]}]}]}),
        ),
    ]
}

/// Returns the watcher's existing objects as `Kind name`.
pub async fn watcher_in(runtime: &Client) -> Result<Vec<String>> {
    let mut there = Vec::new();
    for object in watcher() {
        let (api, name) = api(runtime, &object)?;
        if api.get_opt(&name).await?.is_some() {
            there.push(format!("{} {name}", object["kind"].as_str().unwrap_or_default()));
        }
    }
    Ok(there)
}
