//! A real control plane, a simulated cluster, and calls to both.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use http_body_util::{BodyExt, Limited};
use hyper::http::Request;
use kube::{
    Client, Config,
    client::Body,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
};
use serde_json::Value;
use tidewatch_drain::Drain;
use tidewatch_fake_apiserver as simulator;
use tidewatch_tests::{ControlPlane, Etcd, Harness, Options, User, cluster::ADMIN};
use tokio::time::timeout;

use crate::{access, compare};

/// Timeout of an answer.
const LONG: Duration = Duration::from_secs(30);
const LARGEST: usize = 16 * 1024 * 1024;

pub(crate) const JSON: &str = "application/json";
pub(crate) const JSON_PATCH: &str = "application/json-patch+json";
pub(crate) const MERGE: &str = "application/merge-patch+json";
pub(crate) const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub(crate) const YAML: &str = "application/yaml";
pub(crate) const APPLY: &str = "application/apply-patch+yaml";
pub(crate) const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
pub(crate) const PARTIAL: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
pub(crate) const PARTIAL_LIST: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";

pub(crate) struct Pair {
    pub(crate) real: Client,
    pub(crate) simulated: Client,
    /// Clients of RBAC users on both sides.
    users: BTreeMap<&'static str, (Client, Client)>,
    /// Anonymous clients.
    nobody: (Client, Client),
    /// Administrators of both sides.
    pub(crate) kubeconfigs: [String; 2],
    pub(crate) harness: Harness,
    plane: ControlPlane,
    etcd: Etcd,
    hosted: Arc<simulator::Hosted>,
    _server: simulator::Server,
    _drain: Drain,
}

/// A call. `{name.rv}` in path and body is that side's version of the object saved as `name`.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) body: Value,
    pub(crate) media: &'static str,
    pub(crate) accept: &'static str,
    pub(crate) save: String,
    /// Replaces the JSON body.
    pub(crate) raw: Option<Vec<u8>>,
    /// A header. With an authentication header, the client has no other identity.
    pub(crate) header: Option<(&'static str, &'static str)>,
}

impl Call {
    pub(crate) fn new(method: &'static str, path: impl Into<String>, body: Value) -> Self {
        Self {
            method,
            path: path.into(),
            body,
            media: JSON,
            accept: JSON,
            save: String::new(),
            raw: None,
            header: None,
        }
    }

    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self::new("GET", path, Value::Null)
    }

    pub(crate) fn patch(media: &'static str, path: impl Into<String>, body: Value) -> Self {
        Self { media, ..Self::new("PATCH", path, body) }
    }

    pub(crate) fn accepting(self, accept: &'static str) -> Self {
        Self { accept, ..self }
    }

    pub(crate) fn raw(
        method: &'static str,
        path: impl Into<String>,
        media: &'static str,
        raw: Vec<u8>,
    ) -> Self {
        Self { media, raw: Some(raw), ..Self::new(method, path, Value::Null) }
    }

    pub(crate) fn with(self, header: (&'static str, &'static str)) -> Self {
        Self { header: Some(header), ..self }
    }

    pub(crate) fn saved(self, save: &str) -> Self {
        Self { save: save.to_owned(), ..self }
    }
}

/// One side's saved answers for later calls.
#[derive(Debug, Default)]
pub(crate) struct Memory(BTreeMap<String, String>);

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) media: String,
    /// JSON, a watch's event list, or text.
    pub(crate) body: Value,
    pub(crate) warnings: Vec<String>,
}

impl Pair {
    pub(crate) async fn start() -> Result<Self> {
        let harness = Harness::for_tests()?;
        let etcd = Etcd::start(&harness).await?;
        let users = access::USERS.map(|(name, groups)| User {
            name: name.to_owned(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        });
        let options = Options { users: users.to_vec(), ..Options::named("differential") };
        let plane = ControlPlane::start(&harness, &etcd, options).await?;
        let drain = Drain::new();
        let server = simulator::Server::start(simulator::ServerOptions::default(), &drain).await?;
        // Without nodes, Deployments never become ready.
        let options =
            simulator::Options { ready_after: None, log_limit: 100_000, ..simulator::Options::default() };
        let hosted = server.add("simulated", options)?;
        // The real server's users have their names as uids.
        let allow = |token: &str, user: simulator::User| {
            let user = simulator::User { uid: user.name.clone(), ..user };
            hosted.allow_token(simulator::Token(token.into()), user);
        };
        allow("t", simulator::User::admin(ADMIN));
        let mut users = BTreeMap::new();
        for (name, groups) in access::USERS {
            allow(name, simulator::User::by_rbac(name, groups));
            let real = client(&plane.kubeconfig_yaml(name)?).await?;
            users.insert(name, (real, client(&server.kubeconfig("simulated", name)).await?));
        }
        let [ours, theirs] = [plane.kubeconfig_yaml(ADMIN)?, server.kubeconfig("simulated", "t")];
        Ok(Self {
            users,
            nobody: (stranger(&ours).await?, stranger(&theirs).await?),
            real: client(&ours).await?,
            simulated: client(&theirs).await?,
            kubeconfigs: [ours, theirs],
            harness,
            plane,
            etcd,
            hosted,
            _server: server,
            _drain: drain,
        })
    }

    /// Makes a call to both sides and returns the differences.
    pub(crate) async fn call(&self, call: &Call, memories: &mut (Memory, Memory)) -> Result<Vec<String>> {
        let (real, simulated) = match call.header {
            Some(("authorization", _)) => (&self.nobody.0, &self.nobody.1),
            _ => (&self.real, &self.simulated),
        };
        Self::compare((real, simulated), call, memories).await
    }

    /// Compacts both histories up to a saved version. Restarts the real server to clear its caches.
    pub(crate) async fn forget(&mut self, save: &str, memories: &(Memory, Memory)) -> Result<()> {
        let revision = |memory: &Memory| -> Result<u64> {
            Ok(memory.0.get(&format!("{save}.rv")).context("no such revision was saved")?.parse()?)
        };
        self.etcd.compact(revision(&memories.0)?).await?;
        self.plane.kill_api().await?;
        self.plane.start_api(&self.harness, &self.etcd).await?;
        let revision = revision(&memories.1)?;
        self.hosted.with(|cluster| cluster.forget(revision));
        Ok(())
    }

    /// Makes the call as an RBAC user.
    pub(crate) async fn call_as(&self, user: &str, call: &Call) -> Result<Vec<String>> {
        let mut memories = (Memory::default(), Memory::default());
        Self::compare(self.clients(user)?, call, &mut memories).await
    }

    pub(crate) fn clients(&self, user: &str) -> Result<(&Client, &Client)> {
        let (real, simulated) = self.users.get(user).with_context(|| format!("there is no user {user}"))?;
        Ok((real, simulated))
    }

    async fn compare(
        clients: (&Client, &Client),
        call: &Call,
        memories: &mut (Memory, Memory),
    ) -> Result<Vec<String>> {
        let (real, simulated) =
            tokio::try_join!(one(clients.0, call, &mut memories.0), one(clients.1, call, &mut memories.1))?;
        let found = compare::answers(&real, &simulated);
        let body = call.body.to_string();
        let body: String = body.chars().take(200).collect();
        let shown = |line| format!("{} {} {body}\n    {line}", call.method, call.path);
        Ok(found.into_iter().map(shown).collect())
    }
}

/// A client without retries: a 504 is a valid answer.
async fn client(kubeconfig: &str) -> Result<Client> {
    let config = Kubeconfig::from_yaml(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// A client without credentials.
async fn stranger(kubeconfig: &str) -> Result<Client> {
    let mut config = Kubeconfig::from_yaml(kubeconfig)?;
    config.auth_infos.iter_mut().for_each(|named| named.auth_info = Some(AuthInfo::default()));
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

#[expect(clippy::disallowed_methods, reason = "the body is limited")]
pub(crate) async fn one(client: &Client, call: &Call, memory: &mut Memory) -> Result<Answer> {
    let filled = |text: &str| {
        memory
            .0
            .iter()
            .fold(text.to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
    };
    let body = match &call.raw {
        Some(raw) => raw.clone(),
        None if call.body.is_null() => Vec::new(),
        None => filled(&call.body.to_string()).into_bytes(),
    };
    let mut request = Request::builder()
        .method(call.method)
        .uri(filled(&call.path))
        .header("content-type", call.media)
        .header("accept", call.accept)
        .header("user-agent", "differential/1");
    if let Some((name, value)) = call.header {
        request = request.header(name, value);
    }
    let what = || format!("{} {}", call.method, call.path);
    let sent = timeout(LONG, client.send(request.body(Body::from(body))?));
    let response = sent.await.with_context(what)?.with_context(what)?;
    let code = response.status().as_u16();
    let warnings = response.headers().get_all("warning");
    let warnings = warnings.iter().filter_map(|value| value.to_str().ok()).map(str::to_owned).collect();
    let media = response.headers().get("content-type").and_then(|value| value.to_str().ok());
    let media = media.unwrap_or_default().to_owned();
    let bytes = timeout(LONG, Limited::new(response.into_body(), LARGEST).collect()).await;
    let bytes = bytes.with_context(what)?.map_err(|error| anyhow::anyhow!(error))?;
    let text = String::from_utf8_lossy(&bytes.to_bytes()).into_owned();
    let is_watch = call.path.contains("watch=1") || call.path.contains("/watch/");
    let body = if is_watch && code == 200 && !text.starts_with("{\n") {
        text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).collect()
    } else if media == YAML {
        serde_saphyr::from_str(&text)?
    } else {
        serde_json::from_str(&text).unwrap_or(Value::String(text))
    };
    if !call.save.is_empty() {
        for (short, pointer) in
            [("rv", "/metadata/resourceVersion"), ("uid", "/metadata/uid"), ("next", "/metadata/continue")]
        {
            let value = body.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            memory.0.insert(format!("{}.{short}", call.save), value.to_owned());
        }
    }
    Ok(Answer { code, media, body, warnings })
}
