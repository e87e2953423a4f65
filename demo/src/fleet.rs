//! Fills KCP and runtimes by Kubernetes clients.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::{Context, Result};
use k8s_openapi::{
    ByteString,
    api::core::v1::{Namespace, Secret},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    runtime::wait::{await_condition, conditions},
};
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, ModuleReleaseMeta, ModuleTemplate, State, crds,
    names::{AGENT_CONFIG_MAP, CA_SECRET, RUNTIME_NAMESPACE, annotations, labels},
};
use tidewatch_certs::Ca;
use tidewatch_oci::{ModulePackage, Pushed, Registry, RegistryConfig, push};

use crate::{fixtures, pki::Identity};

const MANAGER: &str = "tidewatch-tests";
const SOON: Duration = Duration::from_mins(1);

/// Returns a Kyma's runtime domain.
pub fn domain(kyma: &str) -> String {
    format!("{kyma}.runtimes.example")
}

/// Installs CRDs and a namespace in KCP.
pub async fn prepare_kcp(client: &Client, namespace: &str) -> Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in crds::all() {
        let name = crd.name_any();
        api.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&crd)).await?;
        tokio::time::timeout(SOON, await_condition(api.clone(), &name, conditions::is_crd_established()))
            .await
            .with_context(|| format!("the CRD {name} was not established"))??;
    }
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.patch(namespace, &PatchParams::apply(MANAGER), &Patch::Apply(body)).await?;
    Ok(())
}

/// Reads the CA that a receiver keeps in KCP.
pub async fn kept_ca(kcp: &Client, namespace: &str) -> Result<Ca> {
    let secrets: Api<Secret> = Api::namespaced(kcp.clone(), namespace);
    let files = tidewatch_certs::secret::from_secret(&secrets.get(CA_SECRET).await?)?;
    Ok(Ca::from_pem(&files.cert_pem, files.key_pem.as_str())?)
}

/// OCM component of `lighthouse`.
pub const COMPONENT: &str = "tidewatch.dev/module/lighthouse";

/// Pushes a version of `lighthouse`.
pub async fn push_lighthouse(registry: &str, version: &str, raw_manifest: &str) -> Result<Pushed> {
    let client = Registry::new(RegistryConfig::default())?;
    let package = ModulePackage {
        sources: Vec::new(),
        component_name: COMPONENT.to_owned(),
        version: version.to_owned(),
        raw_manifest: raw_manifest.to_owned(),
        default_cr: Some(fixtures::LIGHTHOUSE_DEFAULT_CR.to_owned()),
        images: vec![format!("example.local/lighthouse:{version}")],
    };
    Ok(push(&client, registry, &package).await?)
}

/// Applies a ModuleTemplate.
pub async fn offer_template(client: &Client, namespace: &str, version: &str) -> Result<()> {
    let api: Api<ModuleTemplate> = Api::namespaced(client.clone(), namespace);
    let name = ModuleTemplate::object_name("lighthouse", version);
    let data: Value = serde_saphyr::from_str(fixtures::LIGHTHOUSE_DEFAULT_CR)?;
    let body = json!({
        "apiVersion": "operator.kyma-project.io/v1beta2", "kind": "ModuleTemplate",
        "metadata": {"name": name, "labels": {labels::MODULE_NAME: "lighthouse"}},
        "spec": {"moduleName": "lighthouse", "version": version, "descriptor": {}, "data": data}
    });
    api.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(body)).await?;
    Ok(())
}

/// Releases `lighthouse`: channel → version.
pub async fn release(client: &Client, namespace: &str, channels: &[(&str, &str)]) -> Result<()> {
    let api: Api<ModuleReleaseMeta> = Api::namespaced(client.clone(), namespace);
    let channels: Vec<Value> = channels.iter().map(|(c, v)| json!({"channel": c, "version": v})).collect();
    let body = json!({
        "apiVersion": "operator.kyma-project.io/v1beta2", "kind": "ModuleReleaseMeta",
        "metadata": {"name": "lighthouse"},
        "spec": {"moduleName": "lighthouse", "ocmComponentName": COMPONENT, "channels": channels}
    });
    api.patch("lighthouse", &PatchParams::apply(MANAGER).force(), &Patch::Apply(body)).await?;
    Ok(())
}

/// Registers a runtime: kubeconfig Secret and Kyma.
pub async fn register(
    client: &Client,
    namespace: &str,
    kyma: &str,
    id: &str,
    kubeconfig: &str,
) -> Result<()> {
    put_kubeconfig(client, namespace, kyma, kubeconfig).await?;
    let api: Api<Kyma> = Api::namespaced(client.clone(), namespace);
    let body = json!({
        "apiVersion": "operator.kyma-project.io/v1beta2", "kind": "Kyma",
        "metadata": {"name": kyma, "labels": {labels::RUNTIME_ID: id},
                     "annotations": {annotations::SKR_DOMAIN: domain(kyma)}},
        "spec": {"channel": "regular"}
    });
    api.patch(kyma, &PatchParams::apply(MANAGER).force(), &Patch::Apply(body)).await?;
    Ok(())
}

/// Writes a Kyma's kubeconfig Secret.
pub async fn put_kubeconfig(client: &Client, namespace: &str, kyma: &str, kubeconfig: &str) -> Result<()> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let name = format!("kubeconfig-{kyma}");
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            labels: Some(BTreeMap::from([
                (labels::KYMA_NAME.to_owned(), kyma.to_owned()),
                (labels::MANAGED_BY.to_owned(), labels::MANAGED_BY_KCP.to_owned()),
            ])),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([("config".to_owned(), ByteString(kubeconfig.as_bytes().to_vec()))])),
        ..Secret::default()
    };
    api.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(secret)).await?;
    Ok(())
}

/// Returns an agent file's watches. The engine adds the Kyma.
pub fn watches() -> Value {
    let modules = json!({labels::MANAGED_BY: labels::MANAGED_BY_RUNTIME});
    json!([
        {"name": "deployments", "group": "apps", "resource": "deployments", "field": "spec",
         "labels": modules},
        {"name": "deployments-status", "group": "apps", "resource": "deployments", "field": "status",
         "labels": modules},
        {"name": "namespaces", "resource": "namespaces", "field": "spec", "labels": modules},
        {"name": "crds", "group": "apiextensions.k8s.io", "resource": "customresourcedefinitions", "field": "spec",
         "labels": modules},
    ])
}

/// Creates the agent's namespace and role.
pub async fn admit_agent(runtime: &Client) -> Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": RUNTIME_NAMESPACE}});
    apply_yaml(runtime, &namespace.to_string()).await?;
    apply_yaml(runtime, AGENT_ROLE).await
}

/// The shipped role.
pub const AGENT_ROLE: &str = include_str!("../../deploy/agent/rbac.yaml");

/// Inputs of [`agent_config`].
#[derive(Clone, Copy)]
pub struct AgentFiles<'a> {
    /// Runtime id.
    pub id: &'a str,
    /// `https://host:port`.
    pub receiver: &'a str,
    /// Contract version.
    pub protocol: &'a str,
    /// The receiver's CA.
    pub ca: &'a Path,
    /// Certificate and key.
    pub identity: &'a Identity,
    /// The runtime's kubeconfig.
    pub kubeconfig: &'a Path,
    /// Admin address; port 0 takes a free one.
    pub admin: &'a str,
}

/// Returns an agent's configuration file.
pub fn agent_config(files: AgentFiles<'_>, watches: &Value) -> Value {
    let AgentFiles { id, receiver, protocol, ca, identity, kubeconfig, admin } = files;
    json!({
        "runtimeId": id,
        "receiver": {"url": receiver, "caFile": ca, "certFile": identity.cert, "keyFile": identity.key,
                     "protocol": protocol},
        "adminAddress": admin,
        "kubeconfig": kubeconfig,
        "configMap": {"namespace": RUNTIME_NAMESPACE, "name": AGENT_CONFIG_MAP},
        "watches": watches,
    })
}

/// Returns whether the configuration is applied.
pub fn configured(status: &Value) -> bool {
    status["configuration"]["configMap"]["state"] == "Applied"
}

/// Returns whether watches work and events are acknowledged.
pub fn connected(status: &Value) -> bool {
    let watches = status["watches"].as_array().map(Vec::as_slice).unwrap_or_default();
    let watching = !watches.is_empty() && watches.iter().all(|w| w["reason"] == "Watching");
    watching && status["receiver"]["connected"] == true && status["dirtyKeys"] == 0
}

/// Applies a YAML text's objects.
pub async fn apply_yaml(client: &Client, yaml: &str) -> Result<()> {
    let runtime = tidewatch_engine::clusters::RuntimeClient::new(client.clone(), SOON);
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml)?;
    for object in documents {
        let gvk = kube::core::GroupVersionKind::try_from(serde_json::from_value::<kube::core::TypeMeta>(
            object.clone(),
        )?)?;
        let mapped = runtime.mapper().resolve(&runtime, &gvk).await?;
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
        let name = object["metadata"]["name"].as_str().context("an object has no name")?;
        let params = PatchParams::apply(MANAGER).force();
        mapped.api(&runtime, namespace).patch(name, &params, &Patch::Apply(&object)).await?;
    }
    Ok(())
}

/// Waits for a Kyma's state.
pub async fn kyma_in_state(client: &Client, namespace: &str, name: &str, state: State) -> Result<Kyma> {
    let api: Api<Kyma> = Api::namespaced(client.clone(), namespace);
    kyma_where(api, name, &format!("Kyma {name} to be {state}"), |k| {
        k.status.as_ref().is_some_and(|s| s.state == state)
    })
    .await
}

/// Watches a Kyma until `is`.
pub async fn kyma_where(api: Api<Kyma>, name: &str, what: &str, is: impl Fn(&Kyma) -> bool) -> Result<Kyma> {
    let condition = |kyma: Option<&Kyma>| kyma.is_some_and(&is);
    match tokio::time::timeout(SOON, await_condition(api.clone(), name, condition)).await {
        Ok(found) => found?.context("the Kyma is gone"),
        Err(_) => {
            let last = api.get_opt(name).await?.map(|k| k.status);
            anyhow::bail!("timed out after {SOON:?} waiting for {what}; its status: {last:#?}")
        }
    }
}
