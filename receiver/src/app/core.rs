//! The engine, its observer, and the parts that both share with the intake.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use http::{Method, StatusCode};
use jiff::Timestamp;
use kube::Client;
use tidewatch_drain::Drain;
use tidewatch_engine::{
    Engine, EngineConfig, WorkKey,
    clusters::{AddressPolicy, Answered},
    history::{Observer, Record},
};
use tidewatch_listener::Revocations;
use tidewatch_telemetry::{metrics::Registry, readiness};
use tidewatch_wire::SessionId;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::leader::when_leading;
use crate::{
    claims::ClaimBook,
    config::StartError,
    controllers::{self, ControllerMetrics, RUNTIMES},
    kcp_client::{kcp_client, own_server},
    klm::KlmMetrics,
    leader_endpoint::LeaderEndpoint,
    metrics::Metrics,
    path_watch::PathWatch,
    paths::{Check, Settings},
    revocations,
    rotation::CertificateState,
    sessions::{SessionRecord, Sessions},
};

/// The engine and its surroundings.
pub(super) struct Core {
    pub(super) client: Client,
    pub(super) namespace: String,
    pub(super) engine: Engine,
    pub(super) paths: PathWatch,
    pub(super) claims: ClaimBook,
    pub(super) revocations: Revocations,
    pub(super) sessions: Sessions,
    pub(super) session: SessionId,
    pub(super) controllers: ControllerMetrics,
    pub(super) certificates: CertificateState,
    /// Changes after each reconcile of a Kyma.
    pub(super) reconciled: watch::Receiver<()>,
    metrics: Metrics,
}

impl Core {
    /// Creates the engine and its metrics. `denied` servers, and KCP's own, may not be in a runtime's kubeconfig.
    pub(super) fn new(
        kube: kube::Config,
        mut config: EngineConfig,
        denied: Vec<String>,
        paths: Settings,
        object_metrics: bool,
        registry: &Registry,
    ) -> Result<Self, StartError> {
        let server = own_server(&kube);
        config.addresses = AddressPolicy::new(denied.into_iter().chain(server.clone()))?;
        let controllers = ControllerMetrics::register(registry)?;
        let (metrics, server) = (controllers.clone(), server.unwrap_or_default());
        let counted: Answered = Arc::new(move |method, code| metrics.answered(&server, method, code));
        let client = kcp_client(kube, config.limits.call_deadline, Some(counted))?;
        let metrics = Metrics::register(registry)?;
        let (session, sessions, paths) = (SessionId::random(), Sessions::default(), PathWatch::new(paths));
        let claims = ClaimBook::new(session, sessions.clone());
        let (kyma_reconciled, reconciled) = watch::channel(());
        let observer = Arc::new(Observed {
            kyma_reconciled,
            metrics: metrics.clone(),
            klm: KlmMetrics::register(registry, object_metrics)?,
            controllers: controllers.clone(),
            paths: paths.clone(),
            claims: claims.clone(),
        });
        let (namespace, workers) = (config.namespace.clone(), config.limits.workers);
        let engine = Engine::new(client.clone(), config, observer, Arc::new(Timestamp::now))?;
        controllers::register_sizes(registry, &engine, workers)?;
        let (revocations, certificates) = (Revocations::default(), CertificateState::default());
        certificates.register(registry, &engine, &paths)?;
        Ok(Self {
            client,
            namespace,
            engine,
            paths,
            claims,
            revocations,
            sessions,
            session,
            controllers,
            certificates,
            reconciled,
            metrics,
        })
    }

    pub(super) fn session_record(&self) -> SessionRecord {
        SessionRecord {
            client: self.client.clone(),
            namespace: self.namespace.clone(),
            session: self.session,
        }
    }

    /// Runs the engine. Sets `loaded` and ends `unready` once KCP is fully read. The returned channel closes when the engine has finished.
    pub(super) fn run(
        &self,
        loaded: Arc<AtomicBool>,
        unready: readiness::Guard,
        drain: &Drain,
    ) -> oneshot::Receiver<()> {
        let (running, ended) = oneshot::channel::<()>();
        let (engine, stop) = (self.engine.clone(), drain.watch());
        drain.spawn_critical("engine", async move {
            let _running = running;
            let cancel = CancellationToken::new();
            let run = engine.run(cancel.clone(), move || {
                loaded.store(true, Ordering::Release);
                unready.ready();
            });
            tokio::pin!(run);
            tokio::select! {
                () = &mut run => return,
                () = stop.signaled() => cancel.cancel(),
            }
            run.await;
        });
        ended
    }

    /// Polls runtimes without a proven event path. The grace period of unknown runtimes begins with leadership.
    pub(super) fn watch_paths(&self, leads: watch::Receiver<bool>, drain: &Drain) {
        let checks = self.metrics.checks.clone();
        let counted = move |check: Check| checks.with_label_values(&[check.label()]).inc();
        let run = self.paths.clone().run(self.engine.clone(), counted, drain.watch());
        drain.spawn("event-paths", when_leading(leads, drain.watch(), run));
    }

    /// Follows the revocations. The returned channel closes when they are known.
    pub(super) fn follow_revocations(&self, drain: &Drain) -> oneshot::Receiver<()> {
        let (known, is_known) = oneshot::channel();
        let (revocations, engine) = (self.revocations.clone(), self.engine.clone());
        let follow =
            revocations::follow(self.client.clone(), self.namespace.clone(), revocations, engine, known);
        drain.spawn_background("revocations", follow);
        is_known
    }

    /// Leads the agents' Service to this receiver while it is the leader.
    pub(super) fn publish(&self, endpoint: LeaderEndpoint, leads: watch::Receiver<bool>, drain: &Drain) {
        let publish = endpoint.publish(self.client.clone(), self.namespace.clone(), drain.watch());
        drain.spawn("leader-endpoint", when_leading(leads, drain.watch(), publish));
    }
}

/// Counts the engine's work, and notes it for agents' claims and event paths.
struct Observed {
    kyma_reconciled: watch::Sender<()>,
    metrics: Metrics,
    klm: KlmMetrics,
    controllers: ControllerMetrics,
    paths: PathWatch,
    claims: ClaimBook,
}

impl Observer for Observed {
    fn reconciled(&self, key: &WorkKey, record: &Record) {
        if matches!(key, WorkKey::Kyma { .. }) {
            self.kyma_reconciled.send_replace(());
        }
        // Only a reconcile that read the runtime ends claims.
        if record.has_read && matches!(key, WorkKey::Kyma { .. } | WorkKey::Manifest { .. }) {
            self.claims.touched(key.kyma());
        }
        self.metrics.reconciled(key, record);
        self.klm.reconciled(key, record);
        self.controllers.reconciled(key, record);
    }

    fn panicked(&self, key: &WorkKey) {
        self.controllers.panicked(key);
    }

    fn echoes(&self, events: usize) {
        self.metrics.echoes.inc_by(events as u64);
    }

    fn answered(&self, method: &Method, code: Option<StatusCode>) {
        self.controllers.answered(RUNTIMES, method, code);
    }

    fn reachable(&self, kyma: &str, reachable: bool) {
        self.paths.reachable(kyma, reachable);
    }
}
