//! Single KCP objects, for tests that need invalid ones.

use anyhow::Result;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, ModuleReleaseMeta, ModuleTemplate,
    names::{API_VERSION, annotations, labels},
};

const MANAGER: &str = "tidewatch-tests";

/// Applies a Kyma without a kubeconfig Secret. A domain pins its agents' certificates.
pub async fn put_kyma(
    client: &Client,
    namespace: &str,
    name: &str,
    id: &str,
    domain: Option<&str>,
) -> Result<()> {
    let api: Api<Kyma> = Api::namespaced(client.clone(), namespace);
    let marks = domain.map_or_else(|| json!({}), |domain| json!({annotations::SKR_DOMAIN: domain}));
    let body = json!({
        "apiVersion": API_VERSION, "kind": "Kyma",
        "metadata": {"name": name, "labels": {labels::RUNTIME_ID: id}, "annotations": marks},
        "spec": {"channel": "regular"}
    });
    api.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(body)).await?;
    Ok(())
}

/// Returns the OCM component of a test module.
pub fn component(module: &str) -> String {
    format!("tidewatch.dev/module/{module}")
}

/// Applies a version's ModuleTemplate without a default CR.
pub async fn put_template(client: &Client, namespace: &str, module: &str, version: &str) -> Result<()> {
    let api: Api<ModuleTemplate> = Api::namespaced(client.clone(), namespace);
    let name = ModuleTemplate::object_name(module, version);
    let body = json!({
        "apiVersion": API_VERSION, "kind": "ModuleTemplate",
        "metadata": {"name": name, "labels": {labels::MODULE_NAME: module}},
        "spec": {"moduleName": module, "version": version, "descriptor": {}}
    });
    api.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(body)).await?;
    Ok(())
}

/// Applies a ModuleReleaseMeta: channel → version.
pub async fn put_release(
    client: &Client,
    namespace: &str,
    module: &str,
    channels: &[(&str, &str)],
) -> Result<()> {
    let api: Api<ModuleReleaseMeta> = Api::namespaced(client.clone(), namespace);
    let channels: Vec<Value> = channels.iter().map(|(c, v)| json!({"channel": c, "version": v})).collect();
    let body = json!({
        "apiVersion": API_VERSION, "kind": "ModuleReleaseMeta",
        "metadata": {"name": module},
        "spec": {"moduleName": module, "ocmComponentName": component(module), "channels": channels}
    });
    api.patch(module, &PatchParams::apply(MANAGER).force(), &Patch::Apply(body)).await?;
    Ok(())
}

/// Allows downgrades of a released module.
pub async fn allow_downgrade(client: &Client, namespace: &str, module: &str) -> Result<()> {
    let api: Api<ModuleReleaseMeta> = Api::namespaced(client.clone(), namespace);
    let allowed = json!({"spec": {"allowDowngrade": true}});
    api.patch(module, &PatchParams::default(), &Patch::Merge(allowed)).await?;
    Ok(())
}
