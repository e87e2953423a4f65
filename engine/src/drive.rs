//! Executes plans: reads what a planner needs, writes what it decided. Idempotent; makes no decisions of
//! its own beyond the order of calls.

mod access;
mod agent;
mod apply;
mod budget;
mod catalog;
mod exchange;
mod finish;
mod gate;
mod go_certificate;
mod inputs;
mod kcp_writes;
mod keep;
mod kyma;
mod kyma_deletion;
mod local_templates;
mod mandatory;
mod manifest;
mod pace;
mod parked;
mod path;
mod patience;
mod prepare;
mod pull_secret;
mod reached;
mod seen;
mod sources;
mod standing;
mod tell;
mod windows;

pub(crate) use finish::{Finish, Lost, SERVED_AFTER, Why, error_report, found_report, is_of_definition};
pub use gate::{Mode, Recorder, Side, Tried};
pub use inputs::Played;
pub use seen::Version;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use kube::Client;
use pace::{CROWDED, NEXT_TRY, PATIENCE, RECHECK, RETRY, backoff, next_try, until};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use seen::End;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    history::{History, Observer, Record},
    journal::{self, Journal},
    kcp::{
        self, KcpState, SET_RIGHT,
        state::{STATUS_OF_ANOTHER, Suspected, TOLD_BY_ANOTHER},
    },
    key::{Cause, Guard, Outcome, WorkKey},
    oci::{Credentials, OciError, Registry, RegistryConfig},
    plan::{needs, object::ObjectRef, windows::MIN_WINDOW},
    queue::{
        Class, Ended, Push,
        worker::{Lease, WorkQueue},
    },
    runtime::{AddressPolicy, ClientCache, Connector, CountedLayer},
    stages,
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
pub struct Engine(Arc<Shared>);

pub(crate) struct Shared {
    kcp: Client,
    config: EngineConfig,
    state: Arc<RwLock<KcpState>>,
    queue: WorkQueue<WorkKey, Cause, Guard>,
    runtimes: ClientCache,
    connector: Connector,
    registry: Registry,
    /// For what runtimes name themselves: without credentials, and with a cache of its own.
    tenants: Registry,
    sources: sources::Descriptors,
    patience: patience::Patience,
    budgets: Arc<budget::Budgets>,
    prepared: prepare::Prepared,
    agents: agent::Agents,
    catalogs: catalog::Catalogs,
    exchanged: exchange::Exchanged,
    reached: reached::Reached,
    gone: access::Gone,
    told: tell::Told,
    standing: standing::Standing,
    rendered: manifest::Rendered,
    passes: manifest::Passes,
    holds: manifest::Holds,
    seen: seen::Seen,
    gate: gate::Gate,
    windows: windows::Windows,
    waiting: kyma::Waiting,
    /// The same of its mandatory modules.
    mandatory_waiting: kyma::Waiting,
    history: History,
    observer: Arc<dyn Observer>,
    journal: Journal,
    clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
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
        Self::recorded(kcp, config, observer, clock, Journal::default())
    }

    /// The same, with its inputs recorded or played. Calls to KCP are recorded where `kcp` has the journal's tap.
    pub fn recorded(
        kcp: Client,
        config: EngineConfig,
        observer: Arc<dyn Observer>,
        clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
        journal: Journal,
    ) -> Result<Self, OciError> {
        let registry = Registry::new(config.registry.clone())?;
        let tenants = Registry::new(config.registry.for_tenants())?;
        let mut state = KcpState::default();
        state.restrict(&config.restricted_modules);
        let (ear, addresses) = (Arc::clone(&observer), Arc::new(config.addresses.clone()));
        let counted = CountedLayer::new(Arc::new(move |method, code| ear.answered(method, code)));
        Ok(Self(Arc::new(Shared {
            kcp,
            state: Arc::new(RwLock::new(state)),
            queue: queue_of(&config),
            runtimes: ClientCache::default(),
            connector: Connector::new(addresses).counted(counted),
            registry,
            tenants,
            sources: sources::Descriptors::default(),
            patience: patience::Patience::new(config.workers),
            budgets: Arc::new(budget::Budgets::new(config.workers)),
            prepared: prepare::Prepared::default(),
            agents: agent::Agents::default(),
            catalogs: catalog::Catalogs::default(),
            exchanged: exchange::Exchanged::default(),
            reached: reached::Reached::default(),
            gone: access::Gone::default(),
            told: tell::Told::default(),
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
            journal,
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

    /// Drops the clients of runtimes that nobody has talked to for a while; what was learned of them stays. Not where inputs are
    /// recorded or played: a record does not say when that was.
    pub fn tidy(&self) {
        if self.0.journal.is_off() {
            self.0.runtimes.drop_idle(CLIENT_IDLE);
        }
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
        let Shared { kcp, config, .. } = &*self.0;
        let mut feeds = self.feeds(kcp::Source::Live(kcp, &config.namespace));
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
        let Shared { journal, observer, .. } = &*self.0;
        let causes = numbered(&lease);
        let trace = journal.begin(lease.key(), lease.class, (&causes, lease.cause_count, lease.repeats));
        let key = lease.key().clone();
        let work = tokio::spawn(journal::within(trace, Arc::clone(&self.0).work(lease)));
        if let Err(error) = work.await {
            tracing::error!(%key, %error, "a reconcile panicked; its key is tried again");
            observer.panicked(&key);
        }
    }
}

/// Work in hand, for events that come meanwhile. Dropping it (a panic, a cancelled task) ends it, too: what was told is asked for anew, and
/// what it has seen was worked on by nobody, so that guards are dropped, and agents send it again.
struct InHand<'a> {
    shared: &'a Shared,
    key: &'a WorkKey,
    ended: bool,
}

impl<'a> InHand<'a> {
    fn begin(shared: &'a Shared, key: &'a WorkKey) -> Self {
        shared.seen.begin(key);
        Self { shared, key, ended: false }
    }

    /// Asks for what is news. Returns what has waited for the end.
    fn end(&mut self, end: End) -> Vec<Guard> {
        self.ended = true;
        let seen::Come { waiting, news } = self.shared.seen.end(self.key, end);
        for (ask, since) in news {
            // To a record they are asked for now; the events before it say who had them in hand.
            self.shared.journal.note(|| inputs::asked(self.key, ask.class, ask.cause.as_ref()));
            self.shared.queue.push_of(self.key.clone(), ask, since);
        }
        waiting
    }
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        if !self.ended {
            drop(self.end(End::Failed));
        }
    }
}

impl Shared {
    /// What is known, to look at; see [`Journal::look`].
    async fn look(&self, place: &'static str) -> RwLockReadGuard<'_, KcpState> {
        self.journal.look(place, &self.state).await
    }

    /// What is known, to change; see [`Journal::change`].
    async fn change(&self, place: &'static str) -> RwLockWriteGuard<'_, KcpState> {
        self.journal.change(place, &self.state).await
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.journal.now(|| (self.clock)())
    }

    async fn work(self: Arc<Self>, mut lease: Lease<WorkKey, Cause, Guard>) {
        let key = lease.key().clone();
        lease.if_dropped = Some(Cause::retry(&key, "panic"));
        // Declared after the lease, so that it ends before that: then the key may be worked on again.
        let mut in_hand = InHand::begin(&self, &key);
        lease.causes = numbered(&lease);
        // Boxed: its future is large.
        let work = tokio::time::timeout(
            self.config.deadline,
            Box::pin(self.reconcile(
                &key,
                lease.class,
                Why { causes: &lease.causes, count: lease.cause_count },
            )),
        );
        let (result, stages) = stages::noted(work).await;
        let spread = xxhash_rust::xxh3::xxh3_64(key.to_string().as_bytes());
        let result = result.unwrap_or(Err(Lost::Deadline(self.config.deadline)));
        let (result, look_at) = match result {
            Ok(Finish::RecheckAt(at, finish)) => (Ok(*finish), Some((until(self.now(), at, spread), at))),
            other => (other, None),
        };
        let (result, asked) = match result {
            Ok(Finish::NotBefore(wait, finish)) => (Ok(*finish), Some(wait)),
            other => (other, None),
        };
        let wait = |pace| pace::at_least(backoff(pace, lease.attempt, spread), asked, spread);
        let (retry, recheck) = (wait(RETRY), wait(RECHECK));
        let (outcome, message, next) = match &result {
            Ok(Finish::Done | Finish::Unneeded) => (Outcome::Done, String::new(), None),
            Ok(Finish::Waiting(what)) => (Outcome::Waiting, what.clone(), None),
            // Nobody nests them; if somebody did, the outer time would count.
            Ok(Finish::RecheckAt(..) | Finish::NotBefore(..)) => (Outcome::Waiting, String::new(), None),
            Ok(Finish::Recheck(what)) => (Outcome::Waiting, what.clone(), Some((recheck, "waiting"))),
            Ok(Finish::Again(delay, what)) => (Outcome::Waiting, what.clone(), Some((*delay, "waiting"))),
            Ok(Finish::Patient(what)) => (Outcome::Waiting, what.clone(), Some((wait(PATIENCE), "waiting"))),
            Ok(Finish::Settled(report)) => (Outcome::Failed, report.message.clone(), None),
            Ok(Finish::Failed(report, class)) => {
                (Outcome::Failed, report.message.clone(), Some((retry, *class)))
            }
            // The delay is for the case that the gate has opened in between; else it is asked for when the mode changes.
            Err(lost @ Lost::Held(_)) => {
                let delay = if self.gate.hold(&key) { RETRY.1 } else { RETRY.0 };
                (Outcome::Waiting, chain(lost), Some((delay, lost.class())))
            }
            Err(lost @ Lost::Behind(_)) => (Outcome::Waiting, chain(lost), Some((recheck, lost.class()))),
            Err(lost @ Lost::Crowded(_)) => {
                (Outcome::Waiting, chain(lost), Some((wait(CROWDED), lost.class())))
            }
            Err(lost @ Lost::Parked(_, left)) => (
                Outcome::Waiting,
                chain(lost),
                Some((pace::at_least(RETRY.0, Some(*left), spread), lost.class())),
            ),
            Err(lost) => (Outcome::Lost, chain(lost), Some((retry, lost.class()))),
        };
        // What is only tried is looked at once, unless it has not been.
        let is_dry = self.is_dry();
        let is_unseen = matches!(&result, Err(Lost::Behind(_) | Lost::Crowded(_)));
        let (next, look_at) = if is_dry { (next.filter(|_| is_unseen), None) } else { (next, look_at) };
        match outcome {
            Outcome::Failed => tracing::warn!(%key, detail = message, "reconcile failed"),
            Outcome::Lost => {
                tracing::error!(%key, detail = message, "reconcile failed and could not say so in KCP");
            }
            Outcome::Done | Outcome::Waiting => {
                tracing::debug!(%key, ?outcome, detail = message, "reconciled");
            }
        }
        let end = match &result {
            _ if !matches!(self.gate.mode(), Mode::Live) => End::Failed,
            // A failure may have left undone what is to be done about something that was seen.
            Err(_) | Ok(Finish::Failed(..) | Finish::Settled(_)) => End::Failed,
            Ok(Finish::Done | Finish::Unneeded) => End::Done,
            Ok(_) => End::Waiting,
        };
        let no_news = in_hand.end(end);
        self.observer.no_news(no_news.len());
        let guards = lease.take_guards().into_iter().chain(no_news);
        let why_still = result.as_ref().err().map(|lost| lost.leaves(&lease.causes)).unwrap_or_default();
        let report = result.as_ref().ok().and_then(Finish::report);
        let ended_at = self.queue.now();
        let (queued, work) =
            (lease.started_at.saturating_sub(lease.queued_at), ended_at.saturating_sub(lease.started_at));
        let record = Record {
            key: key.to_string(),
            causes: std::mem::take(&mut lease.causes),
            cause_count: lease.cause_count,
            class: lease.class.label(),
            outcome,
            state: report.map(|report| report.state),
            is_found: report.is_some_and(|report| report.is_found),
            looked: !matches!(result, Ok(Finish::Unneeded)),
            message,
            finished_at: self.now(),
            queued_seconds: queued.as_secs_f64(),
            work_seconds: work.as_secs_f64(),
            stages,
            next_try_seconds: next
                .map(|(delay, _)| delay)
                .into_iter()
                .chain(look_at.map(|(delay, _)| delay))
                .min()
                .map(|d| d.as_secs_f64()),
            next_try_for: next.map(|(_, reason)| reason),
        };
        let at = self.journal.end(record.outcome, &record.message, record.next_try_seconds).await;
        self.observer.reconciled(&key, &record);
        self.history.add(&key, &record);
        // Finished, or what was found is persisted: whoever waited may let go. Otherwise they wait on.
        let kept = if result.is_ok() {
            for guard in guards {
                guard.finished();
            }
            Vec::new()
        } else {
            guards.filter(|guard| guard.is_wanted()).collect()
        };
        if let Some((delay, at)) = look_at {
            self.queue.look_again(key.clone(), Class::Rollout, Some(Cause::Due { at }), delay);
        }
        let ended = match next {
            None => Ended::Done,
            Some((delay, reason)) => {
                let causes = std::iter::once(Cause::retry(&key, reason)).chain(why_still).collect();
                Ended::Retry(delay, kept, causes)
            }
        };
        lease.end_at(ended, at);
    }

    async fn reconcile(&self, key: &WorkKey, class: Class, why: Why<'_>) -> Result<Finish, Lost> {
        let (is_suspected, is_in_doubt) = {
            let state = self.look("reconcile").await;
            let told = matches!(key, WorkKey::Kyma { .. }) && why.is_all(is_told_by_another);
            (state.is_suspected(key), told && state.doubts_manifests_of(key.kyma()))
        };
        self.gate.begin(key)?;
        // What somebody has made of a Manifest's status meanwhile is told to nobody either: what is right of it is news for the Kyma.
        if is_in_doubt {
            let cause = why.causes.first().cloned();
            self.queue.look_again(key.clone(), Class::Resync, cause, SET_RIGHT);
            return Ok(Finish::Unneeded);
        }
        // What was seen was our own, of which the answer came later.
        if !is_suspected && why.is_all(is_of_another) {
            return Ok(Finish::Unneeded);
        }
        let _leave = Box::pin(self.leave(key, why)).await?;
        // Whatever it is worked on for: now it is looked at, by what KCP says now and as a whole.
        if is_suspected {
            if let WorkKey::Manifest { kyma, name } = key {
                self.passes.forget_one(kyma, name);
            }
            match self.change("suspicion").await.take_suspicion(key) {
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
            WorkKey::Kyma { kyma } => self.reconcile_kyma(kyma, class, why).await,
            WorkKey::Path { kyma } => self.reconcile_path(kyma).await,
            WorkKey::Manifest { kyma, name } => {
                {
                    let mut state = self.change("work on manifest").await;
                    // Looks at set times are for what does not get ready; of what somebody else says, it is not known.
                    if is_due(why) && !is_suspected && state.is_ready(name) {
                        return Ok(Finish::Unneeded);
                    }
                    state.working_on(name, class);
                }
                Box::pin(self.reconcile_manifest(key, (kyma, name), why)).await
            }
            WorkKey::Agent { kyma } => self.reconcile_agent(kyma, why).await,
            WorkKey::Catalog { kyma } => self.reconcile_catalog(kyma, why).await,
            WorkKey::Exchange { kyma } => self.reconcile_exchange(kyma).await,
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

/// An error with its sources, for one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests;
