//! Executes plans: reads what a planner needs, writes what it decided. Idempotent; makes no decisions of
//! its own beyond the order of calls.

pub(crate) mod agent_config;
pub(crate) mod apply;
pub(crate) mod catalog;
pub(crate) mod dispatch;
mod event_path;
mod inputs;
mod keep;
pub(crate) mod kyma;
mod kyma_deletion;
mod legacy_certificate;
pub(crate) mod legacy_watcher;
mod local_templates;
mod mandatory;
pub(crate) mod manifest;
pub(crate) mod outcome;
pub(crate) mod pace;
mod paused;
pub(crate) mod prepare;
mod pull_secret;
pub(crate) mod registry_limiter;
pub(crate) mod seen;
pub(crate) mod sources;
pub(crate) mod standing;
pub(crate) mod suspended;
pub(crate) mod windows;

pub(crate) use outcome::{Lost, Outcome, SERVED_AFTER, Why, error_report, found_report, is_of_definition};
pub use seen::Version;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use kube::Client;
use pace::NEXT_TRY;
pub(crate) use pace::next_try;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tidewatch_api::object::ObjectRef;
use tidewatch_oci::{Credentials, OciError, Registry, RegistryConfig};
use tidewatch_planner::{needs, windows::MIN_WINDOW};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    clusters::{AddressPolicy, ClientCache, Connector, CountedLayer, access, budget, reached},
    gate,
    history::{History, Observer},
    index::{KcpState, STATUS_OF_ANOTHER, Suspected, TOLD_BY_ANOTHER},
    kcp::events,
    key::{Cause, Guard, WorkKey},
    queue::{
        Class, Push,
        worker::{Lease, WorkQueue},
    },
    watch::{Feeds, SET_RIGHT},
};

/// A client that was not used for so long is dropped: it costs as much memory as half of what is known of its runtime.
const CLIENT_IDLE: Duration = Duration::from_mins(1);

/// Settings of the engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The namespace in KCP that holds Kymas, Manifests and kubeconfig Secrets.
    pub namespace: String,
    /// Where module components are read from: `host[:port][/path]`.
    pub modules: String,
    /// Further registries, `host[:port][/path]` each: a component whose template names one of them in its descriptor is read there.
    pub external_registries: Vec<String>,
    /// The registry client's settings.
    pub registry: RegistryConfig,
    /// Servers that no kubeconfig may name.
    pub addresses: AddressPolicy,
    /// Reconciles at the same time.
    pub workers: usize,
    /// Reconciles of one runtime at the same time.
    pub per_runtime: usize,
    /// Deadline of one reconcile.
    pub deadline: Duration,
    /// Deadline of one call to a runtime, or to KCP.
    pub call_deadline: Duration,
    /// Users (not service accounts) that may watch in every runtime what the Watchers name, besides the agent's own
    /// service account. For agents that run outside of their runtime.
    pub agent_users: Vec<String>,
    /// Modules that only Kymas get whom their ModuleReleaseMeta selects.
    pub restricted_modules: Vec<String>,
    /// Least time that has to be left of a maintenance window for an update to begin in it.
    pub min_window: Duration,
    /// The Secret in KCP's namespace by which modules pull their images, brought to every runtime; none by default.
    pub pull_secret: Option<String>,
    /// Whether a default custom resource that says that it is in Error, or in Warning, makes its module a Warning.
    pub module_cr_state: bool,
    /// Over which time a change of the catalog reaches the Kymas that it concerns; zero for all at once.
    pub rollout_window: Duration,
    /// For how long a module waits for what it requires until that is a Warning.
    pub patience: Duration,
    /// Whether the Go manager's watcher stays in a runtime whose events are proven to arrive without it.
    pub keep_watcher: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            namespace: tidewatch_api::names::KCP_NAMESPACE.to_owned(),
            modules: String::new(),
            external_registries: Vec::new(),
            registry: RegistryConfig::default(),
            addresses: AddressPolicy::default(),
            workers: 16,
            per_runtime: 2,
            deadline: Duration::from_mins(2),
            call_deadline: Duration::from_secs(20),
            agent_users: Vec::new(),
            restricted_modules: Vec::new(),
            min_window: MIN_WINDOW,
            pull_secret: None,
            module_cr_state: true,
            rollout_window: Duration::ZERO,
            patience: needs::PATIENCE,
            keep_watcher: false,
        }
    }
}

/// The engine: one queue, its workers, and what they share. Cheap to clone.
#[derive(Clone)]
pub struct Engine(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) kcp: Client,
    pub(crate) config: EngineConfig,
    pub(crate) state: Arc<RwLock<KcpState>>,
    pub(crate) queue: WorkQueue<WorkKey, Cause, Guard>,
    pub(crate) runtimes: ClientCache,
    pub(crate) connector: Connector,
    pub(crate) registry: Registry,
    /// For what runtimes name themselves: without credentials, and with a cache of its own.
    pub(crate) tenants: Registry,
    pub(crate) sources: sources::Descriptors,
    pub(crate) patience: registry_limiter::RegistryLimiter,
    pub(crate) budgets: Arc<budget::Budgets>,
    pub(crate) prepared: prepare::Prepared,
    pub(crate) agents: agent_config::Agents,
    pub(crate) catalogs: catalog::Catalogs,
    pub(crate) exchanged: legacy_watcher::Exchanged,
    pub(crate) reached: reached::Reached,
    pub(crate) gone: access::Gone,
    pub(crate) told: events::Told,
    pub(crate) standing: standing::Standing,
    pub(crate) rendered: manifest::Rendered,
    pub(crate) passes: manifest::Passes,
    pub(crate) holds: manifest::Holds,
    pub(crate) seen: seen::Seen,
    pub(crate) gate: gate::Gate,
    pub(crate) windows: windows::Windows,
    pub(crate) waiting: kyma::Waiting,
    /// The same of its mandatory modules.
    pub(crate) mandatory_waiting: kyma::Waiting,
    pub(crate) history: History,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

/// Polls take at most a fifth of the workers, whatever happens; so do catalogs.
fn queue_of(config: &EngineConfig) -> WorkQueue<WorkKey, Cause, Guard> {
    let queue = WorkQueue::new(config.per_runtime);
    queue.cap(Class::Poll, config.workers / 5);
    // Never none: nobody else brings the catalog.
    queue.cap(Class::Catalog, (config.workers / 5).max(1));
    queue
}

impl Engine {
    /// An engine on a KCP. Nothing runs before [`Engine::run`].
    pub fn new(
        kcp: Client,
        config: EngineConfig,
        observer: Arc<dyn Observer>,
        clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    ) -> Result<Self, OciError> {
        let registry = Registry::new(config.registry.clone())?;
        let tenants = Registry::new(config.registry.for_tenants())?;
        let mut state = KcpState::default();
        state.restrict(&config.restricted_modules);
        let (recorder, addresses) = (Arc::clone(&observer), Arc::new(config.addresses.clone()));
        let counted = CountedLayer::new(Arc::new(move |method, code| recorder.answered(method, code)));
        Ok(Self(Arc::new(Shared {
            kcp,
            state: Arc::new(RwLock::new(state)),
            queue: queue_of(&config),
            runtimes: ClientCache::default(),
            connector: Connector::new(addresses).counted(counted),
            registry,
            tenants,
            sources: sources::Descriptors::default(),
            patience: registry_limiter::RegistryLimiter::new(config.workers),
            budgets: Arc::new(budget::Budgets::new(config.workers)),
            prepared: prepare::Prepared::default(),
            agents: agent_config::Agents::default(),
            catalogs: catalog::Catalogs::default(),
            exchanged: legacy_watcher::Exchanged::default(),
            reached: reached::Reached::default(),
            gone: access::Gone::default(),
            told: events::Told::default(),
            standing: standing::Standing::default(),
            rendered: manifest::Rendered::default(),
            passes: manifest::Passes::default(),
            holds: manifest::Holds::default(),
            seen: seen::Seen::default(),
            gate: gate::Gate::default(),
            windows: windows::Windows::default(),
            waiting: kyma::Waiting::default(),
            mandatory_waiting: kyma::Waiting::default(),
            history: History::default(),
            observer,
            clock,
            config,
        })))
    }

    /// The credentials of registries (`host[:port]`), in place of all before. What runtimes name themselves is read without.
    pub fn set_registry_credentials(&self, credentials: BTreeMap<String, Credentials>) {
        self.0.registry.set_credentials(credentials);
    }

    /// The queue.
    pub fn queue(&self) -> &WorkQueue<WorkKey, Cause, Guard> {
        &self.0.queue
    }

    /// What is known of KCP.
    pub fn state(&self) -> &RwLock<KcpState> {
        &self.0.state
    }

    /// Takes an event of a runtime about a version of an object that is no news for a piece of work: the very version was read or
    /// written by it. Its guards are let go then, as soon as that work has ended. While the work is in hand, it takes any event that names a
    /// version, as far as there is room: what turns out to be news is asked for when it ends. Gives back what the event asks for if it is
    /// news, for the caller to ask for.
    pub fn has_seen(
        &self,
        key: &WorkKey,
        object: &ObjectRef,
        version: Version<'_>,
        ask: Push<Cause, Guard>,
    ) -> Result<(), Push<Cause, Guard>> {
        match self.0.seen.take(key, object, version, ask, self.0.queue.now())? {
            seen::Taken::NoNews(guards) => {
                self.0.observer.no_news(1);
                for guard in guards {
                    guard.finished();
                }
            }
            seen::Taken::Held => {}
        }
        Ok(())
    }

    /// Registries that did not work and are left alone for a while: the host of [`EngineConfig::modules`], whether it is among them, and
    /// how many others are. What is asked for in the name of a runtime's user counts as another registry, whatever its host.
    pub fn registries_left_alone(&self) -> (String, bool, usize) {
        let Shared { config, registry, tenants, .. } = &*self.0;
        let host = registry.host(&config.modules).unwrap_or_default();
        let open = registry.left_alone();
        let is_open = open.contains(&host);
        (host, is_open, open.len() - usize::from(is_open) + tenants.left_alone().len())
    }

    /// Drops the clients of runtimes that nobody has talked to for a while; what was learned of them stays.
    pub fn tidy(&self) {
        self.0.runtimes.drop_idle(CLIENT_IDLE);
    }

    /// How many runtimes are left alone for a while because they do not answer.
    pub fn parked_runtimes(&self) -> usize {
        self.0.budgets.count()
    }

    /// The last reconciles.
    pub fn history(&self) -> &History {
        &self.0.history
    }

    /// Watches KCP and works until `stop`; then finishes the reconciles in hand and returns. `ready` is
    /// called once, when everything in KCP has been seen and work begins.
    pub async fn run(&self, stop: CancellationToken, ready: impl FnOnce() + Send) {
        let Shared { kcp, config, state, queue, .. } = &*self.0;
        let mut feeds = Feeds::start(kcp, config, state, queue);
        tokio::select! {
            () = feeds.ready() => {}
            () = stop.cancelled() => return,
        }
        ready();
        let workers = TaskTracker::new();
        for _ in 0..self.0.config.workers.max(1) {
            let (engine, stop) = (self.clone(), stop.clone());
            workers.spawn(async move {
                loop {
                    let lease = tokio::select! {
                        biased;
                        () = stop.cancelled() => return,
                        lease = engine.0.queue.next() => lease,
                    };
                    engine.do_leased(lease).await;
                }
            });
        }
        workers.close();
        tokio::select! {
            () = stop.cancelled() => {}
            () = feeds.failed() => tracing::error!("a watch on KCP ended by itself; the engine stops"),
        }
        workers.wait().await;
    }

    /// In a task of its own, so that a panic costs one reconcile and not the worker.
    async fn do_leased(&self, lease: Lease<WorkKey, Cause, Guard>) {
        let key = lease.key().clone();
        let work = tokio::spawn(Arc::clone(&self.0).work(lease));
        if let Err(error) = work.await {
            tracing::error!(%key, %error, "a reconcile panicked; its key is tried again");
            self.0.observer.panicked(&key);
        }
    }
}

impl Shared {
    /// What is known of KCP, to look at.
    pub(crate) fn look(&self) -> RwLockReadGuard<'_, KcpState> {
        self.state.read()
    }

    /// What is known of KCP, to change.
    pub(crate) fn change(&self) -> RwLockWriteGuard<'_, KcpState> {
        self.state.write()
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.clock)()
    }

    async fn reconcile(&self, key: &WorkKey, class: Class, why: Why<'_>) -> Result<Outcome, Lost> {
        let (is_suspected, is_in_doubt) = {
            let state = self.look();
            let told = matches!(key, WorkKey::Kyma { .. }) && why.is_all(is_told_by_another);
            (state.is_suspected(key), told && state.doubts_manifests_of(key.kyma()))
        };
        if let Err(held) = self.gate.begin(key) {
            if let WorkKey::Kyma { kyma } = key {
                Box::pin(self.say_paused(kyma)).await?;
            }
            return Err(held.into());
        }
        // What somebody has made of a Manifest's status meanwhile is told to nobody either: what is right of it is news for the Kyma.
        if is_in_doubt {
            let cause = why.causes.first().cloned();
            self.queue.look_again(key.clone(), Class::Resync, cause, SET_RIGHT);
            return Ok(Outcome::unneeded());
        }
        // What was seen was our own, of which the answer came later.
        if !is_suspected && why.is_all(is_of_another) {
            return Ok(Outcome::unneeded());
        }
        let _leave = Box::pin(self.leave(key, why)).await?;
        // Whatever it is worked on for: now it is looked at, by what KCP says now and as a whole.
        if is_suspected {
            if let WorkKey::Manifest { kyma, name } = key {
                self.passes.forget_one(kyma, name);
            }
            match self.change().take_suspicion(key) {
                Some(Suspected { by: Some(by) }) => {
                    tracing::warn!(%key, by, "somebody else has written the status; it is looked at again");
                }
                Some(Suspected { by: None }) => {
                    tracing::info!(%key, "somebody has taken away something of the status; it is looked at again");
                }
                None => {}
            }
        }
        match key {
            WorkKey::Kyma { kyma } => Box::pin(self.reconcile_kyma(kyma, class, why)).await,
            WorkKey::EventPath { kyma } => self.reconcile_path(kyma).await,
            WorkKey::Manifest { kyma, name } => {
                {
                    let mut state = self.change();
                    // Looks at set times are for what does not get ready; of what somebody else says, it is not known.
                    if is_due(why) && !is_suspected && state.is_ready(name) {
                        return Ok(Outcome::unneeded());
                    }
                    state.working_on(name, class);
                }
                Box::pin(self.reconcile_manifest(key, (kyma, name), why)).await
            }
            WorkKey::AgentConfig { kyma } => Box::pin(self.reconcile_agent(kyma, why)).await,
            WorkKey::Catalog { kyma } => self.reconcile_catalog(kyma, why).await,
            WorkKey::LegacyWatcher { kyma } => self.reconcile_exchange(kyma).await,
            WorkKey::Mandatory { kyma } => self.reconcile_mandatory(kyma, class, why).await,
            WorkKey::Release { module } => self.reconcile_release(module).await,
            WorkKey::Watcher { name } => self.reconcile_watcher(name).await,
        }
    }
}

/// Whether nothing but the time asks for a reconcile.
fn is_due(why: Why<'_>) -> bool {
    why.is_all(|cause| matches!(cause, Cause::Due { .. }))
}

/// Whether a status that somebody else may have written asks for a reconcile.
fn is_of_another(cause: &Cause) -> bool {
    matches!(cause, Cause::Kcp { change, .. } if *change == STATUS_OF_ANOTHER)
}

/// Whether somebody else's word of a Manifest asks for a reconcile.
fn is_told_by_another(cause: &Cause) -> bool {
    matches!(cause, Cause::Kcp { change, .. } if *change == TOLD_BY_ANOTHER)
}

/// Why the work is done, with the numbers of tries.
fn numbered(lease: &Lease<WorkKey, Cause, Guard>) -> Vec<Cause> {
    lease.causes.iter().map(|cause| cause.clone().numbered(lease.key(), lease.attempt)).collect()
}

/// What libraries say on the way to a cause: it tells nobody what to do.
const STEPS: [&str; 5] =
    ["client error (", "error sending request", "ServiceError: ", "HyperError: ", "tcp connect error"];

fn is_step(error: &dyn std::error::Error) -> bool {
    let text = error.to_string();
    error.source().is_some() && STEPS.iter().any(|step| text.starts_with(step))
}

/// An error with its sources, for one line. Of the steps of libraries between them it says nothing.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let next = error.to_string();
        if !is_step(error) && !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
pub(crate) mod tests;
