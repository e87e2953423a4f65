//! The engine: one queue, its workers, and the requests from outside.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use kube::Client;
use parking_lot::RwLock;
use tidewatch_api::object::ObjectRef;
use tidewatch_oci::{Credentials, OciError};
use tidewatch_planner::{agent_rollout::Counts, windows::Policy};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    agent_upgrades::AgentUpgrades,
    authority::Issuer,
    config::EngineConfig,
    gate::Mode,
    history::{Observer, ReconcileHistory},
    index::{KcpState, KymaLookup, PathReport},
    key::{Guard, Queue, WorkKey},
    queue::{Class, Push, worker::Lease},
    reconcile::{
        Version,
        dispatch::Dispatcher,
        echoes::Filtered,
        sources::Registries,
        windows::{Windows, ask_for_plan},
    },
    trigger::Trigger,
    watch::Feeds,
};

/// The engine. Cheap to clone: clones share everything.
#[derive(Clone)]
pub struct Engine {
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) registries: Arc<Registries>,
    pub(crate) windows: Arc<Windows>,
    pub(crate) upgrades: AgentUpgrades,
}

impl Engine {
    /// Makes an engine for a KCP. Nothing runs before [`Engine::run`].
    pub fn new(
        kcp: Client,
        config: EngineConfig,
        observer: Arc<dyn Observer>,
        clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    ) -> Result<Self, OciError> {
        crate::reconcile::engine(kcp, config, observer, clock)
    }

    /// Replaces the credentials of registries, by `host[:port]`. Registries that runtimes name are read without credentials.
    pub fn set_registry_credentials(&self, credentials: BTreeMap<String, Credentials>) {
        self.registries.set_credentials(credentials);
    }

    /// The queue.
    pub fn queue(&self) -> &Queue {
        &self.dispatcher.queue
    }

    /// The index of KCP.
    pub fn state(&self) -> &RwLock<KcpState> {
        &self.dispatcher.kcp.state
    }

    /// The last reconciles.
    pub fn history(&self) -> &ReconcileHistory {
        &self.dispatcher.history
    }

    /// Takes an event about an object version if it is an echo: the key's reconcile has read or written exactly that version. Its guards are
    /// acknowledged once that reconcile has ended. While one is in flight, takes any event that names a version, within bounds; the
    /// events that turn out to be changes are queued at its end.
    ///
    /// Returns the request of an event that is a change, for the caller to queue.
    pub fn filter_echo(
        &self,
        key: &WorkKey,
        object: &ObjectRef,
        version: Version<'_>,
        push: Push<Trigger, Guard>,
    ) -> Option<Push<Trigger, Guard>> {
        let Dispatcher { echoes, queue, observer, .. } = &*self.dispatcher;
        match echoes.filter(key, object, version, push, queue.now()) {
            Filtered::Echo(guards) => {
                observer.echoes(1);
                for guard in guards {
                    guard.finished();
                }
                None
            }
            Filtered::Held => None,
            Filtered::Change(request) => Some(request),
        }
    }

    /// Suspended registries, which failed before: the host of [`EngineConfig::modules`], whether it is one of them, and the number of
    /// others. A registry that a runtime names counts as another one, whatever its host.
    pub fn suspended_registries(&self) -> (String, bool, usize) {
        self.registries.suspended_registries()
    }

    /// Drops the clients of idle runtimes.
    pub fn tidy(&self) {
        self.dispatcher.clusters.drop_idle_clients();
    }

    /// Counts the runtimes that are suspended because they do not answer.
    pub fn suspended_runtimes(&self) -> usize {
        self.dispatcher.clusters.count_suspended()
    }

    /// Watches KCP and reconciles until `stop`; then finishes the reconciles in flight and returns. Calls `ready` once, when the index is
    /// complete and reconciles begin.
    pub async fn run(&self, stop: CancellationToken, ready: impl FnOnce() + Send) {
        let Dispatcher { kcp, config, queue, .. } = &*self.dispatcher;
        let mut feeds = Feeds::start(&kcp.client, config, &kcp.state, queue);
        tokio::select! {
            () = feeds.ready() => {}
            () = stop.cancelled() => return,
        }
        ready();
        let workers = TaskTracker::new();
        for _ in 0..config.limits.workers.max(1) {
            workers.spawn(self.clone().work_until(stop.clone()));
        }
        workers.close();
        tokio::select! {
            () = stop.cancelled() => {}
            () = feeds.failed() => tracing::error!("a watch on KCP ended by itself; the engine stops"),
        }
        workers.wait().await;
    }

    async fn work_until(self, stop: CancellationToken) {
        loop {
            let lease = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                lease = self.dispatcher.queue.next() => lease,
            };
            self.work(lease).await;
        }
    }

    /// Reconciles in a task of its own, so that a panic costs one reconcile and not the worker.
    pub(crate) async fn work(&self, lease: Lease<WorkKey, Trigger, Guard>) {
        let key = lease.key().clone();
        let work = tokio::spawn(Arc::clone(&self.dispatcher).work(lease));
        if let Err(error) = work.await {
            tracing::error!(%key, %error, "a reconcile panicked; its key is retried");
            self.dispatcher.observer.panicked(&key);
        }
    }

    /// Queues a reconcile.
    pub fn enqueue(&self, key: WorkKey, class: Class, trigger: Option<Trigger>) {
        self.dispatcher.queue.push(key, Push { class, trigger, guards: Vec::new() });
    }

    /// Notes whether the events of a runtime are proven to arrive, and queues the reconcile of the Kyma's condition about it.
    pub fn report_path(&self, kyma: &str, report: PathReport) {
        self.dispatcher.kcp.index_mut().kymas.set_event_path(kyma, report);
        self.enqueue(WorkKey::EventPath { kyma: kyma.to_owned() }, Class::Resync, None);
    }

    /// Checks the configuration and role of an agent in its runtime again, after the agent has reported another configuration.
    pub fn configure_agent(&self, kyma: &str, trigger: Option<Trigger>) {
        let records = &self.dispatcher.clusters.records;
        records.change_existing(kyma, |record| record.agent_config = None);
        self.enqueue(WorkKey::AgentConfig { kyma: kyma.to_owned() }, Class::Rollout, trigger);
    }

    /// Replaces the CA that signs agents' certificates, and brings its trust bundle to all runtimes. Without
    /// [`EngineConfig::agents`], does nothing.
    pub fn replace_authority(&self, issuer: Issuer) {
        let Dispatcher { kcp, config, .. } = &*self.dispatcher;
        let Some(agents) = &config.agents else { return };
        let installation = agents.hash(&issuer.bundle);
        agents.authority.replace(issuer);
        let kymas = {
            let mut state = kcp.index_mut();
            state.agents.set_installation(installation);
            state.kymas.names()
        };
        for kyma in kymas {
            self.enqueue(WorkKey::AgentConfig { kyma }, Class::Rollout, None);
        }
    }

    /// Whether this engine signs the agents' certificates.
    pub fn enrols_agents(&self) -> bool {
        self.dispatcher.config.agents.is_some()
    }

    /// Goes on with the upgrades of agents. `proves`: whether a Kyma's event path is proven by an agent of this installation.
    pub fn upgrade_agents(&self, proves: impl Fn(&str, &str) -> bool) {
        let Some(agents) = &self.dispatcher.config.agents else { return };
        let wanted = agents.settings.installation();
        let turns = {
            let state = self.state().read();
            let is_known = |kyma: &str| state.kymas.contains(kyma);
            self.upgrades.step(|kyma| proves(kyma, &wanted), is_known, state.kymas.len())
        };
        for kyma in turns {
            self.configure_agent(&kyma, None);
        }
    }

    /// Counts the upgrades of agents.
    pub fn agent_upgrades(&self) -> Counts {
        self.upgrades.counts()
    }

    /// Sets the runtime ids whose agents get no certificate. Agents of those that are admitted again are looked at.
    pub fn set_revoked(&self, revoked: BTreeSet<String>) {
        let admitted: Vec<String> = {
            let mut state = self.dispatcher.kcp.index_mut();
            let before = state.revoked.take().unwrap_or_default();
            let kyma = |id: &String| match state.kymas.runtime(id) {
                KymaLookup::One { kyma, .. } => Some(kyma),
                KymaLookup::Unknown | KymaLookup::Ambiguous(_) => None,
            };
            let admitted = before.difference(&revoked).filter_map(kyma).collect();
            state.revoked = Some(revoked);
            admitted
        };
        for kyma in admitted {
            self.enqueue(WorkKey::AgentCertificate { kyma }, Class::Rollout, None);
        }
    }

    /// Checks the whole catalog in a runtime again. For an event of a changed catalog object.
    pub fn check_catalog(&self, kyma: &str, trigger: Option<Trigger>) {
        let records = &self.dispatcher.clusters.records;
        records.change_existing(kyma, |record| record.doubt_catalog(None));
        self.enqueue(WorkKey::Catalog { kyma: kyma.to_owned() }, Class::Catalog, trigger);
    }

    /// The mode; [`Mode::Live`] until it is changed.
    pub fn mode(&self) -> Mode {
        self.dispatcher.kcp.gate.mode()
    }

    /// Changes the mode. A call in flight still reaches its API server, within
    /// [`ReconcileLimits::call_deadline`](crate::ReconcileLimits::call_deadline). Held keys are queued again, with their guards.
    pub fn set_mode(&self, mode: Mode) {
        tracing::info!(from = self.mode().label(), to = mode.label(), "the mode has changed");
        let Dispatcher { kcp, clusters, states, echoes, .. } = &*self.dispatcher;
        let label = mode.label();
        let held = kcp.gate.set(mode);
        // Another process may have worked in between, and received the events about that.
        states.forget_syncs();
        echoes.forget();
        clusters.records.forget_legacy_watchers();
        // Each Kyma's status says that the engine is paused. When the pause ends, these Kymas are among the held keys.
        let kymas = if label == Mode::Paused.label() { kcp.index().kymas.names() } else { Vec::new() };
        let kymas = kymas.into_iter().map(|kyma| WorkKey::Kyma { kyma });
        for key in held.into_iter().chain(kymas) {
            self.enqueue(key, Class::Resync, Some(Trigger::Mode { mode: label }));
        }
    }

    /// Sets the policy of maintenance windows; none until then. Queues the Kymas that wait for a window, spread over
    /// [`EngineConfig::rollout_window`]. `name` distinguishes this policy from others.
    pub fn set_windows(&self, policy: Option<Policy>, name: &str) {
        let Dispatcher { queue, config, .. } = &*self.dispatcher;
        for kyma in self.windows.set(policy) {
            ask_for_plan(queue, config.rollout_window, kyma, name);
        }
    }

    /// Counts the Kymas that wait for a maintenance window.
    #[must_use]
    pub fn waiting_for_windows(&self) -> usize {
        self.windows.count()
    }
}
