//! Wires the receiver.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{Method, StatusCode};
use jiff::Timestamp;
use rustls::ServerConfig;
use tidewatch_drain::{
    Drain, Outcome, Watch,
    signal::{self, Signals},
};
use tidewatch_engine::{
    Engine, WorkKey,
    clusters::{AddressPolicy, Answered},
    history::{Observer, Record},
};
use tidewatch_listener::{Admission, Deliveries, Guard, Intake, Limits, RefusalLog, listener};
use tidewatch_telemetry::{
    BuildInfo, Readiness,
    admin::{self, AdminState},
    chain,
    metrics::Registry,
};
use tidewatch_tls::{Files, Proxies, ProxyFiles, ReloadError, Reloaded, Store};
use tidewatch_wire::SessionId;
use tokio::{
    net::TcpListener,
    sync::{oneshot, watch},
};
use tokio_util::sync::CancellationToken;

use crate::{
    claims::ClaimBook,
    config::{Config, StartError},
    controllers::{self, ControllerMetrics, RUNTIMES},
    forward::{Forwarders, lane},
    host::{EngineHost, OWN_MANAGER, refused_metric},
    kcp_client::{kcp_client, kube_config, own_server},
    klm::{self, KlmMetrics},
    lease::Candidate,
    maintenance::PolicyFile,
    metrics::Metrics,
    path_watch::PathWatch,
    paths::Look,
    pause,
    registry_credentials::RegistryCredentials,
    runtimes_page,
    sessions::{Place, Sessions},
    sizes,
    switch::Switch,
};

const RELOAD: Duration = Duration::from_secs(30);
const SWEEP: Duration = Duration::from_mins(1);

/// A receiver with open ports.
pub struct Bound {
    /// Agents' address.
    pub events: SocketAddr,
    /// Admin endpoint's address.
    pub admin: SocketAddr,
    /// Owns all tasks.
    pub drain: Drain,
}

/// Checks the configuration before opening ports, then starts all tasks.
pub async fn start(config: Config) -> Result<Bound, StartError> {
    let Config {
        listen,
        admin: admin_address,
        tls,
        proxies,
        kubeconfig,
        mut engine,
        registry_credentials,
        denied_servers,
        routes,
        paths,
        limits,
        queued,
        place: at,
        lease,
        pause,
        maintenance_policy,
        object_metrics,
    } = config;
    let (pem, _) = tls.read().await.map_err(|e| StartError::Tls(e.into()))?;
    let store = Store::server(&pem, Timestamp::now()).map_err(|e| StartError::Tls(e.into()))?;
    let trusted = match &proxies {
        Some(files) => Proxies::load(files).await.map_err(StartError::Proxies)?,
        None => Proxies::none(),
    };
    let trusted = Arc::new(trusted);
    let kube = kube_config(kubeconfig).await?;
    engine.addresses = AddressPolicy::new(denied_servers.into_iter().chain(own_server(&kube)))?;
    let drain = Drain::new();
    let build = BuildInfo::new("tidewatch-receiver", env!("CARGO_PKG_VERSION"));
    let registry = Registry::new("tidewatch_receiver", build)?;
    let controllers = ControllerMetrics::register(&registry)?;
    let (ear, host) = (controllers.clone(), own_server(&kube).unwrap_or_default());
    let counted: Answered = Arc::new(move |method, code| ear.answered(&host, method, code));
    let client = kcp_client(kube, engine.call_deadline, Some(counted))?;
    let paths = PathWatch::new(paths);
    let metrics = Metrics::register(&registry)?;
    let klm = KlmMetrics::register(&registry, object_metrics)?;
    let leading = controllers.clone();
    let intake_metrics = tidewatch_listener::Metrics::register(&registry)?;
    let (session, sessions) = (SessionId::random(), Sessions::default());
    let claims = ClaimBook::new(session, sessions.clone());
    let place = Place { client: client.clone(), namespace: engine.namespace.clone(), session };
    let observer: Arc<dyn Observer> = Arc::new(Observed {
        metrics: metrics.clone(),
        klm,
        controllers,
        paths: paths.clone(),
        claims: claims.clone(),
    });
    let namespace = engine.namespace.clone();
    let workers = engine.workers;
    let engine = Engine::new(client.clone(), engine, observer, Arc::new(Timestamp::now))?;
    let credentials = match registry_credentials {
        Some(file) => Some(RegistryCredentials::new(file, &engine).await?),
        None => None,
    };
    let switch = Switch::new(engine.clone(), &registry)?;
    let mut windows = PolicyFile::new(maintenance_policy, &engine, &registry)?;
    if let Some(windows) = &mut windows {
        // An unusable policy does not prevent the start.
        windows.look().await;
    }
    let candidate = Candidate {
        client: client.clone(),
        namespace: namespace.clone(),
        // The prefix excludes Leases of a Go manager on this host.
        place: format!("tidewatch.{at}"),
        id: session.to_string(),
        duration: lease,
    };
    let deliveries = Deliveries::new(session).with_capacity(limits.held);
    let forwarders =
        Forwarders::new(OWN_MANAGER, engine.clone(), routes, lane::Limits::default(), &registry)?;
    let refused = refused_metric(&registry)?;
    let known = Arc::new(AtomicBool::new(false));
    sizes::register(&registry, &engine, &deliveries, &paths)?;
    controllers::register_sizes(&registry, &engine, workers)?;
    let store = Arc::new(store);
    let certificates = klm::register_sizes(&registry, &engine, &store, object_metrics)?;

    let events_listener = bind(listen).await?;
    let admin_listener = bind(admin_address).await?;
    let address =
        |l: &TcpListener, a| l.local_addr().map_err(|source| StartError::Listen { address: a, source });
    let (events, admin) = (address(&events_listener, listen)?, address(&admin_listener, admin_address)?);

    let readiness = Readiness::new();
    // Before the admin endpoint answers: with nothing registered, it would report ready.
    let (leader_ready, ready) = (readiness.register("lease"), readiness.register("control plane"));
    let state =
        AdminState::new(registry, readiness.clone(), build).route(format!("{}*", runtimes_page::PREFIX), {
            let (engine, deliveries, paths) = (engine.clone(), deliveries.clone(), paths.clone());
            move |path, _| runtimes_page::page(&engine, &deliveries, &paths, path)
        });
    admin::serve(admin_listener, state, &drain);

    let intake = Arc::new(Intake {
        host: Arc::new(EngineHost {
            engine: engine.clone(),
            forwarders: forwarders.clone(),
            paths: paths.clone(),
            claims: claims.clone(),
            ready: Arc::clone(&known),
            namespace: namespace.clone(),
            refused,
            lines: RefusalLog::new(),
            certificates,
        }),
        deliveries: deliveries.clone(),
        metrics: intake_metrics,
        admission: admission(limits, queued, &engine),
        drain: drain.watch(),
        proxies: Arc::clone(&trusted),
        clock: Timestamp::now,
    });
    drain.spawn("tls-reload", reload(Arc::clone(&store), tls, drain.watch()));
    if let Some(files) = proxies {
        drain.spawn("proxies-reload", reload_proxies(trusted, files, drain.watch()));
    }
    if let Some(credentials) = credentials {
        drain.spawn("registry-credentials", credentials.follow(drain.watch()));
    }
    if let Some(windows) = windows {
        drain.spawn("maintenance-policy", windows.follow(drain.watch()));
    }
    drain.spawn("ledger-sweep", sweep(engine.clone(), deliveries, claims, forwarders.clone(), drain.watch()));
    drain.spawn_critical("forward", forwarders.run(drain.watch()));
    let (tell_leads, leads) = watch::channel(false);
    let looked = move |look| metrics.looks.with_label_values(&[look_label(look)]).inc();
    // The grace period of unknown runtimes begins with leadership.
    let looking = paths.run(engine.clone(), looked, drain.watch());
    drain.spawn("event-paths", after(leads.clone(), drain.watch(), looking));
    let following = pause::follow(client, namespace.clone(), pause, switch.clone());
    drain.spawn_background("pause", following);

    let (engine_runs, engine_ended) = oneshot::channel::<()>();
    let lease_watch = drain.watch();
    drain.spawn_critical("lease", async move {
        let mut term = tokio::select! {
            term = candidate.acquire() => term,
            () = lease_watch.signaled() => return,
        };
        tracing::info!(transitions = term.transitions(), "this receiver works: it holds the Lease");
        switch.leads(true);
        leading.leads();
        leader_ready.ready();
        tell_leads.send_replace(true);
        let lost = tokio::select! {
            lost = term.keep() => Some(lost),
            () = lease_watch.signaled() => None,
        };
        // Shutdown: keep the Lease until the engine has finished.
        let lost = match lost {
            Some(lost) => Some(lost),
            None => tokio::select! {
                lost = term.keep() => Some(lost),
                _ = engine_ended => None,
            },
        };
        switch.leads(false);
        match lost {
            Some(lost) => {
                tracing::error!(error = %chain(&lost), "this receiver does not work any more; ending");
            }
            None => term.release().await,
        }
    });
    let watch = drain.watch();
    let listen_watch = drain.watch();
    drain.spawn_critical("engine", async move {
        let _runs = engine_runs;
        let stop = CancellationToken::new();
        let stopper = stop.clone();
        let run = engine.run(stop, move || {
            known.store(true, Ordering::Release);
            ready.ready();
        });
        tokio::pin!(run);
        tokio::select! {
            () = &mut run => return,
            () = watch.signaled() => stopper.cancel(),
        }
        run.await;
    });
    let ((tell_recorded, recorded), record_watch) = (oneshot::channel(), drain.watch());
    let mut may_record = leads;
    drain.spawn_critical("session", async move {
        // Two waiting receivers would overwrite each other's sessions.
        tokio::select! {
            _ = may_record.wait_for(|leads| *leads) => {}
            () = record_watch.signaled() => return,
        }
        tokio::select! {
            () = sessions.record(&place) => {}
            () = record_watch.signaled() => return,
        }
        let _ = tell_recorded.send(());
        tokio::select! {
            () = sessions.keep(&place) => {}
            () = record_watch.signaled() => {}
        }
    });
    drain.spawn_critical("events", async move {
        // Serve agents only after the past sessions are known.
        tokio::select! {
            _ = recorded => {}
            () = listen_watch.signaled() => {}
        }
        listener::serve(events_listener, store, intake, Timestamp::now, listen_watch).await;
    });
    tracing::info!(%events, %admin, "the receiver listens");
    Ok(Bound { events, admin, drain })
}

/// Runs until a signal, then for at most `grace`. Returns whether all tasks finished.
pub async fn run(config: Config, grace: Duration) -> anyhow::Result<bool> {
    let signals = Signals::listen()?;
    use_small_pages();
    let bound = start(config).await?;
    let outcome = signal::run(signals, &bound.drain, grace).await;
    Ok(matches!(outcome, Outcome::Finished))
}

/// Disables huge pages, which add a fifth to the memory and save no CPU time (`docs/concepts/scale.md`).
fn use_small_pages() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "huge pages stay");
    }
}

async fn after(mut leads: watch::Receiver<bool>, stop: Watch, work: impl Future<Output = ()>) {
    let leads = tokio::select! {
        leads = leads.wait_for(|leads| *leads) => leads.is_ok(),
        () = stop.signaled() => false,
    };
    if leads {
        work.await;
    }
}

/// Admits events until `queued` keys are ready.
fn admission(limits: Limits, queued: usize, engine: &Engine) -> Admission {
    let queue = engine.queue().clone();
    Admission::new(limits, Timestamp::now()).with_work(move || {
        let ready: usize = queue.inspect(|q| q.ready().map(|(_, keys)| keys).sum());
        #[expect(clippy::cast_precision_loss, reason = "a count of keys is far below 2^52")]
        let load = ready as f64 / queued.max(1) as f64;
        load
    })
}

async fn bind(address: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(address).await.map_err(|source| StartError::Listen { address, source })
}

const fn look_label(look: Look) -> &'static str {
    match look {
        Look::Poll => "poll",
        Look::Resync => "resync",
    }
}

struct Observed {
    metrics: Metrics,
    klm: KlmMetrics,
    controllers: ControllerMetrics,
    paths: PathWatch,
    claims: ClaimBook,
}

impl Observer for Observed {
    fn reconciled(&self, key: &WorkKey, record: &Record) {
        // Only a reconcile that read the runtime ends claims.
        if record.looked && matches!(key, WorkKey::Kyma { .. } | WorkKey::Manifest { .. }) {
            self.claims.touched(key.kyma());
        }
        self.metrics.reconciled(key, record);
        self.klm.reconciled(key, record);
        self.controllers.reconciled(key, record);
    }

    fn panicked(&self, key: &WorkKey) {
        self.controllers.panicked(key);
    }

    fn no_news(&self, events: usize) {
        self.metrics.no_news.inc_by(events as u64);
    }

    fn answered(&self, method: &Method, code: Option<StatusCode>) {
        self.controllers.answered(RUNTIMES, method, code);
    }

    fn reachable(&self, kyma: &str, reachable: bool) {
        self.paths.reachable(kyma, reachable);
    }
}

/// Open connections keep their certificates.
async fn reload(store: Arc<Store<ServerConfig>>, files: Files, drain: Watch) {
    loop {
        tokio::select! {
            () = drain.signaled() => return,
            () = tokio::time::sleep(RELOAD) => {}
        }
        match store.reload(&files, Timestamp::now()).await {
            Ok(Reloaded::Unchanged) => {}
            Ok(Reloaded::Published) => {
                tracing::info!(not_after = %store.not_after(), "new TLS files are in use");
            }
            Err(error @ (ReloadError::Files(_) | ReloadError::Bundle(_))) => {
                tracing::warn!(error = %chain(&error), "the TLS files cannot be used; the last good ones stay");
            }
        }
    }
}

async fn reload_proxies(proxies: Arc<Proxies>, files: ProxyFiles, drain: Watch) {
    loop {
        tokio::select! {
            () = drain.signaled() => return,
            () = tokio::time::sleep(RELOAD) => {}
        }
        match proxies.reload(&files).await {
            Ok(false) => {}
            Ok(true) => tracing::info!("the trusted proxies were read anew"),
            Err(error) => {
                tracing::warn!(error = %chain(&error), "the trusted proxies cannot be read; the last good ones stay");
            }
        }
    }
}

async fn sweep(
    engine: Engine,
    deliveries: Deliveries,
    claims: ClaimBook,
    forwarders: Forwarders<Guard>,
    drain: Watch,
) {
    loop {
        tokio::select! {
            () = drain.signaled() => return,
            () = tokio::time::sleep(SWEEP) => {}
        }
        engine.tidy();
        // One read lock per lookup: holding it across a lane's lock may deadlock.
        let registered = |id: &str| {
            engine.state().read().kymas.runtime(id) != tidewatch_engine::index::RuntimeLookup::Unknown
        };
        forwarders.keep_runtimes(registered);
        deliveries.retain(registered);
        claims.retain(registered);
    }
}
