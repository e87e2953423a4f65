//! Simulated clusters, registry, receiver and agents in one process, with real TLS.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use hyper::StatusCode;
use jiff::SignedDuration;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::Value;
use tidewatch_api::names::RUNTIME_NAMESPACE;
use tidewatch_drain::Drain;
use tidewatch_engine::EngineConfig;
use tidewatch_fake_apiserver::{
    Faults, Hosted, NoFaults, Options, Server, ServerOptions, Token, User, registry::Registry,
};
use tidewatch_receiver::{
    self as receiver, agent_args::TlsSource, app, forward::target::Overrides, lease, paths::Settings,
};
use tidewatch_tls::Files;

use crate::{
    files::write_private,
    fleet::{self, AgentFiles},
    http,
    kept::Variables,
    pki::{self, EventPath, Identity},
    story::{Cast, RUNTIMES, Runtime, Stage},
    wait,
};

const SOON: Duration = Duration::from_mins(1);
/// For reconciles in flight at the end.
const GRACE: Duration = Duration::from_secs(5);
/// A Deployment's visible time until ready.
const READY_AFTER: SignedDuration = SignedDuration::from_millis(300);
const AGENT_ACCOUNT: &str = "tidewatch-agent";
/// The receiver's user in all clusters.
pub const RECEIVER_USER: &str = "tidewatch-receiver";
const CLUSTERS: [&str; 3] = ["kcp", "runtime1", "runtime2"];

struct Cluster {
    hosted: Arc<Hosted>,
    url: String,
    /// Administrator's kubeconfig.
    file: PathBuf,
    /// The receiver's kubeconfig.
    engine: String,
    engine_file: PathBuf,
    client: Client,
}

struct Received {
    event_path: EventPath,
    bound: receiver::Bound,
}

struct Agent {
    identity: Identity,
    admin: String,
}

/// The world, ended by [`Simulated::end`].
pub struct Simulated {
    folder: PathBuf,
    server: Server,
    registry: Registry,
    clusters: Vec<Cluster>,
    receiver: Option<Received>,
    engine: EngineConfig,
    agents: Vec<Agent>,
    /// Agents end first, clusters last.
    agents_drain: Drain,
    clusters_drain: Drain,
}

impl Simulated {
    /// Starts clusters and registry in `folder` (absolute).
    pub async fn start(folder: &Path) -> Result<Self> {
        Self::with(folder, Arc::new(NoFaults)).await
    }

    /// As [`Simulated::start`], with faults.
    pub async fn with(folder: &Path, faults: Arc<dyn Faults>) -> Result<Self> {
        let drain = Drain::new();
        let server = Server::start(ServerOptions { faults, ..ServerOptions::default() }, &drain).await?;
        let registry = Registry::start(&drain).await?;
        let mut clusters = Vec::new();
        for (seed, name) in (1..).zip(CLUSTERS) {
            clusters.push(Cluster::start(&server, folder, name, seed).await?);
        }
        Ok(Self {
            folder: folder.to_owned(),
            server,
            registry,
            clusters,
            receiver: None,
            engine: EngineConfig::default(),
            agents: Vec::new(),
            agents_drain: Drain::new(),
            clusters_drain: drain,
        })
    }

    /// Sets engine settings, before the receiver's start.
    #[must_use]
    pub fn tuned(self, engine: EngineConfig) -> Self {
        Self { engine, ..self }
    }

    /// Returns the module registry.
    pub const fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Returns the story's stage.
    pub fn stage(&self) -> Result<Stage> {
        let [kcp, runtime1, runtime2] = self.clusters.as_slice() else {
            anyhow::bail!("clusters are lacking")
        };
        let runtime = |cluster: &Cluster| Runtime {
            client: cluster.client.clone(),
            kubeconfig: cluster.engine.clone(),
        };
        Ok(Stage {
            kcp: kcp.client.clone(),
            runtimes: [runtime(runtime1), runtime(runtime2)],
            registry: self.registry.host(),
        })
    }

    /// Returns locations; `bin`: programs.
    pub fn variables(&self, bin: &Path) -> Result<Variables> {
        let [kcp, runtime1, runtime2] = self.clusters.as_slice() else {
            anyhow::bail!("clusters are lacking")
        };
        let receiver = self.receiver.as_ref().context("there is no receiver")?;
        let agent = self.agents.first().context("there is no agent")?;
        Ok(Variables {
            kcp: kcp.file.clone(),
            runtimes: [runtime1.file.clone(), runtime2.file.clone()],
            receiver: format!("https://{}", receiver.bound.events),
            receiver_admin: format!("http://{}", receiver.bound.admin),
            agent_admin: agent.admin.clone(),
            ca: receiver.event_path.ca_file.clone(),
            agent_cert: agent.identity.cert.clone(),
            agent_key: agent.identity.key.clone(),
            registry: self.registry.url(),
            bin: bin.to_owned(),
        })
    }

    /// Waits for a part's end and names it.
    pub async fn broken(&self) -> String {
        let receiver = self.receiver.as_ref().map(|receiver| receiver.bound.drain.watch());
        let (agents, clusters) = (self.agents_drain.watch(), self.clusters_drain.watch());
        let receiver_ended = async {
            match receiver {
                Some(watch) => watch.signaled().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = receiver_ended => "the receiver".to_owned(),
            () = agents.signaled() => "an agent".to_owned(),
            () = clusters.signaled() => "the simulated clusters".to_owned(),
        }
    }

    /// Ends all parts.
    pub async fn end(self) {
        // Leftovers end with the process.
        let _aborted = self.agents_drain.shutdown(GRACE).await;
        if let Some(receiver) = self.receiver {
            let _aborted = receiver.bound.drain.shutdown(GRACE).await;
        }
        let _aborted = self.clusters_drain.shutdown(GRACE).await;
    }
}

impl Cluster {
    async fn start(server: &Server, folder: &Path, name: &str, seed: u64) -> Result<Self> {
        // The simulated server only warns of the CEL rules in ModuleReleaseMeta's CRD.
        let options =
            Options { seed, ready_after: Some(READY_AFTER), ignore_cel: true, ..Options::default() };
        let hosted = server.add(name, options)?;
        // The engine refuses runtimes at KCP's address.
        let url = format!("https://{}", server.listen(name).await?);
        let admit = |user: &str, file: &str| -> Result<(String, PathBuf)> {
            let token = uuid::Uuid::new_v4().to_string();
            hosted.allow_token(Token(token.clone()), User::admin(user));
            let kubeconfig = server.kubeconfig_for(name, &url, &token);
            let file = folder.join(file);
            write_private(&file, &kubeconfig)?;
            Ok((kubeconfig, file))
        };
        let (kubeconfig, file) = admit("admin", &format!("{name}.kubeconfig"))?;
        let (engine, engine_file) = admit(RECEIVER_USER, &format!("{name}.receiver.kubeconfig"))?;
        let mut config = Config::from_custom_kubeconfig(
            Kubeconfig::from_yaml(&kubeconfig)?,
            &KubeConfigOptions::default(),
        )
        .await?;
        config.proxy_url = None;
        let client = Client::try_from(config)?;
        Ok(Self { hosted, url, file, engine, engine_file, client })
    }

    /// Returns the agent's kubeconfig.
    fn admit_agent(&self, server: &Server) -> String {
        let token = uuid::Uuid::new_v4().to_string();
        self.hosted.allow_token(Token(token.clone()), agent_user());
        server.kubeconfig_for(self.hosted.name(), &self.url, &token)
    }
}

/// Returns an agent's service account.
pub fn agent_user() -> User {
    User::service_account(RUNTIME_NAMESPACE, AGENT_ACCOUNT)
}

impl Cast for Simulated {
    async fn receiver(&mut self) -> Result<String> {
        let event_path = EventPath::create(&self.folder.join("receiver"))?;
        let kcp = self.clusters.first().context("there is no KCP")?;
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let config = receiver::Config {
            listen: any,
            admin: any,
            tls: TlsSource::Files(Files {
                ca: event_path.ca_file.clone(),
                cert: event_path.server.cert.clone(),
                key: event_path.server.key.clone(),
            }),
            proxies: None,
            kubeconfig: Some(kcp.engine_file.clone()),
            engine: EngineConfig { modules: self.registry.host(), ..self.engine.clone() },
            denied_servers: Vec::new(),
            routes: Overrides::default(),
            // Without polls, a lost event fails the demo.
            paths: Settings { poll: Duration::ZERO, resync: Duration::ZERO, ..Settings::default() },
            limits: tidewatch_listener::Limits::default(),
            queued: 1_000,
            identity: "demo".to_owned(),
            // A sleeping machine must not end the demo.
            lease: Duration::from_secs(*lease::DURATIONS.end()),
            pause: false,
            registry_credentials: None,
            maintenance_policy: None,
            object_metrics: false,
        };
        let bound = Box::pin(app::start(config)).await?;
        let admin = format!("http://{}", bound.admin);
        self.receiver = Some(Received { event_path, bound });
        let ready = format!("{admin}/readyz");
        wait::until("the receiver to be ready", SOON, || async {
            Ok((http::status(&ready).await? == StatusCode::OK).then_some(()))
        })
        .await?;
        Ok(admin)
    }

    async fn agent(&mut self, runtime: usize) -> Result<String> {
        let (kyma, id) = *RUNTIMES.get(runtime).context("no such runtime")?;
        let cluster = self.clusters.get(runtime + 1).context("no such cluster")?;
        let receiver = self.receiver.as_ref().context("there is no receiver")?;
        fleet::admit_agent(&cluster.client).await?;
        let folder = self.folder.join(format!("agent-{kyma}"));
        let identity = pki::issue(&receiver.event_path.ca, &folder, id, &fleet::domain(kyma))?;
        let kubeconfig = folder.join("runtime.yaml");
        write_private(&kubeconfig, &cluster.admit_agent(&self.server))?;
        let files = AgentFiles {
            id,
            receiver: &format!("https://{}", receiver.bound.events),
            protocol: "v3",
            ca: &receiver.event_path.ca_file,
            identity: &identity,
            kubeconfig: &kubeconfig,
            admin: "127.0.0.1:0",
        };
        let mut config = fleet::agent_config(files, &fleet::watches());
        config["receiver"]["proxy"] = Value::from("direct");
        let file = folder.join("agent.yaml");
        write_private(&file, &config.to_string())?;
        let config = tidewatch_agent::config::Config::load(&file)?;
        let bound = Box::pin(tidewatch_agent::app::start(config, Some(file), &self.agents_drain)).await?;
        let admin = format!("http://{}", bound.admin_addr);
        let status = format!("{admin}/status");
        let what = format!("the agent of {id} to be connected with its configuration, all watches watching");
        wait::until(&what, SOON, || async {
            let page = http::json(&status).await?;
            Ok((fleet::configured(&page) && fleet::connected(&page)).then_some(()))
        })
        .await?;
        self.agents.push(Agent { identity, admin: admin.clone() });
        Ok(admin)
    }
}
