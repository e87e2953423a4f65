//! A fleet for demo and tests: what stands in KCP, the receiver, and one agent per runtime.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
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
use tidewatch_certs::{Ca, ClientRequest, Issued, ServerRequest};
use tidewatch_engine::oci::{ModulePackage, Pushed, Registry, RegistryConfig, push};

use crate::{ControlPlane, Harness, Process, binaries, cluster::ADMIN, fixtures, http, ports, wait};

/// The user that an agent is in its runtime: its service account's, so that it may do what the shipped role allows,
/// and no more.
pub const AGENT_USER: &str = "system:serviceaccount:kyma-system:tidewatch-agent";
/// The field manager of what demo and tests apply.
const MANAGER: &str = "tidewatch-tests";
/// For anything that should take a second or two.
const SOON: Duration = Duration::from_mins(1);

/// A runtime to register.
#[derive(Clone, Copy)]
pub struct Member<'a> {
    /// Its control plane.
    pub cluster: &'a ControlPlane,
    /// Name of its Kyma in KCP.
    pub kyma: &'a str,
    /// Its runtime id.
    pub id: &'a str,
}

impl Member<'_> {
    /// The domain that is registered for it.
    pub fn domain(&self) -> String {
        format!("{}.runtimes.example", self.kyma)
    }
}

/// Certificates and where they are.
pub struct Identity {
    /// The certificate and key.
    pub issued: Issued,
    /// The certificate's file.
    pub cert: PathBuf,
    /// The key's file.
    pub key: PathBuf,
}

/// One receiver on one KCP namespace.
pub struct Receiver {
    /// The CA of its event path.
    pub ca: Ca,
    /// The CA's certificate file.
    pub ca_file: PathBuf,
    /// `https://127.0.0.1:port`
    pub url: String,
    /// `http://127.0.0.1:port`
    pub admin: String,
    /// The running program.
    pub process: Process,
    /// The namespace in KCP.
    pub namespace: String,
}

/// One agent.
pub struct Agent {
    /// `http://127.0.0.1:port`
    pub admin: String,
    /// Its certificate.
    pub identity: Identity,
    /// The running program.
    pub process: Process,
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
pub async fn register(client: &Client, namespace: &str, member: &Member<'_>) -> Result<()> {
    put_kubeconfig(client, namespace, member.kyma, &member.cluster.kubeconfig_yaml(ADMIN)?).await?;
    let api: Api<Kyma> = Api::namespaced(client.clone(), namespace);
    let body = json!({
        "apiVersion": "operator.kyma-project.io/v1beta2", "kind": "Kyma",
        "metadata": {"name": member.kyma, "labels": {labels::RUNTIME_ID: member.id},
                     "annotations": {annotations::SKR_DOMAIN: member.domain()}},
        "spec": {"channel": "regular"}
    });
    api.patch(member.kyma, &PatchParams::apply(MANAGER).force(), &Patch::Apply(body)).await?;
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

impl Receiver {
    /// Starts a receiver on a namespace of a KCP, with a CA of its own, and waits until it is ready.
    pub async fn start(
        harness: &Harness,
        kcp: &ControlPlane,
        namespace: &str,
        modules: &str,
    ) -> Result<Self> {
        Self::start_with(harness, kcp, namespace, modules, |_| Ok(Vec::new())).await
    }

    /// Starts a receiver with further arguments, which may need the CA of its event path.
    pub async fn start_with(
        harness: &Harness,
        kcp: &ControlPlane,
        namespace: &str,
        modules: &str,
        more: impl FnOnce(&Ca) -> Result<Vec<String>>,
    ) -> Result<Self> {
        let now = Timestamp::now();
        let ca = Ca::create("tidewatch-event-path", SignedDuration::from_hours(24 * 365), now)?;
        let issued = ca.issue_server(
            &ServerRequest {
                common_name: "tidewatch-receiver".to_owned(),
                dns_names: vec!["localhost".to_owned()],
                ip_addrs: vec!["127.0.0.1".parse()?],
                validity: SignedDuration::from_hours(24 * 60),
            },
            now,
        )?;
        let folder = format!("receiver-{namespace}");
        let ca_file = harness.write(&format!("{folder}/ca.crt"), ca.cert_pem())?;
        let server = write_identity(harness, &format!("{folder}/server"), issued)?;
        let kubeconfig = harness.write(&format!("{folder}/kcp.yaml"), &kcp.kubeconfig_yaml(ADMIN)?)?;
        let (events, admin) = (ports::free()?, ports::free()?);
        let text = |p: &PathBuf| p.display().to_string();
        let mut args = vec![
            format!("--listen=127.0.0.1:{events}"),
            format!("--admin=127.0.0.1:{admin}"),
            format!("--client-ca={}", text(&ca_file)),
            format!("--tls-cert={}", text(&server.cert)),
            format!("--tls-key={}", text(&server.key)),
            format!("--kubeconfig={}", text(&kubeconfig)),
            format!("--namespace={namespace}"),
            format!("--modules={modules}"),
            "--log-format=text".to_owned(),
            "--log-level=info,tidewatch_engine=trace,tidewatch_receiver=debug,tidewatch_listener=debug"
                .to_owned(),
        ];
        let more = more(&ca)?;
        // A lost event is a failed test, except where polling is the test.
        if !more.iter().any(|arg| arg.starts_with("--fallback-poll")) {
            args.extend(["--fallback-poll=0", "--safety-resync=0"].map(str::to_owned));
        }
        args.extend(more);
        let mut spec =
            harness.spec(&format!("{folder}/receiver"), &binaries::find("tidewatch-receiver")?, args);
        spec.grace = Duration::from_secs(10);
        let process = Process::start(&spec)?;
        let admin = format!("http://127.0.0.1:{admin}");
        let url = format!("https://127.0.0.1:{events}");
        let receiver = Self { ca, ca_file, url, admin, process, namespace: namespace.to_owned() };
        receiver.ready().await?;
        Ok(receiver)
    }

    async fn ready(&self) -> Result<()> {
        let url = format!("{}/readyz", self.admin);
        self.process
            .ready("to answer /readyz", SOON, || async {
                Ok((http::status(&url).await? == hyper::StatusCode::OK).then_some(()))
            })
            .await
    }

    /// Ends it and starts it again, with the same addresses and certificates, and waits until it is ready.
    pub async fn restart(&mut self) -> Result<()> {
        self.process.begin_end();
        wait::until("the receiver to end", SOON, || async { Ok(self.process.ended()) }).await?;
        self.start_again().await
    }

    /// Starts it again after it has ended or was killed, and waits until it is ready. Its log begins anew.
    pub async fn start_again(&mut self) -> Result<()> {
        self.process = Process::start(self.process.spec())?;
        self.ready().await
    }

    /// Issues an agent's certificate.
    pub fn identity(&self, harness: &Harness, runtime_id: &str, domain: &str) -> Result<Identity> {
        let request = ClientRequest {
            runtime_id: runtime_id.to_owned(),
            dns_names: vec![domain.to_owned()],
            organizations: Vec::new(),
            validity: SignedDuration::from_hours(24 * 60),
        };
        let issued = self.ca.issue_client(&request, Timestamp::now())?;
        write_identity(harness, &format!("receiver-{}/{runtime_id}", self.namespace), issued)
    }

    /// What was done for a runtime, and why.
    pub async fn runtime(&self, id: &str) -> Result<Value> {
        http::json(&format!("{}/runtimes/{id}", self.admin)).await
    }
}

fn write_identity(harness: &Harness, name: &str, issued: Issued) -> Result<Identity> {
    let cert = harness.write(&format!("{name}.crt"), &issued.cert_pem)?;
    let key = harness.write(&format!("{name}.key"), issued.key_pem.as_str())?;
    Ok(Identity { issued, cert, key })
}

/// The watches of an agent in demo and tests: the user's wishes, the modules' workloads, and what the end of
/// a module waits for.
pub fn watches() -> Value {
    let modules = json!({labels::MANAGED_BY: labels::MANAGED_BY_RUNTIME});
    json!([
        {"name": "kyma", "group": "operator.kyma-project.io", "resource": "kymas", "field": "spec",
         "labels": {labels::WATCHED_BY: labels::WATCHED_BY_KYMA}},
        {"name": "deployments", "group": "apps", "resource": "deployments", "field": "spec",
         "labels": modules},
        {"name": "deployments-status", "group": "apps", "resource": "deployments", "field": "status",
         "labels": modules},
        {"name": "namespaces", "resource": "namespaces", "field": "spec", "labels": modules},
        {"name": "crds", "group": "apiextensions.k8s.io", "resource": "customresourcedefinitions", "field": "spec",
         "labels": modules},
    ])
}

impl Agent {
    /// Starts the agent in a registered runtime, and waits until its receiver is connected, it has its configuration
    /// from the engine, and all its watches watch.
    pub async fn start(harness: &Harness, receiver: &Receiver, member: &Member<'_>) -> Result<Self> {
        let identity = receiver.identity(harness, member.id, &member.domain())?;
        let agent = Self::start_with(harness, receiver, member, identity, watches()).await?;
        let configured = || async {
            let status = agent.status().await?;
            Ok((status["configuration"]["configMap"]["state"] == "Applied").then_some(()))
        };
        agent.process.ready("to have its configuration", SOON, configured).await?;
        agent.connected().await?;
        Ok(agent)
    }

    /// Starts an agent with watches of one's own; it is not waited for.
    pub async fn start_with(
        harness: &Harness,
        receiver: &Receiver,
        member: &Member<'_>,
        identity: Identity,
        watches: Value,
    ) -> Result<Self> {
        Self::start_speaking("v3", harness, receiver, member, identity, watches).await
    }

    /// As [`Agent::start_with`], in a version of the contract. The agent's user gets the role that ships.
    pub async fn start_speaking(
        protocol: &str,
        harness: &Harness,
        receiver: &Receiver,
        member: &Member<'_>,
        identity: Identity,
        watches: Value,
    ) -> Result<Self> {
        let (to_receiver, to_api) = (&receiver.url, member.cluster.url());
        Self::start_through(to_receiver, to_api, protocol, harness, receiver, member, identity, watches).await
    }

    /// As [`Agent::start_speaking`], with what it connects to at other addresses.
    #[expect(clippy::too_many_arguments, reason = "each is another thing that some test varies")]
    pub async fn start_through(
        to_receiver: &str,
        to_api: &str,
        protocol: &str,
        harness: &Harness,
        receiver: &Receiver,
        member: &Member<'_>,
        identity: Identity,
        watches: Value,
    ) -> Result<Self> {
        let client = member.cluster.client()?;
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": RUNTIME_NAMESPACE}});
        apply_yaml(&client, &namespace.to_string()).await?;
        apply_yaml(&client, include_str!("../../deploy/agent/rbac.yaml")).await?;
        let admin = ports::free()?;
        let folder = format!("agent-{}-{}", receiver.namespace, member.kyma);
        let kubeconfig = member.cluster.kubeconfig_yaml_through(AGENT_USER, to_api)?;
        let kubeconfig = harness.write(&format!("{folder}/runtime.yaml"), &kubeconfig)?;
        let config = json!({
            "runtimeId": member.id,
            "receiver": {"url": to_receiver, "caFile": receiver.ca_file, "certFile": identity.cert, "keyFile": identity.key,
                         "protocol": protocol},
            "adminAddress": format!("127.0.0.1:{admin}"),
            "kubeconfig": kubeconfig,
            "configMap": {"namespace": RUNTIME_NAMESPACE, "name": AGENT_CONFIG_MAP},
            "watches": watches,
        });
        let config = harness.write(&format!("{folder}/agent.yaml"), &config.to_string())?;
        let args = vec![
            format!("--config={}", config.display()),
            "--log-format=text".to_owned(),
            "--log-level=info,tidewatch_agent=debug".to_owned(),
        ];
        let mut spec = harness.spec(&format!("{folder}/agent"), &binaries::find("tidewatch-agent")?, args);
        spec.grace = Duration::from_secs(12);
        let process = Process::start(&spec)?;
        let agent = Self { admin: format!("http://127.0.0.1:{admin}"), identity, process };
        agent.lives().await?;
        Ok(agent)
    }

    async fn lives(&self) -> Result<()> {
        let url = format!("{}/healthz", self.admin);
        self.process
            .ready("to answer /healthz", SOON, || async {
                Ok((http::status(&url).await? == hyper::StatusCode::OK).then_some(()))
            })
            .await
    }

    /// Starts it again after it has ended or was killed; it is not waited for. Its log begins anew.
    pub async fn start_again(&mut self) -> Result<()> {
        self.process = Process::start(self.process.spec())?;
        self.lives().await
    }

    /// Its status page.
    pub async fn status(&self) -> Result<Value> {
        http::json(&format!("{}/status", self.admin)).await
    }

    /// Waits until everything it has seen was acknowledged and all watches watch, those of KCP's Watchers included.
    pub async fn connected(&self) -> Result<()> {
        self.process
            .ready("to be connected, with all watches watching and nothing unacknowledged", SOON, || async {
                let status = self.status().await?;
                let watches = status["watches"].as_array().cloned().unwrap_or_default();
                let watching = !watches.is_empty() && watches.iter().all(|w| w["reason"] == "Watching");
                Ok((watching && status["receiver"]["connected"] == true && status["dirtyKeys"] == 0)
                    .then_some(()))
            })
            .await
    }
}

/// Applies every document of a YAML text (of kinds that RBAC and core know).
pub async fn apply_yaml(client: &Client, yaml: &str) -> Result<()> {
    let runtime = tidewatch_engine::runtime::RuntimeClient::new(client.clone(), SOON);
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

/// Waits until a number of reconciles is in hand or waiting: none.
pub async fn settled(receiver: &Receiver) -> Result<()> {
    wait::until("the receiver's queue to be empty", SOON, || async {
        let metrics = http::text(&format!("{}/metrics", receiver.admin)).await?;
        let busy: f64 = metrics
            .lines()
            .filter(|l| {
                l.starts_with("tidewatch_receiver_queue_") || l.starts_with("tidewatch_receiver_events_held")
            })
            .filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok())
            .sum();
        Ok((busy == 0.0).then_some(()))
    })
    .await
}

/// Fails if a process has ended.
pub fn alive(process: &Process) -> Result<()> {
    ensure!(
        process.ended().is_none(),
        "{} has ended; its last lines:\n{}",
        process.name(),
        process.log_tail(30)
    );
    Ok(())
}
