//! Single objects of KCP, for tests that want them wrong in one way or another.

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

/// Applies a Kyma, without any kubeconfig Secret. With a domain, its agents' certificates are pinned to it.
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

/// The OCM component of a module of these tests.
pub fn component(module: &str) -> String {
    format!("tidewatch.dev/module/{module}")
}

/// Applies the ModuleTemplate of a module's version, without a default CR.
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

/// Applies the ModuleReleaseMeta of a module: channel → version.
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

/// Lets a released module go back to an older version, for tests that go to and fro.
pub async fn allow_downgrade(client: &Client, namespace: &str, module: &str) -> Result<()> {
    let api: Api<ModuleReleaseMeta> = Api::namespaced(client.clone(), namespace);
    let allowed = json!({"spec": {"allowDowngrade": true}});
    api.patch(module, &PatchParams::default(), &Patch::Merge(allowed)).await?;
    Ok(())
}
