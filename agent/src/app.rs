//! Wires the agent. Everything that can be wrong with its configuration shows before anything is bound.

use crate::{
    EXIT_USAGE,
    args::Args,
    config::{Config, ConfigError},
    digest,
    metrics::{Metrics, PREFIX},
    observe::{
        condition::Conditions,
        watch::{Shared, Watcher},
    },
    send::{Connector, Sender, Settings, Target},
    status,
};
use jiff::Timestamp;
use kube::{
    Client,
    config::{KubeConfigOptions, Kubeconfig},
};
use std::{collections::BTreeMap, io, net::SocketAddr, process::ExitCode, time::Duration};
use tidewatch_delivery::outbox::Outbox;
use tidewatch_drain::{Cause, Drain, signal};
use tidewatch_telemetry::{
    BuildInfo, Readiness, Reply,
    admin::{self, AdminState},
    chain,
    logging::{self, LoggingError},
    metrics::{MetricsError, Registry},
};
use tidewatch_tls::{BundleError, FilesError, Store};
use tidewatch_wire::{Epoch, v3::Health};
use tokio::{net::TcpListener, sync::mpsc};

/// Changes between the watches and the sender. The sender takes them at once; this is for its pauses, and a watch
/// that finds it full waits while the rest stays in the API server.
const CHANNEL: usize = 1024;
/// For the tasks at shutdown: the digest is stored and declared once more.
const GRACE: Duration = Duration::from_secs(10);
/// For connections to the API server and to the receiver.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Nothing read for this long ends a connection to the API server; longer than a watch request lasts.
const READ_TIMEOUT: Duration = Duration::from_secs(210);

/// This build.
pub const BUILD: BuildInfo = BuildInfo::new("tidewatch-agent", env!("CARGO_PKG_VERSION"));

/// A running agent.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// Where the admin endpoint listens, with the real port.
    pub admin_addr: SocketAddr,
    /// This run's epoch.
    pub epoch: Epoch,
}

/// Why the agent could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Logging is configured wrongly.
    #[error(transparent)]
    Logging(#[from] LoggingError),
    /// The TLS files cannot be read.
    #[error(transparent)]
    TlsFiles(#[from] FilesError),
    /// The TLS files have no usable bundle.
    #[error("the TLS files of the receiver section cannot be used")]
    Tls(#[from] BundleError),
    /// There is no usable access to the runtime's API server.
    #[error("no access to the runtime's API server; give kubeconfig or run in a pod with a service account")]
    Kube(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The metrics are declared wrongly; a defect.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The admin address cannot be bound.
    #[error("the admin endpoint cannot listen on {addr}; is the port in use?")]
    Bind {
        /// The address.
        addr: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The process may not run threads or handle signals.
    #[error("the runtime could not be started")]
    Runtime(#[source] io::Error),
}

/// Runs the agent until a signal or a fatal error. The error's line has been shown when this returns.
pub fn run(args: &Args) -> ExitCode {
    let result = run_checked(args);
    result.unwrap_or_else(|error| {
        let line = chain(&error).to_string().replace('\n', " ");
        let _ = io::Write::write_all(&mut io::stderr(), format!("tidewatch-agent: {line}\n").as_bytes());
        match error {
            StartError::Config(_) | StartError::Logging(_) => ExitCode::from(EXIT_USAGE),
            _ => ExitCode::FAILURE,
        }
    })
}

fn run_checked(args: &Args) -> Result<ExitCode, StartError> {
    let Args { config, log_format, log_level, check } = args;
    let config = Config::load(config)?;
    if *check {
        return Ok(ExitCode::SUCCESS);
    }
    logging::init(*log_format, log_level)?;
    // Two threads: one may parse a long list while the other answers a probe.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.map_err(StartError::Runtime)?.block_on(async {
        let drain = Drain::new();
        start(config, &drain).await?;
        let _ = signal::run(&drain, GRACE).await.map_err(StartError::Runtime)?;
        let clean = drain.cause() == Some(Cause::Requested);
        Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    })
}

/// Starts all tasks on `drain` and returns the real addresses.
pub async fn start(config: Config, drain: &Drain) -> Result<Bound, StartError> {
    let Config { runtime_id, receiver, admin_address, kubeconfig, max_objects_per_watch, watches } = config;
    let clock: fn() -> Timestamp = Timestamp::now;
    let (host, port) = receiver.endpoint()?;
    let files = receiver.files();
    let (pem, _) = files.read().await?;
    let tls = Store::client(&pem, clock())?;
    let client = client(kubeconfig.as_deref()).await?;

    let (readiness, conditions) = (Readiness::new(), Conditions::new());
    let registry = Registry::new(PREFIX, BUILD)?;
    let metrics = Metrics::register(&registry, &conditions)?;
    let listener = TcpListener::bind(admin_address).await;
    let listener = listener.map_err(|source| StartError::Bind { addr: admin_address, source })?;
    let admin_addr =
        listener.local_addr().map_err(|source| StartError::Bind { addr: admin_address, source })?;

    let epoch = Epoch::random();
    tracing::info!(runtime = runtime_id, %epoch, %admin_addr, watches = watches.len(), "starting");
    let (changes, taken) = mpsc::channel(CHANNEL);
    let sender = Sender::new(
        Outbox::new(epoch, BTreeMap::new()),
        taken,
        Connector::new(Target { host, port, tls, files }, CONNECT_TIMEOUT, clock),
        Settings::default(),
        metrics.clone(),
        clock,
        readiness.register("receiver"),
    );
    let (keeper, memory) = digest::keeper(client.clone(), conditions.clone(), metrics.clone());
    drain.spawn("digest", keeper.run());
    let health = conditions.clone();
    let sender = sender
        .with_memory(memory)
        .with_health(move || Health { configuration: String::new(), blind: health.blind() });
    let progress = sender.progress();
    let baseline = sender.baseline();
    let shared = Shared { changes, baseline, conditions: conditions.clone(), metrics, clock };
    for watch in watches {
        let guard = readiness.register(format!("watch {}", watch.name));
        let name = format!("watch {}", watch.name);
        let watcher = Watcher::new(watch, max_objects_per_watch, shared.clone(), guard);
        let (client, shutdown) = (client.clone(), drain.watch());
        drain.spawn_critical(name, async move {
            tokio::select! {
                () = shutdown.signaled() => {}
                () = watcher.run(client) => {}
            }
        });
    }
    drain.spawn_critical("sender", sender.run(drain.watch()));
    let state = AdminState::new(registry, readiness, BUILD).route("/status", move |_, _| {
        let progress = progress.lock().clone();
        Some(Reply::json(&status::page(&runtime_id, epoch, &conditions, &progress)))
    });
    admin::serve(listener, state, drain);
    Ok(Bound { admin_addr, epoch })
}

async fn client(kubeconfig: Option<&std::path::Path>) -> Result<Client, StartError> {
    let mut config = match kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path).map_err(|e| StartError::Kube(e.into()))?;
            let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
            config.map_err(|e| StartError::Kube(e.into()))?
        }
        None => kube::Config::infer().await.map_err(|e| StartError::Kube(e.into()))?,
    };
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    // Each watch retries by itself, with a backoff of its own.
    config.default_retry = false;
    Client::try_from(config).map_err(|e| StartError::Kube(e.into()))
}
