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
use tidewatch_api::names::{AGENT_NAME, KCP_NAMESPACE, RUNTIME_NAMESPACE};
use tidewatch_certs::rotation::Limits;
use tidewatch_drain::Drain;
use tidewatch_engine::{AgentInstall, Authority, EngineConfig};
use tidewatch_fake_apiserver::{
    Faults, Hosted, NoFaults, Options, Server, ServerOptions, Token, User, registry::Registry,
};
use tidewatch_planner::agent_install::AgentSettings;
use tidewatch_receiver::{
    self as receiver,
    agent_args::TlsSource,
    app,
    forward::target::Overrides,
    lease,
    paths::Settings,
    pki::{PkiIssuer, PkiSettings},
};

use crate::{
    files::write_private,
    fleet, http,
    kept::Variables,
    pod::Pod,
    story::{Cast, RUNTIMES, Runtime, Stage},
    wait,
};

const SOON: Duration = Duration::from_mins(1);
/// For reconciles in flight at the end.
const GRACE: Duration = Duration::from_secs(5);
/// A Deployment's visible time until ready.
const READY_AFTER: SignedDuration = SignedDuration::from_millis(300);
/// The image that no kubelet pulls here.
const IMAGE: &str = "tidewatch-agent";
const DAY: SignedDuration = SignedDuration::from_hours(24);
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

/// An agent and the files of its certificate.
struct Agent {
    ca: PathBuf,
    cert: PathBuf,
    key: PathBuf,
    admin: String,
}

/// The world, ended by [`Simulated::end`].
pub struct Simulated {
    folder: PathBuf,
    server: Server,
    registry: Registry,
    clusters: Vec<Cluster>,
    receiver: Option<receiver::Bound>,
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

    /// Starts one cluster, with a receiver that manages it, and a registry.
    pub async fn single(folder: &Path) -> Result<Self> {
        Self::of(folder, Arc::new(NoFaults), &CLUSTERS[..1]).await
    }

    /// As [`Simulated::start`], with faults.
    pub async fn with(folder: &Path, faults: Arc<dyn Faults>) -> Result<Self> {
        Self::of(folder, faults, &CLUSTERS).await
    }

    async fn of(folder: &Path, faults: Arc<dyn Faults>, names: &[&str]) -> Result<Self> {
        let drain = Drain::new();
        let server = Server::start(ServerOptions { faults, ..ServerOptions::default() }, &drain).await?;
        let registry = Registry::start(&drain).await?;
        let mut clusters = Vec::new();
        for (seed, name) in (1..).zip(names) {
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

    fn bound(&self) -> Result<&receiver::Bound> {
        self.receiver.as_ref().context("there is no receiver")
    }

    fn receiver_url(&self) -> Result<String> {
        let events = self.bound()?.events.context("there is no port for agents")?;
        Ok(format!("https://{events}"))
    }

    /// Returns the single cluster's client, and the registry's host.
    pub fn single_stage(&self) -> Result<(Client, String)> {
        let cluster = self.clusters.first().context("clusters are lacking")?;
        Ok((cluster.client.clone(), self.registry.host()))
    }

    /// Returns locations; `bin`: programs.
    pub fn variables(&self, bin: &Path) -> Result<Variables> {
        let [kcp, runtime1, runtime2] = self.clusters.as_slice() else {
            anyhow::bail!("clusters are lacking")
        };
        let agent = self.agents.first().context("there is no agent")?;
        Ok(Variables {
            kcp: kcp.file.clone(),
            runtimes: [runtime1.file.clone(), runtime2.file.clone()],
            receiver: self.receiver_url()?,
            receiver_admin: format!("http://{}", self.bound()?.admin),
            agent_admin: agent.admin.clone(),
            ca: agent.ca.clone(),
            agent_cert: agent.cert.clone(),
            agent_key: agent.key.clone(),
            registry: self.registry.url(),
            bin: bin.to_owned(),
        })
    }

    /// Waits for a part's end and names it.
    pub async fn broken(&self) -> String {
        let receiver = self.receiver.as_ref().map(|receiver| receiver.drain.watch());
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
            let _aborted = receiver.drain.shutdown(GRACE).await;
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
}

/// Returns an agent's service account.
pub fn agent_user() -> User {
    User::service_account(RUNTIME_NAMESPACE, AGENT_NAME)
}

impl Cast for Simulated {
    async fn receiver(&mut self) -> Result<String> {
        let kcp = self.clusters.first().context("there is no KCP")?;
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let single_cluster = self.clusters.len() == 1;
        let namespace = if single_cluster { RUNTIME_NAMESPACE } else { KCP_NAMESPACE };
        let listen = free_port().await?;
        let agents = AgentInstall {
            settings: AgentSettings {
                url: format!("https://{listen}"),
                image: IMAGE.to_owned(),
                proxy: None,
                pull_secret: None,
            },
            authority: Authority::default(),
            lifetime: DAY * 7,
        };
        let names = vec!["localhost".to_owned(), listen.ip().to_string()];
        let pki = PkiSettings {
            issuer: PkiIssuer::BuiltIn,
            server_names: names,
            server_lifetime: DAY * 30,
            ca_lifetime: DAY * 365,
            rotation: Limits { patience: DAY, agents: DAY * 7 },
        };
        let config = receiver::Config {
            listen,
            admin: any,
            tls: (!single_cluster).then_some(TlsSource::Secrets(pki)),
            proxies: None,
            kubeconfig: Some(kcp.engine_file.clone()),
            engine: EngineConfig {
                modules: self.registry.host(),
                namespace: namespace.to_owned(),
                agents: (!single_cluster).then_some(agents),
                single_cluster,
                ..self.engine.clone()
            },
            denied_servers: Vec::new(),
            routes: Overrides::default(),
            // Without polls, a lost event fails the demo.
            paths: Settings { poll: Duration::ZERO, resync: Duration::ZERO, ..Settings::default() },
            limits: tidewatch_listener::Limits::default(),
            queued: 1_000,
            identity: "demo".to_owned(),
            endpoint: None,
            // A sleeping machine must not end the demo.
            lease: Duration::from_secs(*lease::DURATIONS.end()),
            pause: false,
            registry_credentials: None,
            maintenance_policy: None,
            object_metrics: false,
        };
        let bound = Box::pin(app::start(config)).await?;
        let admin = format!("http://{}", bound.admin);
        self.receiver = Some(bound);
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
        let folder = self.folder.join(format!("agent-{kyma}"));
        let kubeconfig =
            |token: &str| Ok(self.server.kubeconfig_for(cluster.hosted.name(), &cluster.url, token));
        let receiver = self.receiver_url()?;
        let pod = Pod::prepare(&cluster.client, (id, &receiver), &folder, "127.0.0.1:0", kubeconfig).await?;
        let config = tidewatch_agent::config::Config::load(&pod.config)?;
        let file = Some(pod.config.clone());
        let bound = Box::pin(tidewatch_agent::app::start(config, file, &self.agents_drain)).await?;
        let admin = format!("http://{}", bound.admin_addr);
        let status = format!("{admin}/status");
        let what = format!("the agent of {id} to be connected with its configuration, all watches watching");
        wait::until(&what, SOON, || async {
            let page = http::json(&status).await?;
            Ok((fleet::configured(&page) && fleet::connected(&page)).then_some(()))
        })
        .await?;
        let (cert, key) = pod.identity(&cluster.client).await?;
        self.agents.push(Agent { cert, key, ca: pod.folder.join("ca.crt"), admin: admin.clone() });
        Ok(admin)
    }
}

/// Agents are told the port before the receiver opens it.
async fn free_port() -> Result<SocketAddr> {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    Ok(listener.local_addr()?)
}
