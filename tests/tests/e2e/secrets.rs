//! Secret values are planted, used and refused. No log, Event, status or metric shows one.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::{ByteString, api::core::v1::Event};
use kube::{
    Api,
    api::{DynamicObject, ListParams},
    core::{ApiResource, GroupVersionKind},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, State,
    names::{GROUP, RUNTIME_NAMESPACE, VERSION},
};
use tidewatch_demo::files::write_private;
use tidewatch_tests::{cluster::ADMIN, env, fleet, http, kcp, modules::Version, observed, solo::Solo, wait};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::{enrolment::decided, external_modules::found_at};

const SOON: Duration = Duration::from_mins(1);
const REGISTRY_PASSWORD: &str = "planted-registry-password";
const PROXY_PASSWORD: &str = "planted-proxy-password";
const REFUSED_TOKEN: &str = "planted-refused-token";
const UNREADABLE_TOKEN: &str = "planted-unreadable-token";
const CLIENT_KEY: &str = "planted-client-key";
const CONTENT: &str = "planted-content-of-a-secret";
const CHANGED: &str = "planted-change-of-a-secret";
/// All that is planted begins so.
const PLANTED: &str = "planted-";

fn base64(text: &str) -> Result<String> {
    let value = serde_json::to_value(ByteString(text.as_bytes().to_vec()))?;
    Ok(value.as_str().context("no text")?.to_owned())
}

/// Refuses the credentials of all requests, as a registry or a proxy.
struct Refusing {
    address: SocketAddr,
    heads: Arc<Mutex<String>>,
    _tasks: JoinSet<()>,
}

impl Refusing {
    async fn start() -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let (address, heads, mut tasks) =
            (listener.local_addr()?, Arc::<Mutex<String>>::default(), JoinSet::new());
        let seen = Arc::clone(&heads);
        tasks.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                drop(refuse(stream, &seen).await);
            }
        });
        Ok(Self { address, heads, _tasks: tasks })
    }

    /// Waits until these credentials have been sent.
    async fn saw(&self, user: &str, password: &str) -> Result<()> {
        let encoded = base64(&format!("{user}:{password}"))?;
        wait::until(&format!("the password of {user} to be used"), SOON, || async {
            Ok(self.heads.lock().contains(&encoded).then_some(()))
        })
        .await
    }
}

async fn refuse(mut stream: TcpStream, seen: &Mutex<String>) -> Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < 8192 {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let (status, name) = if head.starts_with("CONNECT") {
        ("407 Proxy Authentication Required", "Proxy-Authenticate")
    } else {
        ("401 Unauthorized", "WWW-Authenticate")
    };
    seen.lock().push_str(&head);
    let answer = format!(
        "HTTP/1.1 {status}\r\n{name}: Basic realm=\"x\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(answer.as_bytes()).await?;
    Ok(stream.shutdown().await?)
}

/// Registers Kymas with unusable kubeconfigs, and waits until their statuses say so.
async fn unusable_kubeconfigs(solo: &Solo) -> Result<()> {
    let good = solo.cluster.kubeconfig_yaml(ADMIN)?;
    let token = format!("    token: {}", solo.cluster.token(ADMIN)?);
    let (certificate, key) = (base64("no certificate")?, base64(CLIENT_KEY)?);
    let cases = [
        ("cove-refused", good.replace(&token, &format!("    token: {REFUSED_TOKEN}"))),
        (
            "cove-key",
            good.replace(
                &token,
                &format!("    client-certificate-data: {certificate}\n    client-key-data: {key}"),
            ),
        ),
        ("cove-unreadable", format!("users: [{{token: {UNREADABLE_TOKEN}}}\n  - x: {{")),
    ];
    let kymas: Api<Kyma> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    for (kyma, kubeconfig) in &cases {
        ensure!(*kubeconfig != good, "the kubeconfig has another shape");
        fleet::put_kubeconfig(&solo.kcp, solo.namespace, kyma, kubeconfig).await?;
        kcp::put_kyma(&solo.kcp, solo.namespace, kyma, kyma, Some("x.example")).await?;
    }
    for (kyma, _) in &cases {
        let what = format!("Kyma {kyma} to be in Error");
        fleet::kyma_where(kymas.clone(), kyma, &what, |kyma| {
            kyma.status.as_ref().is_some_and(|status| status.state == State::Error)
        })
        .await?;
    }
    Ok(())
}

/// Every place where a person without access to Secrets can read.
async fn texts(solo: &Solo, agent: &fleet::Agent) -> Result<BTreeMap<String, String>> {
    let mut texts = BTreeMap::new();
    for (name, admin, process) in
        [("receiver", &solo.receiver.admin, &solo.receiver.process), ("agent", &agent.admin, &agent.process)]
    {
        texts.insert(format!("log of the {name}"), observed::text(process)?);
        texts.insert(format!("metrics of the {name}"), http::text(&format!("{admin}/metrics")).await?);
    }
    texts.insert("status page of the agent".into(), agent.status().await?.to_string());
    for kyma in [solo.kyma, "cove-refused", "cove-key", "cove-unreadable"] {
        texts.insert(format!("page of {kyma}"), solo.receiver.runtime(kyma).await?.to_string());
    }
    for (name, client) in [("KCP", &solo.kcp), ("the runtime", &solo.runtime)] {
        let events: Api<Event> = Api::all(client.clone());
        let events = events.list(&ListParams::default()).await?.items;
        texts.insert(format!("Events of {name}"), serde_json::to_string(&events)?);
        for kind in ["Kyma", "Manifest", "CertificateSigningRequest"] {
            let (group, version) = if kind == "CertificateSigningRequest" {
                ("certificates.k8s.io", "v1")
            } else {
                (GROUP, VERSION)
            };
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
            let objects: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
            // A runtime has no Manifests.
            let Ok(objects) = objects.list(&ListParams::default()).await else { continue };
            let of_test = |object: &&DynamicObject| {
                name != "KCP" || object.metadata.namespace.as_deref() == Some(solo.namespace)
            };
            let statuses: Vec<&Value> =
                objects.items.iter().filter(of_test).map(|object| &object.data["status"]).collect();
            texts.insert(format!("statuses of {kind} in {name}"), serde_json::to_string(&statuses)?);
        }
    }
    Ok(texts)
}

/// The lines of a PEM key that are no headings.
fn key_lines(pem: &str) -> Vec<String> {
    pem.lines().filter(|line| !line.starts_with("-----") && line.len() > 20).map(str::to_owned).collect()
}

/// The text before a secret, for the message of a failure.
fn around<'a>(text: &'a str, needle: &str) -> &'a str {
    let before = text.split_once(needle).map_or(text, |(before, _)| before);
    let start = before.char_indices().rev().nth(200).map_or(0, |(at, _)| at);
    &before[start..]
}

#[tokio::test(flavor = "multi_thread")]
async fn planted_secrets_are_in_no_log_event_status_or_metric() -> Result<()> {
    let (env, refusing) = (env::shared().await?, Refusing::start().await?);
    let (host, place) = (refusing.address.to_string(), format!("{}/kyma", refusing.address));
    let auths = json!({"auths": {&host: {"username": "pilot", "password": REGISTRY_PASSWORD}}});
    let file = env.harness.write("planted.json", &auths.to_string())?;
    let proxy = format!("http://pilot:{PROXY_PASSWORD}@{host}");
    let arguments = vec![
        format!("--external-registry={place}"),
        format!("--registry-credentials={}", file.display()),
        format!("--agent-proxy={proxy}"),
    ];
    let solo = Solo::start_watched("kcp-planted", "cove", arguments).await?;
    unusable_kubeconfigs(&solo).await?;

    // The runtime's admin is not its agent, so this request is denied.
    let denied = decided(&solo, &solo.runtime, &["digital signature", "client auth"]).await?;
    let denied = serde_json::to_string(&denied.status)?;
    ensure!(denied.contains("WrongUser"), "{denied}");
    let mut agent = solo.agent().await?;

    // A module's Secret, and its change by a user, which is reverted. The registry of another module refuses the password.
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "vault", "namespace": RUNTIME_NAMESPACE},
                        "data": {"password": base64(CONTENT)?}});
    solo.offer(&Version::new("vault", "1.0.0", vec![secret])).await?;
    let gig = Version {
        template: json!({"descriptor": found_at("gig", "1.0.0", &host, "kyma")}),
        ..Version::new("gig", "1.0.0", Vec::new())
    };
    gig.release(&solo.kcp, solo.namespace).await?;
    solo.enable(&json!([{"name": "vault"}, {"name": "gig"}])).await?;
    solo.module("vault", "to be Ready", |module| module.state == State::Ready).await?;
    let refused = solo.module("gig", "to be in Error", |module| module.state == State::Error).await?;
    ensure!(refused.message.contains("check the credentials of this registry"), "{}", refused.message);
    refusing.saw("pilot", REGISTRY_PASSWORD).await?;
    let of_secret = ("", "v1", "Secret");
    let change = json!({"data": {"password": base64(CHANGED)?}});
    solo.patch(of_secret, RUNTIME_NAMESPACE, "vault", "user", &change).await?;
    solo.tell(of_secret, RUNTIME_NAMESPACE, "vault").await?;
    wait::until("the change to be reverted", SOON, || async {
        let object = solo.objects(of_secret, Some(RUNTIME_NAMESPACE)).get("vault").await?;
        Ok((object.data["data"]["password"] == base64(CONTENT)?).then_some(()))
    })
    .await?;
    let mut before = texts(&solo, &agent).await?;
    before.insert("status of the denied request".into(), denied);

    // The agent's way to the receiver is a proxy that refuses it.
    let argument = |argument: &String| argument.strip_prefix("--config=").map(str::to_owned);
    let config = agent.process.spec().args.iter().find_map(argument).context("no configuration")?;
    let mut content: Value = serde_json::from_str(&std::fs::read_to_string(&config)?)?;
    content["receiver"]["proxy"] = proxy.into();
    write_private(config.as_ref(), &content.to_string())?;
    agent.process.kill().await?;
    agent.start_again().await?;
    refusing.saw("pilot", PROXY_PASSWORD).await?;
    wait::until("the agent to report the proxy's refusal", SOON, || async {
        Ok(agent.status().await?["receiver"]["lastError"].is_string().then_some(()))
    })
    .await?;

    let keys = [solo.receiver.ca.key_pem().as_str(), agent.identity.issued.key_pem.as_str()];
    let mut needles = keys.map(key_lines).concat();
    ensure!(needles.len() >= 4, "{} lines of keys", needles.len());
    needles.extend([PLANTED.to_owned(), "BEGIN PRIVATE".to_owned(), solo.cluster.token(ADMIN)?.to_owned()]);
    for value in
        [REGISTRY_PASSWORD, PROXY_PASSWORD, REFUSED_TOKEN, UNREADABLE_TOKEN, CLIENT_KEY, CONTENT, CHANGED]
    {
        needles.push(base64(value)?);
    }
    for password in [REGISTRY_PASSWORD, PROXY_PASSWORD] {
        needles.push(base64(&format!("pilot:{password}"))?);
    }
    let after = texts(&solo, &agent).await?;
    // The refusals are there to be read, so their secrets could be.
    for (place, word) in [
        ("log of the receiver", "does not accept the credentials"),
        ("statuses of Kyma in KCP", "does not accept the credentials"),
        ("statuses of Kyma in KCP", "check the credentials of this registry"),
        ("log of the agent", "407"),
    ] {
        ensure!(after.get(place).is_some_and(|text| text.contains(word)), "{place} does not say '{word}'");
    }
    for (place, text) in before.iter().chain(&after) {
        ensure!(text.len() > 1, "{place} is empty");
        for needle in &needles {
            ensure!(!text.contains(needle.as_str()), "{place} shows a secret: {}", around(text, needle));
        }
    }
    observed::no_panic(&solo.receiver.process)?;
    observed::no_panic(&agent.process)
}
