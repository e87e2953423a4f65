//! `certManagement: cert-manager`: CA and receiver's certificate come from `Certificate` objects of cert-manager's own CRDs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client, api::DeleteParams};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde_json::json;
use tidewatch_api::names::{
    AGENT_IDENTITY_SECRET, AGENT_SETTINGS, CA_SECRET, KCP_NAMESPACE, RUNTIME_NAMESPACE, SERVER_SECRET,
};
use tidewatch_certs::{
    is_issued_for,
    secret::{TLS_CRT, TlsFiles, from_secret, text},
};
use tidewatch_demo::fleet::kept_ca;
use tidewatch_real_only::real_only;
use tidewatch_tests::{
    ControlPlane, cert_manager, env,
    fleet::{self, Agent, Member, Receiver},
    mtls::served_certificate,
    observed, runtime_pool, story, wait,
};
use tokio::time::Instant;

use crate::{
    chart::{World, end},
    rotation::failures,
};

const SOON: Duration = Duration::from_mins(1);
const KYMA: &str = "wharf";

#[real_only("the fake API server checks no objects by the schemas of CRDs, and the Deployment needs pods")]
#[tokio::test(flavor = "multi_thread")]
async fn cert_manager_issues_and_renews_ca_and_server_certificate() -> Result<()> {
    let (env, alone) = (env::shared().await?, runtime_pool::alone().await?);
    let world = World::start("cert-manager", alone.cluster).await?;
    let began = Instant::now();
    // kubectl follows no links to folders.
    let crds = env.harness.tools()?.cert_manager_crds()?.canonicalize()?;
    let crds = crds.display();
    let apply = format!(
        "kubectl apply --server-side -f {crds} && kubectl wait --for=condition=Established -f {crds}"
    );
    world.shell.run(&apply).await?;
    println!("cert-manager's CRDs are established after {:.1?}", began.elapsed());
    every_certificate_is_accepted(&world).await?;
    tokio::select! {
        ended = cert_manager::issue(world.kcp.client()?, KCP_NAMESPACE) => match ended? {},
        ended = a_runtime_outlives_renewals(&world, alone.cluster) => {
            println!("{:.1?}", ended?);
            Ok(())
        }
    }
}

#[derive(Debug)]
#[expect(dead_code, reason = "printed")]
struct Times {
    helm_install_to_a_proven_runtime: Duration,
    renewed_certificate_to_served: [Duration; 2],
    renewed_ca_to_runtime: Duration,
}

fn values(world: &World) -> String {
    let url = format!("https://127.0.0.1:{}", world.ports.events);
    let registries =
        format!("image.registry=registry.example.com/tidewatch,modules.registry={}", world.modules);
    format!("--set {registries},agent.url={url},certManagement=cert-manager")
}

/// Strict validation refuses fields that the CRDs do not have. An installation by Helm drops them. The take-over's objects need Istio.
async fn every_certificate_is_accepted(world: &World) -> Result<()> {
    let few = values(world);
    let all =
        format!("{few} --values deploy/charts/tidewatch/tests/everything.yaml --set rbac.takeover=false");
    for arguments in [few, all] {
        world.shell.is_accepted(KCP_NAMESPACE, &arguments, &["monitoring.coreos.com"]).await?;
    }
    Ok(())
}

async fn a_runtime_outlives_renewals(world: &World, cluster: &ControlPlane) -> Result<Times> {
    let (kcp, runtime) = (world.kcp.client()?, cluster.client()?);
    let began = Instant::now();
    let install = "helm install tidewatch deploy/charts/tidewatch --namespace kcp-system";
    let issued = "kubectl -n kcp-system wait certificate --all --for=condition=Ready --timeout=60s";
    world.shell.run(&format!("{install} {} && {issued}", values(world))).await?;
    let mut receiver = world.start_receiver().await?;
    ensure!(
        served_certificate(&receiver).await? == kept_certificate(&kcp).await?,
        "another certificate is served"
    );
    let member = Member { cluster, kyma: KYMA, id: KYMA };
    let register = format!("tidewatch runtime add {KYMA} --kubeconfig runtime.yaml --wait");
    let env = env::shared().await?;
    let (added, agent) =
        tokio::join!(world.shell.run(&register), Agent::start(&env.harness, &receiver, &member));
    added?;
    let mut agent = agent?;
    let helm_install_to_a_proven_runtime = began.elapsed();

    let before = failures(&agent).await?;
    let first = a_new_server_certificate_is_served(&kcp, &receiver).await?;
    an_event_arrives(world, &runtime, "first").await?;
    let renewed_ca_to_runtime = a_renewed_ca_reaches_the_runtime(&kcp, &runtime).await?;
    let second = a_new_server_certificate_is_served(&kcp, &receiver).await?;
    an_event_arrives(world, &runtime, "second").await?;
    let after = failures(&agent).await?;
    ensure!(after == before, "failures: {before:?}, then {after:?}");

    // The renewed CA has the same key: certificates from before connect again, with the former CA in the agent's file.
    agent.process.kill().await?;
    agent.start_again().await?;
    agent.connected().await?;
    an_event_arrives(world, &runtime, "third").await?;

    replace_ca(&kcp, &runtime, &mut receiver, &agent).await?;
    enrols_again(&runtime, &receiver).await?;
    an_event_arrives(world, &runtime, "fourth").await?;
    agent.connected().await?;
    observed::no_panic(&agent.process)?;
    end(receiver.process).await?;
    let renewed_certificate_to_served = [first, second];
    Ok(Times { helm_install_to_a_proven_runtime, renewed_certificate_to_served, renewed_ca_to_runtime })
}

async fn kept(kcp: &Client, name: &str) -> Result<TlsFiles> {
    let secrets: Api<Secret> = Api::namespaced(kcp.clone(), KCP_NAMESPACE);
    Ok(from_secret(&secrets.get(name).await?)?)
}

async fn kept_certificate(kcp: &Client) -> Result<CertificateDer<'static>> {
    CertificateDer::from_pem_slice(kept(kcp, SERVER_SECRET).await?.cert_pem.as_bytes()).context("the Secret")
}

async fn a_new_server_certificate_is_served(kcp: &Client, receiver: &Receiver) -> Result<Duration> {
    let before = kept_certificate(kcp).await?;
    cert_manager::renew(kcp, KCP_NAMESPACE, SERVER_SECRET).await?;
    let renewed = kept_certificate(kcp).await?;
    ensure!(renewed != before, "the issuer has changed nothing");
    let began = Instant::now();
    wait::until("the renewed certificate to be served", SOON, || async {
        Ok((served_certificate(receiver).await? == renewed).then_some(()))
    })
    .await?;
    Ok(began.elapsed())
}

async fn a_renewed_ca_reaches_the_runtime(kcp: &Client, runtime: &Client) -> Result<Duration> {
    let before = kept(kcp, CA_SECRET).await?;
    cert_manager::renew(kcp, KCP_NAMESPACE, CA_SECRET).await?;
    let renewed = kept(kcp, CA_SECRET).await?;
    ensure!(
        renewed.cert_pem != before.cert_pem && renewed.key_pem == before.key_pem,
        "the CA must keep its key"
    );
    let began = Instant::now();
    has_ca(runtime, &renewed.cert_pem).await?;
    Ok(began.elapsed())
}

/// Deletes both Secrets, so that the issuer makes a CA with another key, and mounts it for the agent.
async fn replace_ca(kcp: &Client, runtime: &Client, receiver: &mut Receiver, agent: &Agent) -> Result<()> {
    let before = kept(kcp, CA_SECRET).await?;
    let secrets: Api<Secret> = Api::namespaced(kcp.clone(), KCP_NAMESPACE);
    for name in [CA_SECRET, SERVER_SECRET] {
        secrets.delete(name, &DeleteParams::default()).await?;
    }
    receiver.ca = wait::until("another CA", SOON, || async {
        let ca = kept_ca(kcp, KCP_NAMESPACE).await?;
        Ok((*ca.key_pem() != before.key_pem).then_some(ca))
    })
    .await?;
    wait::until("a certificate of the other CA to be served", SOON, || async {
        Ok((served_certificate(receiver).await? == kept_certificate(kcp).await?).then_some(()))
    })
    .await?;
    has_ca(runtime, receiver.ca.cert_pem()).await?;
    let mounted = agent.identity.cert.parent().context("no folder")?.join("ca.crt");
    Ok(std::fs::write(mounted, receiver.ca.cert_pem())?)
}

/// Waits until the agent has a certificate of the receiver's CA. It checks its files every 30 s.
async fn enrols_again(runtime: &Client, receiver: &Receiver) -> Result<()> {
    let secrets: Api<Secret> = Api::namespaced(runtime.clone(), RUNTIME_NAMESPACE);
    wait::until("the agent to enrol again", 2 * SOON, || async {
        let certificate = text(&secrets.get(AGENT_IDENTITY_SECRET).await?, TLS_CRT)?;
        Ok(is_issued_for(certificate.as_bytes(), KYMA, receiver.ca.cert_pem().as_bytes())?.then_some(()))
    })
    .await
}

/// Waits until the runtime's agent gets this CA.
async fn has_ca(runtime: &Client, ca: &str) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(runtime.clone(), RUNTIME_NAMESPACE);
    wait::until("the CA to be in the runtime", SOON, || async {
        let data = maps.get(AGENT_SETTINGS).await?.data.unwrap_or_default();
        Ok((data.get("ca.crt").map(String::as_str) == Some(ca)).then_some(()))
    })
    .await
}

/// Enables a module that does not exist. The event alone makes the engine look at the Kyma of a proven runtime.
async fn an_event_arrives(world: &World, runtime: &Client, module: &str) -> Result<()> {
    story::set_modules(runtime, &json!([{"name": module}])).await?;
    let has_module = |kyma: &tidewatch_api::Kyma| kyma.module_status(module).is_some();
    fleet::kyma_where(world.kymas()?, KYMA, "the event's module", has_module).await.map(drop)
}
