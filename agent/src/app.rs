//! Wires the agent's tasks, after the configuration is checked.

use crate::{
    EXIT_USAGE,
    args::Args,
    canary, check,
    client::{self, CONNECT_TIMEOUT},
    config::{Config, Credentials, Protocol},
    digest,
    enrolment::Enroller,
    live::{Configuration, Live},
    metrics::{Metrics, PREFIX},
    observe::{
        condition::Conditions,
        message::{Baseline, Message},
        supervisor::Supervisor,
        watch::Shared,
    },
    pause,
    send::{
        Connector, Progress, SendError, Sender, Settings, Source, Target, Transport, proxy::Proxy,
        v2::Translator,
    },
    status,
};
use jiff::Timestamp;
use kube::Client;
use parking_lot::Mutex;
use std::{
    collections::BTreeMap, net::SocketAddr, path::PathBuf, process::ExitCode, sync::Arc, time::Duration,
};
use tidewatch_delivery::outbox::{KeepNames, Outbox};
use tidewatch_drain::{
    Cause, Drain,
    signal::{self, Signals},
};
use tidewatch_telemetry::{
    BuildInfo, Readiness, Reply,
    admin::{self, AdminState},
    chain, logging,
    metrics::{MetricsError, Registry},
    stdio,
};
use tidewatch_tls::Store;
use tidewatch_wire::{Epoch, limits, v3::Health};
use tokio::{
    net::TcpListener,
    runtime::Runtime,
    sync::{mpsc, watch},
};

/// When full, watches wait and the backlog stays in the API server.
const CHANNEL: usize = 256;
/// Shutdown limit: enough to store and declare the digest.
const GRACE: Duration = Duration::from_secs(10);
/// Blocking threads; one may hang.
const BLOCKING: usize = 2;

pub use crate::start_error::StartError;

/// This build.
pub const BUILD: BuildInfo = BuildInfo::new("tidewatch-agent", env!("CARGO_PKG_VERSION"));

/// A started agent.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// The admin endpoint's address, with the real port.
    pub admin_addr: SocketAddr,
    /// This run's epoch.
    pub epoch: Epoch,
}

/// Dependencies from the caller, for many agents in one process.
#[derive(Clone, Default)]
pub struct Surroundings {
    /// Client of the runtime; default: as configured. It must end silent watches (the default client does after 75
    /// s).
    pub client: Option<Client>,
    /// Whether to skip the admin endpoint.
    pub without_admin: bool,
}

impl std::fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { client, without_admin } = self;
        f.debug_struct("Surroundings")
            .field("client", &client.is_some())
            .field("without_admin", without_admin)
            .finish()
    }
}

/// Handles of a running agent.
#[derive(Clone, Debug)]
pub struct Running {
    /// The admin endpoint's address.
    pub admin_addr: Option<SocketAddr>,
    /// This run's epoch.
    pub epoch: Epoch,
    /// State of sending.
    pub progress: Arc<Mutex<Progress>>,
    /// State of the watches.
    pub conditions: Conditions,
    /// The configuration in use.
    pub configuration: Configuration,
}

/// Runs the agent until a signal or a fatal error, and prints errors.
pub fn run(args: &Args) -> ExitCode {
    let result = run_checked(args);
    result.unwrap_or_else(|error| {
        let line = chain(&error).to_string().replace('\n', " ");
        stdio::note(&format!("tidewatch-agent: {line}"));
        match error {
            StartError::Config(_) | StartError::Logging(_) => ExitCode::from(EXIT_USAGE),
            _ => ExitCode::FAILURE,
        }
    })
}

fn run_checked(args: &Args) -> Result<ExitCode, StartError> {
    let Args { config, log_format, log_level, check } = args;
    let path = config.clone();
    let config = Config::load(&path)?;
    if *check {
        let good = runtime()?.block_on(check::check(&config, Timestamp::now()))?;
        // Standard output may be closed.
        let _ = stdio::result(&format!("{} is good: {good}", path.display()));
        return Ok(ExitCode::SUCCESS);
    }
    logging::init(*log_format, log_level)?;
    runtime()?.block_on(async {
        let signals = Signals::listen().map_err(StartError::Runtime)?;
        let drain = Drain::new();
        start(config, Some(path), &drain).await?;
        let _ = signal::run(signals, &drain, GRACE).await;
        let clean = drain.cause() == Some(Cause::Requested);
        Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    })
}

/// Uses one thread to save memory. Lists are paged, so probes are answered between pages.
fn runtime() -> Result<Runtime, StartError> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.max_blocking_threads(BLOCKING).enable_all().build().map_err(StartError::Runtime)
}

/// Starts all tasks on `drain`. `file` is reread when it changes.
pub async fn start(config: Config, file: Option<PathBuf>, drain: &Drain) -> Result<Bound, StartError> {
    let addr = config.admin_address;
    let running =
        Box::pin(start_within(config, file, Surroundings::default(), drain, |connector| connector)).await?;
    Ok(Bound { admin_addr: running.admin_addr.unwrap_or(addr), epoch: running.epoch })
}

/// Like [`start`], with `surroundings`; `wrap` may wrap the connector.
pub async fn start_within<T: Transport>(
    config: Config,
    file: Option<PathBuf>,
    surroundings: Surroundings,
    drain: &Drain,
    wrap: impl FnOnce(Connector) -> T,
) -> Result<Running, StartError> {
    let Surroundings { client, without_admin } = surroundings;
    let client = match client {
        Some(client) => client,
        None => client::client(config.kubeconfig.as_deref()).await?,
    };
    let registry = Registry::new(PREFIX, BUILD)?;
    let agent = Agent::new(config, client, &registry)?;
    let target = agent.target(drain).await?;
    let bound = if without_admin { None } else { Some(bind(agent.config.admin_address).await?) };
    let admin_addr = bound.as_ref().map(|(_, addr)| *addr);
    let epoch = Epoch::random();
    agent.log_start(target.proxy.as_ref(), epoch, admin_addr);

    let connector = agent.connector(target)?;
    drain.spawn("certificates", connector.clone().watch_certificates(drain.watch()));
    let trusted = connector.clone();
    let progress = agent.run(epoch, file, wrap(connector), move || trusted.trust(), drain).await;
    if let Some((listener, _)) = bound {
        admin::serve(listener, agent.admin(registry, epoch, Arc::clone(&progress)), drain);
    }
    let Agent { conditions, configuration, .. } = agent;
    Ok(Running { admin_addr, epoch, progress, conditions, configuration })
}

/// An agent within the receiver's process, which watches the receiver's own cluster.
pub struct Embedded(Agent);

impl Embedded {
    /// Connects to the cluster, and registers the agent's metrics in the process's registry.
    pub async fn prepare(config: Config, registry: &Registry) -> Result<Self, StartError> {
        let client = client::client(config.kubeconfig.as_deref()).await?;
        Ok(Self(Agent::new(config, client, &registry.named_as(PREFIX))?))
    }

    /// Starts all tasks on `drain`; requests go over `transport`.
    pub async fn start(self, transport: impl Transport, drain: &Drain) {
        let epoch = Epoch::random();
        self.0.log_start(None, epoch, None);
        self.0.run(epoch, None, transport, String::new, drain).await;
    }
}

/// Parts that the tasks share.
struct Agent {
    config: Config,
    client: Client,
    clock: fn() -> Timestamp,
    readiness: Readiness,
    conditions: Conditions,
    configuration: Configuration,
    metrics: Metrics,
}

impl Agent {
    /// Starts watches, canary and sender.
    async fn run<T: Transport>(
        &self,
        epoch: Epoch,
        file: Option<PathBuf>,
        transport: T,
        trust: impl Fn() -> String + Send + 'static,
        drain: &Drain,
    ) -> Arc<Mutex<Progress>> {
        let (messages, received) = mpsc::channel(CHANNEL);
        let (control, controlled) = mpsc::channel(1);
        let (resume, resumed) = watch::channel(0);
        let (keeper, memory) =
            digest::keeper(self.client.clone(), self.conditions.clone(), self.metrics.clone());
        let outbox = Outbox::new(epoch, BTreeMap::new());
        let sender = self.sender(outbox, received, transport, resumed.clone(), trust);
        let sender = sender.controlled_by(controlled).with_memory(memory, self.keep_names());
        let (progress, baseline) = (sender.progress(), sender.baseline());

        drain.spawn("digest", keeper.run());
        spawn_until_shutdown(drain, "pauses", pause::watch(self.clock, resume));
        drain.spawn_critical("sender", sender.run(drain.watch()));
        self.spawn_canary(&messages, drain);
        let shared = self.shared(messages, baseline, resumed);
        let supervisor = Supervisor::new(self.client.clone(), shared, control);
        self.spawn_live(file, supervisor, drain).await;
        progress
    }

    fn new(config: Config, client: Client, registry: &Registry) -> Result<Self, MetricsError> {
        let (conditions, configuration) = (Conditions::new(), Configuration::default());
        let metrics = Metrics::register(registry, &conditions)?;
        configuration.register(registry)?;
        let (clock, readiness): (fn() -> Timestamp, _) = (Timestamp::now, Readiness::new());
        Ok(Self { config, client, clock, readiness, conditions, configuration, metrics })
    }

    /// Chooses the proxy, and reads the TLS files or starts the enrolment.
    async fn target(&self, drain: &Drain) -> Result<Target, StartError> {
        let receiver = &self.config.receiver;
        let (host, port) = receiver.endpoint()?;
        let proxy = receiver.proxy(|name| std::env::var(name).ok())?;
        let (tls, source) = match receiver.credentials()? {
            Credentials::Files(files) => {
                let tls = Store::client(&files.read().await?, (self.clock)());
                (Some(tls.map_err(|error| check::of_file(&files, error))?), files.into())
            }
            Credentials::Enrolment { ca, objects } => {
                let (client, runtime) = (self.client.clone(), self.config.runtime_id.clone());
                let enroller =
                    Enroller::new(client, objects, runtime, ca.clone(), self.clock, self.metrics.clone());
                let (identity, refused) = (enroller.identity(), enroller.refused());
                spawn_until_shutdown(drain, "enrolment", enroller.run());
                (None, Source::Enrolment { ca, identity, refused })
            }
        };
        Ok(Target { host, port, proxy, tls, source })
    }

    fn log_start(&self, proxy: Option<&Proxy>, epoch: Epoch, admin_addr: Option<SocketAddr>) {
        if let Some(proxy) = proxy {
            tracing::info!(%proxy, "the receiver is reached through a proxy");
        }
        let Config { runtime_id, watches, receiver, .. } = &self.config;
        tracing::info!(runtime = runtime_id, %epoch, ?admin_addr, watches = watches.len(), "starting");
        if receiver.protocol == Protocol::V2 {
            tracing::info!("the agent speaks v2: an event is acknowledged when the receiver accepts it");
        }
    }

    fn connector(&self, target: Target) -> Result<Connector, SendError> {
        let connector = Connector::new(target, CONNECT_TIMEOUT, self.clock, self.metrics.clone())?;
        Ok(match self.config.receiver.protocol {
            Protocol::V3 => connector,
            Protocol::V2 => connector.speaking_v2(Translator::default()),
        })
    }

    const fn keep_names(&self) -> KeepNames {
        match self.config.receiver.protocol {
            Protocol::V3 => KeepNames::OfOthers,
            Protocol::V2 => KeepNames::OfAll,
        }
    }

    fn sender<T: Transport>(
        &self,
        outbox: Outbox,
        messages: mpsc::Receiver<Message>,
        transport: T,
        resumed: watch::Receiver<u64>,
        trust: impl Fn() -> String + Send + 'static,
    ) -> Sender<T> {
        let settings = Settings {
            max_names: self.config.max_kept_names,
            connection_age: Duration::from_secs(self.config.receiver.connection_age_seconds),
            ..Settings::default()
        };
        let (metrics, unready) = (self.metrics.clone(), self.readiness.register("receiver"));
        let sender =
            Sender::new(outbox, messages, transport, settings, metrics, self.clock, unready, resumed);
        let conditions = self.conditions.clone();
        let sender = sender.with_watches(move |watch| conditions.get(watch)?.last_data);
        let (configuration, conditions) = (self.configuration.clone(), self.conditions.clone());
        let installation = self.config.installation(|name| std::env::var(name).ok());
        let health = move || {
            let mut blind = conditions.blind();
            // One name is enough, and requests limit their number.
            blind.truncate(limits::WATCHES);
            Health {
                configuration: configuration.reported(),
                blind,
                trust: trust(),
                installation: installation.clone(),
            }
        };
        sender.with_health(health, self.configuration.changes())
    }

    /// Without acknowledgements (v2) the canary proves nothing.
    fn spawn_canary(&self, messages: &mpsc::Sender<Message>, drain: &Drain) {
        if self.config.receiver.protocol == Protocol::V3 {
            let (client, metrics) = (self.client.clone(), self.metrics.clone());
            let canary = canary::run(client, messages.clone(), metrics, self.clock);
            let shutdown = drain.watch();
            drain.spawn_critical("canary", async move {
                tokio::select! {
                    () = shutdown.signaled() => {}
                    () = canary => {}
                }
            });
        }
    }

    fn shared(
        &self,
        changes: mpsc::Sender<Message>,
        baseline: watch::Receiver<Baseline>,
        resumed: watch::Receiver<u64>,
    ) -> Shared {
        Shared {
            changes,
            baseline,
            conditions: self.conditions.clone(),
            keep_names: self.keep_names(),
            metrics: self.metrics.clone(),
            clock: self.clock,
            check_every: Duration::from_secs(self.config.check_every_seconds),
            resumed,
        }
    }

    async fn spawn_live(&self, file: Option<PathBuf>, supervisor: Supervisor, drain: &Drain) {
        let live = Live::start(
            self.config.clone(),
            file,
            supervisor,
            &self.readiness,
            self.configuration.clone(),
            self.metrics.clone(),
            self.clock,
        );
        drain.spawn_critical("configuration", live.await.run(self.client.clone(), drain.watch()));
    }

    fn admin(&self, registry: Registry, epoch: Epoch, progress: Arc<Mutex<Progress>>) -> AdminState {
        let runtime_id = self.config.runtime_id.clone();
        let (configuration, conditions) = (self.configuration.clone(), self.conditions.clone());
        AdminState::new(registry, self.readiness.clone(), BUILD).route("/status", move |_, _| {
            let progress = progress.lock().clone();
            Some(Reply::json(&status::page(&runtime_id, epoch, &configuration, &conditions, &progress)))
        })
    }
}

fn spawn_until_shutdown(drain: &Drain, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
    let shutdown = drain.watch();
    drain.spawn(name, async move {
        tokio::select! {
            () = shutdown.signaled() => {}
            () = task => {}
        }
    });
}

async fn bind(addr: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let wrong = |source| StartError::Bind { addr, source };
    let listener = TcpListener::bind(addr).await.map_err(wrong)?;
    let bound = listener.local_addr().map_err(wrong)?;
    Ok((listener, bound))
}
