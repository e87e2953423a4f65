//! Wires the agent's tasks, after the configuration is checked.

use crate::{
    EXIT_USAGE,
    args::Args,
    canary, check, client,
    config::{Config, ConfigError, Protocol},
    digest,
    live::{Configuration, Live},
    metrics::{Metrics, PREFIX},
    observe::{condition::Conditions, supervisor::Supervisor, watch::Shared},
    pause,
    send::{Connector, Progress, SendError, Sender, Settings, Target, Transport, v2::Translator},
    status,
};
use jiff::Timestamp;
use kube::Client;
use parking_lot::Mutex;
use std::{
    collections::BTreeMap, io, net::SocketAddr, path::PathBuf, process::ExitCode, sync::Arc, time::Duration,
};
use tidewatch_delivery::outbox::{KeepNames, Outbox};
use tidewatch_drain::{
    Cause, Drain,
    signal::{self, Signals},
};
use tidewatch_telemetry::{
    BuildInfo, Readiness, Reply,
    admin::{self, AdminState},
    chain,
    logging::{self, LoggingError},
    metrics::{MetricsError, Registry},
    stdio,
};
use tidewatch_tls::{BundleError, FilesError, Store};
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
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

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

/// Errors that prevent a start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Wrong configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Wrong logging configuration.
    #[error(transparent)]
    Logging(#[from] LoggingError),
    /// Unreadable TLS files.
    #[error(transparent)]
    TlsFiles(#[from] FilesError),
    /// Unusable TLS file.
    #[error("{file:?}, which the receiver section names, cannot be used")]
    Tls {
        /// The file.
        file: PathBuf,
        /// The cause.
        #[source]
        source: BundleError,
    },
    /// No access to the runtime's API server.
    #[error("no access to the runtime's API server; give kubeconfig or run in a pod with a service account")]
    Kube(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Wrong metric declaration (a defect).
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The admin address cannot be bound.
    #[error("the admin endpoint cannot listen on {addr}; is the port in use?")]
    Bind {
        /// The address.
        addr: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The receiver's host is invalid.
    #[error("the receiver's host cannot be used; check receiver.url")]
    Receiver(#[from] SendError),
    /// Threads or signals are unavailable.
    #[error("the runtime could not be started")]
    Runtime(#[source] io::Error),
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

/// Like [`start`], with `surroundings`; `way` may wrap the connector.
pub async fn start_within<T: Transport>(
    config: Config,
    file: Option<PathBuf>,
    surroundings: Surroundings,
    drain: &Drain,
    way: impl FnOnce(Connector) -> T,
) -> Result<Running, StartError> {
    let Config { runtime_id, receiver, admin_address, kubeconfig, .. } = config.clone();
    let clock: fn() -> Timestamp = Timestamp::now;
    let (host, port) = receiver.endpoint()?;
    let proxy = receiver.proxy(|name| std::env::var(name).ok())?;
    let files = receiver.files();
    let (pem, _) = files.read().await?;
    let tls = Store::client(&pem, clock()).map_err(|error| check::of_file(&files, error))?;
    let client = match surroundings.client {
        Some(client) => client,
        None => client::client(kubeconfig.as_deref()).await?,
    };

    let (readiness, conditions) = (Readiness::new(), Conditions::new());
    let registry = Registry::new(PREFIX, BUILD)?;
    let metrics = Metrics::register(&registry, &conditions)?;
    let configuration = Configuration::default();
    Metrics::register_configuration(&registry, &configuration)?;
    let bound = if surroundings.without_admin { None } else { Some(bind(admin_address).await?) };
    let admin_addr = bound.as_ref().map(|(_, addr)| *addr);

    let epoch = Epoch::random();
    if let Some(proxy) = &proxy {
        tracing::info!(%proxy, "the receiver is reached through a proxy");
    }
    tracing::info!(runtime = runtime_id, %epoch, ?admin_addr, watches = config.watches.len(), "starting");
    let (changes, taken) = mpsc::channel(CHANNEL);
    let (control, controlled) = mpsc::channel(1);
    let target = Target { host, port, proxy, tls, files };
    let mut connector = Connector::new(target, CONNECT_TIMEOUT, clock, metrics.clone())?;
    if receiver.protocol == Protocol::V2 {
        tracing::info!("the receiver is spoken to in v2: events count as done when it has taken them");
        connector = connector.speaking_v2(Translator::default());
    }
    let (resume, resumed) = watch::channel(0);
    let sender = Sender::new(
        Outbox::new(epoch, BTreeMap::new()),
        taken,
        way(connector.clone()),
        Settings {
            max_names: config.max_kept_names,
            connection_age: Duration::from_secs(receiver.connection_age_seconds),
            ..Settings::default()
        },
        metrics.clone(),
        clock,
        readiness.register("receiver"),
        resumed.clone(),
    )
    .controlled_by(controlled);
    let (keeper, memory) = digest::keeper(client.clone(), conditions.clone(), metrics.clone());
    drain.spawn("digest", keeper.run());
    let (applied, stand) = (configuration.clone(), conditions.clone());
    let keep_names = match receiver.protocol {
        Protocol::V3 => KeepNames::OfOthers,
        Protocol::V2 => KeepNames::OfAll,
    };
    let heard = conditions.clone();
    let sender = sender.with_memory(memory, keep_names).with_watches(move |watch| heard.get(watch)?.heard);
    let sender = sender.with_health(
        move || {
            let mut blind = stand.blind();
            // One name is enough, and requests limit their number.
            blind.truncate(limits::WATCHES);
            Health { configuration: applied.reported(), blind }
        },
        configuration.news(),
    );
    let (progress, baseline) = (sender.progress(), sender.baseline());
    drain.spawn("tls files", connector.watch_files(drain.watch()));
    let shutdown = drain.watch();
    drain.spawn("pauses", async move {
        tokio::select! {
            () = shutdown.signaled() => {}
            () = pause::watch(clock, resume) => {}
        }
    });
    drain.spawn_critical("sender", sender.run(drain.watch()));
    // Without acknowledgements (v2) the canary proves nothing.
    if receiver.protocol == Protocol::V3 {
        let (told, canaries, client_of_canary, shutdown) =
            (changes.clone(), metrics.clone(), client.clone(), drain.watch());
        drain.spawn_critical("canary", async move {
            tokio::select! {
                () = shutdown.signaled() => {}
                () = canary::run(client_of_canary, told, canaries, clock) => {}
            }
        });
    }
    let shared = Shared {
        changes,
        baseline,
        conditions: conditions.clone(),
        keep_names,
        metrics: metrics.clone(),
        clock,
        check_every: Duration::from_secs(config.check_every_seconds),
        resumed,
    };
    let supervisor = Supervisor::new(client.clone(), shared, control);
    let running = Running {
        admin_addr,
        epoch,
        progress: Arc::clone(&progress),
        conditions: conditions.clone(),
        configuration: configuration.clone(),
    };
    let live = Live::start(config, file, supervisor, &readiness, configuration.clone(), metrics, clock).await;
    drain.spawn_critical("configuration", live.run(client, drain.watch()));
    let state = AdminState::new(registry, readiness, BUILD).route("/status", move |_, _| {
        let progress = progress.lock().clone();
        Some(Reply::json(&status::page(&runtime_id, epoch, &configuration, &conditions, &progress)))
    });
    if let Some((listener, _)) = bound {
        admin::serve(listener, state, drain);
    }
    Ok(running)
}

async fn bind(addr: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let wrong = |source| StartError::Bind { addr, source };
    let listener = TcpListener::bind(addr).await.map_err(wrong)?;
    let bound = listener.local_addr().map_err(wrong)?;
    Ok((listener, bound))
}
