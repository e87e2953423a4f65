//! Forwards events to other managers. Each has its own lane, so none delays another.
//!
//! Held events are unacknowledged: agents resend them after a restart.

pub mod client;
pub mod lane;
pub mod target;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::{BuildHasher, Hasher, RandomState},
    sync::Arc,
    time::Duration,
};

use http::HeaderValue;
use parking_lot::Mutex;
use prometheus::IntCounterVec;
use tidewatch_api::Watcher;
use tidewatch_drain::ShutdownSignal;
use tidewatch_telemetry::metrics::{MetricsError, Registry};
use tidewatch_tls::xfcc;
use tidewatch_wire::v2;
use tokio::{
    sync::Notify,
    task::{Id, JoinSet},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use client::{Client, Sent};
use lane::{Change, Ended, Job, Lane, Limits, Settle};
use target::{Overrides, Target, TargetFault, targets};

const REFRESH: Duration = Duration::from_secs(1);
/// Managers with own labels; others share [`OTHER`].
const MAX_LABELS: usize = 64;
const OTHER: &str = "other";

/// Source of Watchers.
pub trait Watchers: Send + Sync + 'static {
    /// Returns a number that changes with any Watcher.
    fn version(&self) -> u64;
    /// Returns all Watchers and their version.
    fn all(&self) -> (u64, Vec<Arc<Watcher>>);
    /// Returns the name of a Watcher's watch.
    fn watch_name(&self, namespace: &str, name: &str) -> String;
}

/// Recipient of a watch's events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This engine.
    Own,
    /// Another manager.
    Manager(Arc<Target>),
}

/// Recipients by watch and manager.
#[derive(Debug, Default)]
pub struct Table {
    version: u64,
    by_watch: HashMap<String, (Owner, String)>,
    by_manager: BTreeMap<String, Arc<Target>>,
}

impl Table {
    /// Returns a watch's owner and API group.
    pub fn watch(&self, name: &str) -> Option<(&Owner, &str)> {
        self.by_watch.get(name).map(|(owner, group)| (owner, group.as_str()))
    }

    /// Returns another manager's target.
    pub fn manager(&self, name: &str) -> Option<&Arc<Target>> {
        self.by_manager.get(name)
    }
}

/// Result of [`Forwarders::take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Held for its service.
    Held,
    /// No capacity; the guard was dropped.
    Full,
    /// Certificate too large; the guard was refused.
    NoCertificate,
}

struct Forwarder<G> {
    label: String,
    client: Mutex<Arc<Client>>,
    lane: Mutex<Lane<G>>,
    changed: Notify,
    stop: CancellationToken,
}

struct Inner<G> {
    own: &'static str,
    watchers: Box<dyn Watchers>,
    overrides: Overrides,
    limits: Limits,
    table: Mutex<Arc<Table>>,
    forwarders: Mutex<BTreeMap<String, Arc<Forwarder<G>>>>,
    unstarted: Mutex<Vec<Arc<Forwarder<G>>>>,
    born: Notify,
    labels: Mutex<BTreeSet<String>>,
    sent: IntCounterVec,
    start: Instant,
}

/// Lanes of all managers. Cheap to clone.
pub struct Forwarders<G>(Arc<Inner<G>>);

impl<G> Clone for Forwarders<G> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<G: Settle> Forwarders<G> {
    /// Creates lanes, except for `own`; [`Forwarders::run`] sends.
    pub fn new(
        own: &'static str,
        watchers: impl Watchers,
        overrides: Overrides,
        limits: Limits,
        registry: &Registry,
    ) -> Result<Self, MetricsError> {
        let sent = registry.counter_vec(
            "forwards_total",
            "Requests to other managers' services, by manager and result.",
            &["manager", "result"],
        )?;
        let forwarders = Self(Arc::new(Inner {
            own,
            watchers: Box::new(watchers),
            overrides,
            limits,
            // No Watchers have this version.
            table: Mutex::new(Arc::new(Table { version: u64::MAX, ..Table::default() })),
            forwarders: Mutex::default(),
            unstarted: Mutex::default(),
            born: Notify::new(),
            labels: Mutex::default(),
            sent,
            start: Instant::now(),
        }));
        forwarders.register(registry)?;
        Ok(forwarders)
    }

    fn register(&self, registry: &Registry) -> Result<(), MetricsError> {
        let these = self.clone();
        registry.gauge_vec_fn(
            "forward_pending",
            "Changed objects that another manager's service has not taken.",
            &["manager"],
            move |set| {
                #[allow(clippy::cast_precision_loss, reason = "a count of objects is far below 2^52")]
                let waiting = |lane: &Lane<G>, _| lane.waiting() as f64;
                these.by_label(waiting, |a, b| a + b, set);
            },
        )?;
        let these = self.clone();
        registry.gauge_vec_fn(
            "forward_oldest_seconds",
            "Age of the oldest change that another manager's service has not taken; 0 without one.",
            &["manager"],
            move |set| {
                let oldest = |lane: &Lane<G>, now| lane.oldest(now).unwrap_or_default().as_secs_f64();
                these.by_label(oldest, f64::max, set);
            },
        )
    }

    fn by_label(
        &self,
        value: impl Fn(&Lane<G>, Duration) -> f64,
        join: impl Fn(f64, f64) -> f64,
        set: &mut dyn FnMut(&[&str], f64),
    ) {
        let all: Vec<_> = self.0.forwarders.lock().values().cloned().collect();
        let mut values: BTreeMap<&str, f64> = BTreeMap::new();
        for forwarder in &all {
            let value = value(&forwarder.lane.lock(), self.0.start.elapsed());
            values.entry(&forwarder.label).and_modify(|v| *v = join(*v, value)).or_insert(value);
        }
        for (label, value) in values {
            set(&[label], value);
        }
    }

    /// Returns the current table.
    pub fn table(&self) -> Arc<Table> {
        let table = Arc::clone(&self.0.table.lock());
        if table.version == self.0.watchers.version() { table } else { self.refresh() }
    }

    /// Creates new managers' lanes; removed ones refuse their events.
    fn refresh(&self) -> Arc<Table> {
        let inner = &self.0;
        // Held throughout, so the newest Watchers win.
        let mut forwarders = inner.forwarders.lock();
        let (version, watchers) = inner.watchers.all();
        let current = Arc::clone(&inner.table.lock());
        if current.version == version {
            return current;
        }
        let name = |namespace: &str, name: &str| inner.watchers.watch_name(namespace, name);
        let (table, faults) = Table::read(version, inner.own, &watchers, &inner.overrides, name);
        for (watcher, fault) in faults {
            tracing::warn!(watcher, %fault, "a Watcher's events cannot be forwarded; correct it");
        }
        let table = Arc::new(table);
        forwarders.retain(|manager, forwarder| {
            let stays = table.by_manager.contains_key(manager);
            if !stays {
                tracing::info!(
                    manager,
                    "no Watcher names this manager any more; its pending events are refused"
                );
                forwarder.stop.cancel();
                forwarder.lane.lock().refuse_all();
            }
            stays
        });
        for (manager, target) in &table.by_manager {
            let Some(forwarder) = forwarders.get(manager) else {
                tracing::info!(manager, address = target.address, "events are forwarded to this manager");
                let forwarder = Arc::new(self.forwarder(target));
                inner.unstarted.lock().push(Arc::clone(&forwarder));
                forwarders.insert(manager.clone(), forwarder);
                inner.born.notify_one();
                continue;
            };
            forwarder.lane.lock().keep_watches(|watch| target.watches.contains_key(watch));
            let mut client = forwarder.client.lock();
            if client.target().address != target.address || client.target().service != target.service {
                *client = Arc::new(Client::new(Arc::clone(target), self.0.limits.deadline));
            }
        }
        *inner.table.lock() = Arc::clone(&table);
        table
    }

    fn forwarder(&self, target: &Arc<Target>) -> Forwarder<G> {
        let mut labels = self.0.labels.lock();
        let has_label = labels.contains(&target.manager);
        let own = has_label || (labels.len() < MAX_LABELS && labels.insert(target.manager.clone()));
        Forwarder {
            label: if own { target.manager.clone() } else { OTHER.to_owned() },
            client: Mutex::new(Arc::new(Client::new(Arc::clone(target), self.0.limits.deadline))),
            lane: Mutex::new(Lane::new(self.0.limits)),
            changed: Notify::new(),
            stop: CancellationToken::new(),
        }
    }

    /// Offers a change. `again_in` requests a second send.
    pub fn take(&self, manager: &str, change: Change<G>, again_in: Option<Duration>) -> Taken {
        let now = self.0.start.elapsed();
        if xfcc::format(&change.certificate).is_err() {
            if let Some((_, guard)) = change.guard {
                guard.refused();
            }
            return Taken::NoCertificate;
        }
        let Some(forwarder) = self.0.forwarders.lock().get(manager).cloned() else { return Taken::Full };
        let change = Change { again: again_in.map(|wait| now + wait), ..change };
        if !forwarder.lane.lock().take(change, now) {
            return Taken::Full;
        }
        forwarder.changed.notify_one();
        Taken::Held
    }

    /// Drops changes of other runtimes; their agents resend them.
    pub fn keep_runtimes(&self, keep: impl Fn(&str) -> bool) {
        let all: Vec<_> = self.0.forwarders.lock().values().cloned().collect();
        for forwarder in &all {
            forwarder.lane.lock().keep_runtimes(&keep);
        }
    }

    /// Follows the Watchers and sends, until shutdown drops held changes.
    pub async fn run(self, drain: ShutdownSignal) {
        let mut tasks = JoinSet::new();
        loop {
            drop(self.table());
            for forwarder in std::mem::take(&mut *self.0.unstarted.lock()) {
                tasks.spawn(work(forwarder, self.0.sent.clone(), self.0.start));
            }
            while let Some(ended) = tasks.try_join_next() {
                // A panicked lane would hold its events forever.
                if let Err(error) = ended
                    && error.is_panic()
                {
                    std::panic::resume_unwind(error.into_panic());
                }
            }
            tokio::select! {
                () = drain.signaled() => return,
                () = self.0.born.notified() => {}
                () = tokio::time::sleep(REFRESH) => {}
            }
        }
    }
}

impl Table {
    /// Also returns faulty Watchers.
    pub(crate) fn read(
        version: u64,
        own: &str,
        watchers: &[Arc<Watcher>],
        overrides: &Overrides,
        watch_name: impl Fn(&str, &str) -> String,
    ) -> (Self, Vec<(String, TargetFault)>) {
        let (targets, faults) = targets(watchers.iter().map(Arc::as_ref), own, overrides, &watch_name);
        let mut table = Self { version, ..Self::default() };
        for watcher in watchers.iter().filter(|w| w.metadata.deletion_timestamp.is_none()) {
            if watcher.manager_name() == Some(own) {
                let (namespace, name) = (&watcher.metadata.namespace, &watcher.metadata.name);
                let name =
                    watch_name(namespace.as_deref().unwrap_or_default(), name.as_deref().unwrap_or_default());
                table.by_watch.insert(name, (Owner::Own, watcher.spec.resource_to_watch.group.clone()));
            }
        }
        for (manager, target) in targets {
            let target = Arc::new(target);
            for (watch, group) in &target.watches {
                let owner = Owner::Manager(Arc::clone(&target));
                table.by_watch.insert(watch.clone(), (owner, group.clone()));
            }
            table.by_manager.insert(manager, target);
        }
        (table, faults)
    }
}

/// Dropping it aborts its requests.
async fn work<G: Settle>(forwarder: Arc<Forwarder<G>>, sent: IntCounterVec, start: Instant) {
    let mut flights: JoinSet<Sent> = JoinSet::new();
    let mut jobs: HashMap<Id, Job> = HashMap::new();
    loop {
        loop {
            let next = forwarder.lane.lock().next(start.elapsed());
            let Some(job) = next else { break };
            let client = Arc::clone(&forwarder.client.lock());
            let flight = flights.spawn(send(client, job.clone()));
            jobs.insert(flight.id(), job);
        }
        let wake = forwarder.lane.lock().wake().map(|tick| start + tick);
        tokio::select! {
            () = forwarder.stop.cancelled() => return,
            Some(ended) = flights.join_next_with_id() => {
                let (id, result) = match ended {
                    Ok((id, result)) => (id, result),
                    Err(error) => (error.id(), Sent::Broken),
                };
                sent.with_label_values(&[&forwarder.label, result.label()]).inc();
                let Some(job) = jobs.remove(&id) else { continue };
                finished(&forwarder, &job, result, start);
            }
            () = forwarder.changed.notified() => {}
            () = sleep_until(wake) => {}
        }
    }
}

async fn sleep_until(wake: Option<Instant>) {
    match wake {
        Some(wake) => tokio::time::sleep_until(wake).await,
        None => std::future::pending().await,
    }
}

fn finished<G: Settle>(forwarder: &Forwarder<G>, job: &Job, result: Sent, start: Instant) {
    if result.ended() != Ended::Taken {
        let manager = &forwarder.client.lock().target().manager.clone();
        tracing::debug!(manager, runtime = &*job.key.runtime, object = %job.key.object, ?result,
            "an event was not taken and is tried again");
    }
    forwarder.lane.lock().finished(&job.key, job.flight, result.ended(), random(), start.elapsed());
}

async fn send(client: Arc<Client>, job: Job) -> Sent {
    let object = &job.key.object;
    let event = v2::WatchEvent {
        watched: v2::ObjectKey { namespace: object.namespace.clone(), name: object.name.clone() },
        watched_gvk: v2::GroupVersionKind {
            group: object.gvk.group.clone(),
            version: object.gvk.version.clone(),
            kind: object.gvk.kind.clone(),
        },
    };
    let header = xfcc::format(&job.certificate).ok().and_then(|text| HeaderValue::try_from(text).ok());
    match header {
        Some(header) => client.send(&event, &header).await,
        // `take` has checked the certificate.
        None => Sent::Broken,
    }
}

/// In `[0, 1)`.
fn random() -> f64 {
    let bits = RandomState::new().build_hasher().finish();
    f64::from(u32::try_from(bits >> 32).unwrap_or(0)) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests;
