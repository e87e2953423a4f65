//! The engine installs agents, and they enrol by the API of their runtimes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::try_join;
use k8s_openapi::{
    ByteString,
    api::{
        apps::v1::Deployment,
        certificates::v1::CertificateSigningRequest,
        core::v1::{ConfigMap, Secret},
    },
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma,
    names::{
        AGENT_IDENTITY_SECRET, AGENT_NAME, AGENT_SIGNING_REQUEST, GROUP, RUNTIME_KYMA_NAME,
        RUNTIME_NAMESPACE, VERSION, annotations,
    },
};
use tidewatch_certs::{Issued, create_key, create_request};
use tidewatch_tests::{
    fleet::{self, Agent, Member, Receiver},
    http,
    mtls::{Connection, Http, sized},
    observed,
    solo::Solo,
    spare, wait,
};
use tidewatch_tls::PeerIdentity;
use tidewatch_wire::v3;
use tokio::time::Instant;

use crate::rotation;

const SOON: Duration = Duration::from_mins(1);
const SIGNER: &str = "tidewatch.kyma-project.io/agent";

async fn is_proven(solo: &Solo) -> Result<()> {
    is_proven_at(&solo.receiver, solo.kyma).await
}

async fn is_proven_at(receiver: &Receiver, runtime: &str) -> Result<()> {
    wait::until("the event path to be proven", SOON, || async {
        let path = receiver.runtime(runtime).await?["eventPath"].clone();
        ensure!(path == "proven", "{path}");
        Ok(Some(()))
    })
    .await
}

/// Creates a request, and returns it once it is decided.
pub(super) async fn decided(
    solo: &Solo,
    client: &Client,
    usages: &[&str],
) -> Result<CertificateSigningRequest> {
    decided_of(solo, client, usages, create_request(&create_key()?)?).await
}

/// Like [`decided`], with a PKCS#10 request (PEM).
async fn decided_of(
    solo: &Solo,
    client: &Client,
    usages: &[&str],
    request: String,
) -> Result<CertificateSigningRequest> {
    let body = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": AGENT_SIGNING_REQUEST, "labels": {"app.kubernetes.io/name": AGENT_NAME}},
        "spec": {"signerName": SIGNER, "usages": usages, "request": ByteString(request.into_bytes())}
    });
    let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
    let body = serde_json::from_value(body)?;
    wait::until("the engine to install the agent's role", SOON, || async {
        requests.create(&PostParams::default(), &body).await.map(Some).map_err(Into::into)
    })
    .await?;
    let admin: Api<CertificateSigningRequest> = Api::all(solo.runtime.clone());
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

#[tokio::test(flavor = "multi_thread")]
async fn a_registered_runtime_gets_an_agent_that_enrols_itself() -> Result<()> {
    let solo = Solo::start_watched("kcp-enrolment", "jetty", Vec::new()).await?;
    let agent = solo.agent().await?;
    is_proven(&solo).await?;

    // The key is in the runtime alone, and the request is used up.
    let secrets: Api<Secret> = Api::namespaced(solo.runtime.clone(), RUNTIME_NAMESPACE);
    let data = secrets.get(AGENT_IDENTITY_SECRET).await?.data.context("the Secret is empty")?;
    ensure!(data.contains_key("tls.key") && data.contains_key("tls.crt"), "{:?}", data.keys());
    let requests: Api<CertificateSigningRequest> = Api::all(solo.runtime.clone());
    ensure!(requests.get_opt(AGENT_SIGNING_REQUEST).await?.is_none(), "the request has stayed");

    // A restarted agent uses the stored certificate.
    let before = agent.identity.issued.cert_pem.clone();
    drop(agent);
    let again = solo.agent().await?;
    ensure!(again.identity.issued.cert_pem == before, "the agent has enrolled again");
    observed::no_panic(&solo.receiver.process)?;
    observed::no_panic(&again.process)
}

/// Objects named tidewatch* in a runtime, of the kinds that an agent has.
async fn of_tidewatch(runtime: &Client) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for (group, version, kind) in [
        ("", "v1", "ConfigMap"),
        ("", "v1", "Secret"),
        ("", "v1", "ServiceAccount"),
        ("apps", "v1", "Deployment"),
        ("coordination.k8s.io", "v1", "Lease"),
        ("networking.k8s.io", "v1", "NetworkPolicy"),
        ("certificates.k8s.io", "v1", "CertificateSigningRequest"),
        ("rbac.authorization.k8s.io", "v1", "Role"),
        ("rbac.authorization.k8s.io", "v1", "RoleBinding"),
        ("rbac.authorization.k8s.io", "v1", "ClusterRole"),
        ("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding"),
    ] {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let all: Api<DynamicObject> = Api::all_with(runtime.clone(), &resource);
        let names = all.list_metadata(&ListParams::default()).await?.into_iter();
        let names = names.filter(|object| object.namespace().as_deref() != Some("tidewatch-system"));
        let names = names.map(|object| object.name_any()).filter(|name| name.starts_with("tidewatch"));
        // The engine's own rights, of a test of registrations.
        let names = names.filter(|name| name != "tidewatch-engine");
        found.extend(names.map(|name| format!("{kind}/{name}")));
    }
    Ok(found)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_more_runtime_is_proven_beside_a_connected_agent() -> Result<()> {
    let solo = Solo::start_watched("kcp-one-more", "spit", Vec::new()).await?;
    let first = solo.agent().await?;
    is_proven(&solo).await?;
    let spare = spare::shared().await?;
    let _only = spare.register_alone().await;
    spare::take_over(&spare.runtime3).await?;
    let member = Member { cluster: &spare.runtime3, kyma: "reef", id: "reef" };
    let began = Instant::now();
    fleet::register(&solo.kcp, solo.namespace, &member).await?;
    let proven = async {
        is_proven_at(&solo.receiver, member.id).await?;
        Ok(began.elapsed())
    };
    let (agent, proven) = try_join(Agent::start(&solo.env.harness, &solo.receiver, &member), proven).await?;
    println!("one more runtime registered to its event path proven: {proven:.1?}");
    first.connected().await?;
    observed::no_panic(&agent.process)?;
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_installed_agent_goes_with_the_kyma_and_comes_with_the_next_one() -> Result<()> {
    let solo = Solo::start_watched("kcp-agent-removal", "groyne", Vec::new()).await?;
    let agent = solo.agent().await?;
    is_proven(&solo).await?;
    // As an agent whose objects another manager watches.
    let names = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "tidewatch-agent-names-f", "namespace": RUNTIME_NAMESPACE}});
    fleet::apply_yaml(&solo.runtime, &names.to_string()).await?;
    wait::until("the agent to store its digest", SOON, || async {
        let there = of_tidewatch(&solo.runtime).await?;
        Ok(there.contains(&"ConfigMap/tidewatch-agent-digest".to_owned()).then_some(()))
    })
    .await?;
    let kymas: Api<Kyma> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    kymas.delete(solo.kyma, &DeleteParams::default()).await?;
    wait::until("the Kyma to go", SOON, || async {
        Ok(kymas.get_opt(solo.kyma).await?.is_none().then_some(()))
    })
    .await?;
    let left = of_tidewatch(&solo.runtime).await?;
    ensure!(left.is_empty(), "{left:?} has stayed");
    observed::no_panic(&agent.process)?;
    let before = agent.identity.issued.cert_pem.clone();
    drop(agent);

    fleet::register(&solo.kcp, solo.namespace, &solo.member()).await?;
    let next = solo.agent().await?;
    ensure!(next.identity.issued.cert_pem != before, "the certificate of the removed agent is used");
    is_proven(&solo).await?;
    observed::no_panic(&next.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_from_before_a_new_registration_is_refused_and_replaced() -> Result<()> {
    let solo = Solo::start_watched("kcp-registered-again", "spillway", Vec::new()).await?;
    let agent = solo.agent().await?;
    is_proven(&solo).await?;
    let before = agent.identity.issued.clone();
    drop(agent);
    let kymas: Api<Kyma> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    kymas.delete(solo.kyma, &DeleteParams::default()).await?;
    wait::until("the Kyma to go", SOON, || async {
        Ok(kymas.get_opt(solo.kyma).await?.is_none().then_some(()))
    })
    .await?;
    fleet::register(&solo.kcp, solo.namespace, &solo.member()).await?;
    let stolen = wait::until("the runtime to be known", SOON, || async {
        let mut connection = Connection::open(&solo.receiver, Some(&before), Http::H2).await?;
        let answer = connection.send("POST", v3::PATH, sized("{}")).await?;
        let text = String::from_utf8_lossy(answer.body()).into_owned();
        Ok((!text.contains("unknown-runtime")).then_some((answer.status(), text)))
    })
    .await?;
    ensure!(stolen.0 == 403 && stolen.1.contains("issued-before-registration"), "{stolen:?}");

    // As after a forced deletion, which leaves the Secret in the runtime.
    let secrets: Api<Secret> = Api::namespaced(solo.runtime.clone(), RUNTIME_NAMESPACE);
    wait::until("the agent to be installed again", SOON, || async {
        Ok(secrets.get_opt(AGENT_IDENTITY_SECRET).await?.map(drop))
    })
    .await?;
    let data = json!({"stringData": {"tls.crt": before.cert_pem, "tls.key": before.key_pem.as_str()}});
    secrets.patch(AGENT_IDENTITY_SECRET, &PatchParams::default(), &Patch::Merge(&data)).await?;
    let again = solo.agent().await?;
    is_proven(&solo).await?;
    let data = secrets.get(AGENT_IDENTITY_SECRET).await?.data.context("the Secret is empty")?;
    ensure!(data["tls.crt"].0 != before.cert_pem.as_bytes(), "the agent has kept the refused certificate");
    observed::no_panic(&again.process)?;
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_others_and_for_servers_are_denied_with_a_reason() -> Result<()> {
    let solo = Solo::start_watched("kcp-denied", "breakwater", Vec::new()).await?;
    let reason = |request: &CertificateSigningRequest| {
        let status = request.status.clone().unwrap_or_default();
        let denied = status.conditions.into_iter().flatten().find(|condition| condition.type_ == "Denied");
        denied.and_then(|condition| condition.reason).unwrap_or_default()
    };
    // The runtime's admin is not its agent.
    let foreign = decided(&solo, &solo.runtime, &["digital signature", "client auth"]).await?;
    ensure!(reason(&foreign) == "WrongUser", "{:#?}", foreign.status);
    // Neither is a service account of the agent's name and rights in another namespace.
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "other-agent"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": AGENT_NAME},
        "subjects": [{"kind": "ServiceAccount", "name": AGENT_NAME, "namespace": "default"}]
    });
    fleet::apply_yaml(&solo.runtime, &binding.to_string()).await?;
    let other = solo.cluster.client_of(spare::OTHER_ACCOUNT)?;
    let foreign = decided(&solo, &other, &["digital signature", "client auth"]).await?;
    ensure!(reason(&foreign) == "WrongUser", "{:#?}", foreign.status);
    let agent = solo.cluster.client_of(fleet::AGENT_USER)?;
    let server = decided(&solo, &agent, &["digital signature", "server auth"]).await?;
    ensure!(reason(&server) == "WrongUsage", "{:#?}", server.status);
    let own = decided(&solo, &agent, &["digital signature", "client auth"]).await?;
    ensure!(own.status.and_then(|status| status.certificate).is_some(), "the agent's own request is signed");
    // Two denied requests do not keep the agent from enrolling.
    solo.agent().await?;
    observed::no_panic(&solo.receiver.process)
}

/// Subject and alternative name of `runtime-two`; its key is gone.
const OTHER_RUNTIME: &str = include_str!("other_runtime.csr");

#[tokio::test(flavor = "multi_thread")]
async fn a_request_for_another_runtimes_name_gets_the_registered_names() -> Result<()> {
    let solo = Solo::start_watched("kcp-other-name", "headland", Vec::new()).await?;
    let agent = solo.cluster.client_of(fleet::AGENT_USER)?;
    let signed =
        decided_of(&solo, &agent, &["digital signature", "client auth"], OTHER_RUNTIME.to_owned()).await?;
    let pem = signed.status.and_then(|status| status.certificate).context("it is not signed")?;
    let peer = PeerIdentity::from_leaf(&CertificateDer::from_pem_slice(&pem.0)?)?;
    ensure!(peer.common_name == solo.kyma && peer.dns_names == [solo.member().domain()], "{peer:?}");
    ensure!(peer.uris.is_empty() && peer.ip_addrs.is_empty(), "{peer:?}");
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_gets_a_certificate_for_a_changed_domain() -> Result<()> {
    let solo = Solo::start_watched("kcp-other-domain", "estuary", POLLS.map(str::to_owned).to_vec()).await?;
    let agent = solo.agent().await?;
    let kymas: Api<Kyma> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    let patch = json!({"metadata": {"annotations": {annotations::SKR_DOMAIN: "moved.example"}}});
    kymas.patch_metadata(solo.kyma, &PatchParams::default(), &Patch::Merge(&patch)).await?;
    let (in_runtime, kyma) =
        (Api::<Kyma>::namespaced(solo.runtime.clone(), RUNTIME_NAMESPACE), RUNTIME_KYMA_NAME);
    let label = json!({"metadata": {"labels": {"example.com/edited": "yes"}}});
    in_runtime.patch_metadata(kyma, &PatchParams::default(), &Patch::Merge(&label)).await?;
    let secrets: Api<Secret> = Api::namespaced(solo.runtime.clone(), RUNTIME_NAMESPACE);
    wait::until("a certificate for the new domain", SOON, || async {
        let data = secrets.get(AGENT_IDENTITY_SECRET).await?.data.unwrap_or_default();
        let pem = data.get("tls.crt").context("no certificate")?;
        let peer = PeerIdentity::from_leaf(&CertificateDer::from_pem_slice(&pem.0)?)?;
        Ok((peer.dns_names == ["moved.example"]).then_some(()))
    })
    .await?;
    agent.connected().await?;
    observed::no_panic(&agent.process)?;
    observed::no_panic(&solo.receiver.process)
}

/// Runs `tidewatch certs revoke` or `admit` for the runtime.
async fn certs(solo: &Solo, command: &str) -> Result<Value> {
    rotation::certs(solo, command, &[solo.kyma.to_owned()]).await
}

/// Ensures that the engine denies a certificate request of the agent.
async fn is_denied_a_certificate(solo: &Solo) -> Result<()> {
    let client = solo.cluster.client_of(fleet::AGENT_USER)?;
    let request = decided(solo, &client, &["digital signature", "client auth"]).await?;
    let conditions = request.status.and_then(|status| status.conditions).unwrap_or_default();
    ensure!(conditions.iter().any(|c| c.reason.as_deref() == Some("Revoked")), "{conditions:#?}");
    Ok(())
}

/// Polls that find the request of an agent that is cut off.
const POLLS: [&str; 3] = ["--proven-for=2", "--unknown-grace=1", "--fallback-poll=1"];

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_runtime_is_cut_off_until_it_is_admitted() -> Result<()> {
    let solo = Solo::start_watched("kcp-cut-off", "pontoon", POLLS.map(str::to_owned).to_vec()).await?;
    let agent = solo.agent().await?;
    let revoked = certs(&solo, "revoke").await?;
    ensure!(revoked["revokedSince"].is_string(), "{revoked}");
    wait::until("the agent's connection to be closed", Duration::from_secs(5), || async {
        let receiver = &agent.status().await?["receiver"];
        let is_refused = receiver["lastError"].as_str().is_some_and(|error| error.contains("are revoked"));
        Ok((receiver["connected"] == false || is_refused).then_some(()))
    })
    .await?;
    // Its certificate is good, so it is refused at each request, and its own new request is denied.
    is_denied_a_certificate(&solo).await?;
    ensure!(certs(&solo, "revoke").await? == revoked, "a second revocation changes nothing");

    let admitted = certs(&solo, "admit").await?;
    ensure!(admitted["revokedSince"].is_null(), "{admitted}");
    agent.connected().await?;
    ensure!(certs(&solo, "admit").await.is_err(), "it is not revoked any more");
    observed::no_panic(&solo.receiver.process)
}

/// Sends an event with the agent's certificate. Returns the status, and whether the answer names the revocation.
async fn answer(receiver: &Receiver, identity: &Issued) -> Result<(u16, bool)> {
    let event = json!({"watched": {"Namespace": RUNTIME_NAMESPACE, "Name": RUNTIME_KYMA_NAME},
                       "watchedGvk": {"group": GROUP, "version": VERSION, "kind": "Kyma"}});
    let mut connection = Connection::open(receiver, Some(identity), Http::H2).await?;
    let answer = connection.send("POST", "/v2/lifecycle-manager/event", sized(event.to_string())).await?;
    let text = String::from_utf8_lossy(answer.body());
    Ok((answer.status().as_u16(), text.contains("are revoked")))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_runtime_is_refused_after_a_restart_and_by_the_next_leader() -> Result<()> {
    let mut solo = Solo::start_watched("kcp-still-revoked", "lock", Vec::new()).await?;
    let agent = solo.agent().await?;
    let identity = agent.identity.issued.clone();
    observed::no_panic(&agent.process)?;
    drop(agent);
    ensure!(answer(&solo.receiver, &identity).await? == (200, false), "it is refused before the revocation");
    certs(&solo, "revoke").await?;

    solo.receiver.restart().await?;
    ensure!(answer(&solo.receiver, &identity).await? == (403, true), "it is admitted after a restart");

    let (modules, own) =
        (solo.env.registry.of(solo.namespace), ["--agent-image=tidewatch-agent", "--identity=standby"]);
    let arguments = own.iter().chain(&POLLS).map(ToString::to_string).collect();
    let standby =
        Receiver::begin(&solo.env.harness, &solo.env.kcp, solo.namespace, &modules, "-standby", arguments)
            .await?;
    wait::until("the standby to be ready", SOON, || async {
        let status = http::status(&format!("{}/readyz", standby.admin)).await?;
        Ok((status == hyper::StatusCode::OK).then_some(()))
    })
    .await?;
    ensure!(!fleet::leads(&standby.admin).await?, "both lead");
    solo.receiver.process.begin_end();
    standby.ready().await?;
    ensure!(answer(&standby, &identity).await? == (403, true), "the next leader admits it");
    is_denied_a_certificate(&solo).await?;

    certs(&solo, "admit").await?;
    wait::until("the runtime to be admitted", SOON, || async {
        Ok((answer(&standby, &identity).await? == (200, false)).then_some(()))
    })
    .await?;
    observed::no_panic(&standby.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agents_token_reads_no_secret_but_its_own() -> Result<()> {
    let solo = Solo::start_watched("kcp-token", "quay", Vec::new()).await?;
    let _agent = solo.agent().await?;
    let stolen = solo.cluster.client_of(fleet::AGENT_USER)?;
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

async fn image(deployments: &Api<Deployment>) -> Result<String> {
    let deployment = deployments.get(AGENT_NAME).await?;
    let pod = deployment.spec.and_then(|spec| spec.template.spec).context("no pod")?;
    pod.containers.into_iter().next().and_then(|container| container.image).context("no image")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_upgraded_unless_its_kyma_pauses_it() -> Result<()> {
    let mut solo = Solo::start_watched("kcp-agent-upgrade", "slip", Vec::new()).await?;
    let agent = solo.agent().await?;
    is_proven(&solo).await?;
    let deployments: Api<Deployment> = Api::namespaced(solo.runtime.clone(), RUNTIME_NAMESPACE);
    let old = image(&deployments).await?;
    let kymas: Api<Kyma> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    let pause = async |value: Value| {
        let patch =
            json!({"metadata": {"annotations": {"tidewatch.kyma-project.io/pause-agent-upgrade": value}}});
        kymas.patch(solo.kyma, &PatchParams::default(), &Patch::Merge(&patch)).await
    };
    let maps: Api<ConfigMap> = Api::namespaced(solo.runtime.clone(), RUNTIME_NAMESPACE);
    let settings = async || anyhow::Ok(maps.get(AGENT_NAME).await?.data);
    let (before, proxy) = (settings().await?, "http://proxy.example:3128");
    pause(json!("true")).await?;
    solo.receiver
        .restart_with(|args| {
            for arg in args.iter_mut().filter(|arg| arg.starts_with("--agent-image=")) {
                *arg = "--agent-image=tidewatch-agent:next".to_owned();
            }
            args.push(format!("--agent-proxy={proxy}"));
        })
        .await?;
    // Its first canary proves the path to the restarted receiver at once.
    drop(agent);
    let agent = solo.agent().await?;
    is_proven(&solo).await?;
    fleet::settled(&solo.receiver).await?;
    ensure!(image(&deployments).await? == old, "a paused agent was upgraded");
    ensure!(settings().await? == before, "a paused agent has the settings of the next version");

    pause(Value::Null).await?;
    wait::until("the upgrade", SOON, || async {
        Ok((image(&deployments).await? == "tidewatch-agent:next").then_some(()))
    })
    .await?;
    let data = settings().await?.unwrap_or_default();
    ensure!(data["config.yaml"].contains(proxy), "{data:?}");
    let upgrading = "tidewatch_receiver_agent_upgrades{state=\"upgrading\"}";
    let count = async || {
        let page = http::text(&format!("{}/metrics", solo.receiver.admin)).await?;
        Ok::<_, anyhow::Error>(observed::value(&page, upgrading))
    };
    ensure!(count().await? == 1, "the new agent is not awaited");
    drop(agent);
    let _new = solo.agent().await?;
    wait::until("the upgraded agent to be proven", SOON, || async { Ok((count().await? == 0).then_some(())) })
        .await
}
