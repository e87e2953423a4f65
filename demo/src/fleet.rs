//! What stands in KCP and in the runtimes, by Kubernetes clients alone: CRDs, the module `lighthouse`, registered
//! runtimes, the agent's role and configuration.

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
    names::{AGENT_CONFIG_MAP, RUNTIME_NAMESPACE, annotations, labels},
};
use tidewatch_oci::{ModulePackage, Pushed, Registry, RegistryConfig, push};

use crate::{fixtures, pki::Identity};

/// The field manager of what demo and tests apply.
const MANAGER: &str = "tidewatch-tests";
/// For anything that should take a second or two.
const SOON: Duration = Duration::from_mins(1);

/// The domain that is registered for a runtime, by the name of its Kyma.
pub fn domain(kyma: &str) -> String {
    format!("{kyma}.runtimes.example")
}

/// Installs our CRDs and a namespace in KCP.
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

/// The component of the module `lighthouse`.
pub const COMPONENT: &str = "tidewatch.dev/module/lighthouse";

/// Pushes a version of `lighthouse` to the registry.
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

/// Applies the ModuleTemplate of a version of `lighthouse`.
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

/// Applies the ModuleReleaseMeta of `lighthouse`: channel → version.
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

/// Registers a runtime by the conventions of the ecosystem: a kubeconfig Secret and a Kyma.
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

/// Writes the kubeconfig Secret of a Kyma.
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

/// The watches of an agent's file in demo and tests: the modules' workloads, and what the end of a module waits for. The runtime's Kyma
/// is not among them: the engine has each agent watch it.
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

/// Puts into a runtime what an agent needs there: its namespace and the role that ships.
pub async fn admit_agent(runtime: &Client) -> Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": RUNTIME_NAMESPACE}});
    apply_yaml(runtime, &namespace.to_string()).await?;
    apply_yaml(runtime, AGENT_ROLE).await
}

/// What the agent's role that ships is made of.
pub const AGENT_ROLE: &str = include_str!("../../deploy/agent/rbac.yaml");

/// Where an agent finds what it needs.
#[derive(Clone, Copy)]
pub struct AgentFiles<'a> {
    /// Its runtime's id.
    pub id: &'a str,
    /// The receiver's `https://host:port`.
    pub receiver: &'a str,
    /// The version of the contract.
    pub protocol: &'a str,
    /// The CA of the receiver.
    pub ca: &'a Path,
    /// Its certificate and key.
    pub identity: &'a Identity,
    /// Of its runtime.
    pub kubeconfig: &'a Path,
    /// Where its admin endpoint listens; port 0 takes a free one.
    pub admin: &'a str,
}

/// An agent's configuration file. JSON is YAML.
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

/// Whether an agent's status page says that it has its configuration from the engine.
pub fn configured(status: &Value) -> bool {
    status["configuration"]["configMap"]["state"] == "Applied"
}

/// Whether an agent's status page says that everything it has seen was acknowledged and that all watches watch.
pub fn connected(status: &Value) -> bool {
    let watches = status["watches"].as_array().map(Vec::as_slice).unwrap_or_default();
    let watching = !watches.is_empty() && watches.iter().all(|w| w["reason"] == "Watching");
    watching && status["receiver"]["connected"] == true && status["dirtyKeys"] == 0
}

/// Applies every document of a YAML text (of kinds that RBAC and core know).
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

/// Waits until a Kyma in KCP has a state, and returns it.
pub async fn kyma_in_state(client: &Client, namespace: &str, name: &str, state: State) -> Result<Kyma> {
    let api: Api<Kyma> = Api::namespaced(client.clone(), namespace);
    kyma_where(api, name, &format!("Kyma {name} to be {state}"), |k| {
        k.status.as_ref().is_some_and(|s| s.state == state)
    })
    .await
}

/// Waits by a watch until a Kyma fulfils a condition. The message of a timeout shows its last status.
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
