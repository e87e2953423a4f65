//! The engine installs agents, and they enrol by the API of their runtimes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::{
    ByteString,
    api::{
        apps::v1::Deployment,
        certificates::v1::CertificateSigningRequest,
        core::v1::{ConfigMap, Secret, ServiceAccount},
    },
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;
use tidewatch_api::{
    State,
    names::{AGENT_IDENTITY_SECRET, AGENT_NAME, AGENT_SIGNING_REQUEST, RUNTIME_NAMESPACE},
};
use tidewatch_certs::{create_key, create_request};
use tidewatch_tests::{
    ControlPlane, binaries, env,
    fleet::{self, Agent, Member, Receiver},
    observed,
    runtime_pool::{self, Alone},
    spare, wait,
};

const SOON: Duration = Duration::from_mins(1);
const SIGNER: &str = "tidewatch.kyma-project.io/agent";

/// A receiver that installs agents, with one registered runtime.
struct Enrolling {
    receiver: Receiver,
    cluster: &'static ControlPlane,
    runtime: Client,
    kyma: &'static str,
    // Last field: the receiver ends before another test gets the runtime.
    _alone: Alone,
}

impl Enrolling {
    async fn start(namespace: &'static str, kyma: &'static str, more: Vec<String>) -> Result<Self> {
        let (env, alone) = (env::shared().await?, runtime_pool::alone().await?);
        let cluster = alone.cluster;
        spare::take_over(cluster).await?;
        let kcp = env.kcp.client()?;
        fleet::prepare_kcp(&kcp, namespace).await?;
        let modules = env.registry.of(namespace);
        let receiver = Receiver::start_enrolling(&env.harness, &env.kcp, namespace, &modules, more).await?;
        let this = Self { receiver, cluster, runtime: cluster.client()?, kyma, _alone: alone };
        fleet::register(&kcp, namespace, &this.member()).await?;
        fleet::kyma_in_state(&kcp, namespace, kyma, State::Ready).await?;
        Ok(this)
    }

    fn member(&self) -> Member<'static> {
        Member { cluster: self.cluster, kyma: self.kyma, id: self.kyma }
    }

    async fn agent(&self) -> Result<Agent> {
        Agent::start_installed(&env::shared().await?.harness, &self.receiver, &self.member()).await
    }

    async fn is_proven(&self) -> Result<()> {
        wait::until("the event path to be proven", SOON, || async {
            let runtime = self.receiver.runtime(self.kyma).await?;
            ensure!(runtime["eventPath"] == "proven", "{}", runtime["eventPath"]);
            Ok(Some(()))
        })
        .await
    }

    /// Creates a request, and returns it once it is decided.
    async fn decided(&self, client: &Client, usages: &[&str]) -> Result<CertificateSigningRequest> {
        let request = create_request(&create_key()?)?;
        let body = json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"name": AGENT_SIGNING_REQUEST, "labels": {"app.kubernetes.io/name": AGENT_NAME}},
            "spec": {"signerName": SIGNER, "usages": usages, "request": ByteString(request.into_bytes())}
        });
        let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
        requests.create(&PostParams::default(), &serde_json::from_value(body)?).await?;
        let admin: Api<CertificateSigningRequest> = Api::all(self.runtime.clone());
        let decided = wait::until("a decision about the request", SOON, || async {
            let request = admin.get(AGENT_SIGNING_REQUEST).await?;
            let status = request.status.clone().unwrap_or_default();
            let mut conditions = status.conditions.iter().flatten();
            let is_denied = conditions.any(|condition| condition.type_ == "Denied");
            Ok((is_denied || status.certificate.is_some()).then_some(request))
        })
        .await?;
        admin.delete(AGENT_SIGNING_REQUEST, &DeleteParams::default()).await?;
        Ok(decided)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registered_runtime_gets_an_agent_that_enrols_itself() -> Result<()> {
    let world = Enrolling::start("kcp-enrolment", "jetty", Vec::new()).await?;
    let agent = world.agent().await?;
    world.is_proven().await?;

    // The key is in the runtime alone, and the request is used up.
    let secrets: Api<Secret> = Api::namespaced(world.runtime.clone(), RUNTIME_NAMESPACE);
    let data = secrets.get(AGENT_IDENTITY_SECRET).await?.data.context("the Secret is empty")?;
    ensure!(data.contains_key("tls.key") && data.contains_key("tls.crt"), "{:?}", data.keys());
    let requests: Api<CertificateSigningRequest> = Api::all(world.runtime.clone());
    ensure!(requests.get_opt(AGENT_SIGNING_REQUEST).await?.is_none(), "the request has stayed");

    // A restarted agent uses the stored certificate.
    let before = agent.identity.issued.cert_pem.clone();
    drop(agent);
    let again = world.agent().await?;
    ensure!(again.identity.issued.cert_pem == before, "the agent has enrolled again");
    observed::no_panic(&world.receiver.process)?;
    observed::no_panic(&again.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_installed_agents_objects_are_restored_and_go_with_the_kyma() -> Result<()> {
    let world = Enrolling::start("kcp-agent-removal", "groyne", Vec::new()).await?;
    let agent = world.agent().await?;
    world.is_proven().await?;
    let kcp = env::shared().await?.kcp.client()?;
    let kymas: Api<tidewatch_api::Kyma> = Api::namespaced(kcp, &world.receiver.namespace);
    kymas.delete(world.kyma, &DeleteParams::default()).await?;
    wait::until("the Kyma to go", SOON, || async {
        Ok(kymas.get_opt(world.kyma).await?.is_none().then_some(()))
    })
    .await?;
    let deployments: Api<Deployment> = Api::namespaced(world.runtime.clone(), RUNTIME_NAMESPACE);
    ensure!(deployments.get_opt(AGENT_NAME).await?.is_none(), "the Deployment has stayed");
    let accounts: Api<ServiceAccount> = Api::namespaced(world.runtime.clone(), RUNTIME_NAMESPACE);
    ensure!(accounts.get_opt(AGENT_NAME).await?.is_none(), "the service account has stayed");
    let secrets: Api<Secret> = Api::namespaced(world.runtime.clone(), RUNTIME_NAMESPACE);
    ensure!(secrets.get_opt(AGENT_IDENTITY_SECRET).await?.is_none(), "the key has stayed");
    let maps: Api<ConfigMap> = Api::namespaced(world.runtime.clone(), RUNTIME_NAMESPACE);
    ensure!(maps.get_opt(AGENT_NAME).await?.is_none(), "the settings have stayed");
    observed::no_panic(&agent.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_others_and_for_servers_are_denied_with_a_reason() -> Result<()> {
    let world = Enrolling::start("kcp-denied", "breakwater", Vec::new()).await?;
    let reason = |request: &CertificateSigningRequest| {
        let status = request.status.clone().unwrap_or_default();
        let denied = status.conditions.into_iter().flatten().find(|condition| condition.type_ == "Denied");
        denied.and_then(|condition| condition.reason).unwrap_or_default()
    };
    // The runtime's admin is not its agent.
    let foreign = world.decided(&world.runtime, &["digital signature", "client auth"]).await?;
    ensure!(reason(&foreign) == "WrongUser", "{:#?}", foreign.status);
    let agent = world.cluster.client_of(fleet::AGENT_USER)?;
    let server = world.decided(&agent, &["digital signature", "server auth"]).await?;
    ensure!(reason(&server) == "WrongUsage", "{:#?}", server.status);
    let own = world.decided(&agent, &["digital signature", "client auth"]).await?;
    ensure!(own.status.and_then(|status| status.certificate).is_some(), "the agent's own request is signed");
    // Two denied requests do not keep the agent from enrolling.
    world.agent().await?;
    observed::no_panic(&world.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_runtime_is_cut_off_until_it_is_admitted() -> Result<()> {
    // Polls find the request of an agent that is cut off.
    let polls = ["--proven-for=2", "--unknown-grace=1", "--fallback-poll=1"].map(str::to_owned);
    let world = Enrolling::start("kcp-cut-off", "pontoon", polls.to_vec()).await?;
    let agent = world.agent().await?;
    world.is_proven().await?;
    let certs = async |command: &str| {
        let env = env::shared().await?;
        let kubeconfig = env.kcp.kubeconfig_yaml(tidewatch_tests::cluster::ADMIN)?;
        let kubeconfig = env.harness.write("kcp-cut-off/admin.yaml", &kubeconfig)?;
        let output = tokio::process::Command::new(binaries::find("tidewatch")?)
            .args(["certs", command, world.kyma, "-o=json", "--namespace=kcp-cut-off"])
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .output()
            .await?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        anyhow::Ok(serde_json::from_slice::<serde_json::Value>(&output.stdout)?)
    };
    let revoked = certs("revoke").await?;
    ensure!(revoked["revokedSince"].is_string(), "{revoked}");
    wait::until("the agent's connection to be closed", Duration::from_secs(5), || async {
        let receiver = &agent.status().await?["receiver"];
        let is_refused = receiver["lastError"].as_str().is_some_and(|error| error.contains("are revoked"));
        Ok((receiver["connected"] == false || is_refused).then_some(()))
    })
    .await?;
    // Its certificate is good, so it is refused at each request, and its own new request is denied.
    let client = world.cluster.client_of(fleet::AGENT_USER)?;
    let request = world.decided(&client, &["digital signature", "client auth"]).await?;
    let conditions = request.status.and_then(|status| status.conditions).unwrap_or_default();
    ensure!(conditions.iter().any(|c| c.reason.as_deref() == Some("Revoked")), "{conditions:#?}");
    ensure!(certs("revoke").await? == revoked, "a second revocation changes nothing");

    let admitted = certs("admit").await?;
    ensure!(admitted["revokedSince"].is_null(), "{admitted}");
    agent.connected().await?;
    ensure!(certs("admit").await.is_err(), "it is not revoked any more");
    observed::no_panic(&world.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agents_token_reads_no_secret_but_its_own() -> Result<()> {
    let world = Enrolling::start("kcp-token", "quay", Vec::new()).await?;
    let _agent = world.agent().await?;
    let stolen = world.cluster.client_of(fleet::AGENT_USER)?;
    let secrets: Api<Secret> = Api::namespaced(stolen.clone(), RUNTIME_NAMESPACE);
    secrets.get(AGENT_IDENTITY_SECRET).await.context("its own Secret")?;
    let forbidden = |error: kube::Error| matches!(error, kube::Error::Api(status) if status.code == 403);
    ensure!(secrets.get("another").await.is_err_and(forbidden), "it reads another Secret of its namespace");
    ensure!(
        secrets.list(&ListParams::default()).await.is_err_and(forbidden),
        "it lists the Secrets of its namespace"
    );
    let all: Api<Secret> = Api::all(stolen);
    ensure!(all.list(&ListParams::default()).await.is_err_and(forbidden), "it lists all Secrets");
    Ok(())
}
