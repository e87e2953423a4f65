//! Objects older than the engine. Without a proven event path, they stay until the Kyma's deletion.

use anyhow::{Context, Result};
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, Patch, PatchParams},
    core::GroupVersionKind,
    discovery::ApiResource,
};
use serde_json::{Value, json};
use tidewatch_api::names::{KCP_NAMESPACE, RUNTIME_NAMESPACE, field_managers, labels};

use super::KYMA;

pub(crate) const PULL_SECRET: &str = "platform-pull";
const ISTIO: &str = "istio-system";
/// Objects deleted with the Kyma.
pub(crate) const LEFT: [&str; 8] = [
    "runtime Secret kyma-system/platform-pull",
    "runtime ValidatingWebhookConfiguration /skr-webhook",
    "runtime Deployment kyma-system/skr-webhook",
    "runtime Service kyma-system/skr-webhook",
    "runtime NetworkPolicy kyma-system/kyma-project.io--watcher-to-dns",
    "runtime Secret kyma-system/skr-webhook-tls",
    "kcp Certificate istio-system/harbour-webhook-tls",
    "kcp Secret istio-system/harbour-webhook-tls",
];

async fn put(client: &Client, object: Value) -> Result<()> {
    let object: DynamicObject = serde_json::from_value(object)?;
    let types = object.types.as_ref().context("an object without a kind")?;
    let kind = ApiResource::from_gvk(&GroupVersionKind::try_from(types)?);
    let api: Api<DynamicObject> = match object.namespace() {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &kind),
        None => Api::all_with(client.clone(), &kind),
    };
    let params = PatchParams::apply(field_managers::KCP).force();
    let name = object.name_any();
    api.patch(&name, &params, &Patch::Apply(&object)).await.with_context(|| format!("putting {name}"))?;
    Ok(())
}

fn certificate() -> [Value; 4] {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let name = format!("{KYMA}-webhook-tls");
    [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": ISTIO}}),
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
               "metadata": {"name": "certificates.cert-manager.io"},
               "spec": {"group": "cert-manager.io", "scope": "Namespaced",
                        "names": {"kind": "Certificate", "plural": "certificates", "singular": "certificate"},
                        "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}}),
        json!({"apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": {"name": name, "namespace": ISTIO},
               "spec": {"secretName": name, "secretTemplate": {"labels": {labels::PURPOSE: labels::PURPOSE_WATCHER_CERT}}}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": ISTIO}}),
    ]
}

/// In order of removal.
fn watcher() -> [Value; 6] {
    let app = json!({"app": "skr-webhook"});
    let metadata = |name: &str, namespace: Option<&str>| json!({"name": name, "namespace": namespace, "labels": {labels::MANAGED_BY: labels::MANAGED_BY_RUNTIME}});
    let in_kyma = |name: &str| metadata(name, Some(RUNTIME_NAMESPACE));
    [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": RUNTIME_NAMESPACE}}),
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
               "metadata": metadata("skr-webhook", None)}),
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": in_kyma("skr-webhook"),
               "spec": {"selector": {"matchLabels": app}, "template": {"metadata": {"labels": app},
                   "spec": {"containers": [{"name": "server", "image": "example.local/watcher:1.0.0"}]}}}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": in_kyma("skr-webhook"), "spec": {"ports": [{"port": 443}]}}),
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
               "metadata": in_kyma("kyma-project.io--watcher-to-dns"), "spec": {"podSelector": {}}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": in_kyma("skr-webhook-tls")}),
    ]
}

pub(crate) async fn prepare(kcp: &Client, runtime: &Client) -> Result<()> {
    let pull = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": PULL_SECRET, "namespace": KCP_NAMESPACE},
                      "type": "Opaque", "data": {"a": "Yg=="}});
    for object in certificate().into_iter().chain([pull]) {
        put(kcp, object).await?;
    }
    for object in watcher() {
        put(runtime, object).await?;
    }
    Ok(())
}
