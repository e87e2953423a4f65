//! Ledgers of events, and guards that tie entries to reconciles.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use tidewatch_delivery::ledger::{Intake, Ledger, Outcome, Received};
use tidewatch_wire::{
    Epoch, Route, Seq, SeqSet, SessionId,
    v3::{self, Request, Response},
};
use tokio::sync::Notify;

use crate::fair::{CANARIES, Capacity};

const PER_RUNTIME: usize = 20_000;
/// Load from which capacity is scarce.
const SCARCE: f64 = 0.5;

/// Events with guards, per route. Ledgers forget numbers before their reconciles finish.
struct Counts {
    all: Arc<AtomicUsize>,
    /// Without canaries.
    own: AtomicUsize,
    canaries: AtomicUsize,
}

impl Counts {
    fn of(&self, canary: bool) -> [&AtomicUsize; 2] {
        [&*self.all, if canary { &self.canaries } else { &self.own }]
    }

    fn left(&self, capacity: Capacity) -> usize {
        capacity.left(self.all.load(Ordering::Relaxed), self.own.load(Ordering::Relaxed))
    }

    fn is_over(&self, capacity: Capacity) -> bool {
        capacity.is_over(self.all.load(Ordering::Relaxed), self.own.load(Ordering::Relaxed))
    }
}

struct Entry {
    ledger: Mutex<Ledger>,
    changed: Notify,
    counts: Counts,
    capacity: Capacity,
    /// Numbers in the last request, if the share was full.
    asked: Mutex<Option<(Epoch, SeqSet)>>,
}

impl Entry {
    fn receive(&self, request: &Request<'_>, door: Door) -> Received {
        let mut ledger = self.ledger.lock();
        // Always, so that the ledger forgets numbers no longer awaited.
        let mut received = ledger.receive_only(request, |event| door.admits(event));
        let capacity = self.counts.left(self.capacity);
        let mut left = capacity;
        let mut canaries = CANARIES.saturating_sub(self.counts.canaries.load(Ordering::Relaxed));
        let mut excess = Vec::new();
        received.fresh.retain(|&index| {
            let Some(event) = request.events.get(index) else { return false };
            let free = if event.watch == v3::CANARY { &mut canaries } else { &mut left };
            let taken = *free > 0;
            *free = free.saturating_sub(1);
            if !taken {
                excess.push(event.seq);
            }
            taken
        });
        received.overloaded |= !excess.is_empty();
        for seq in excess {
            // Forgets the number, so that a resend is new. Only held numbers can be dropped.
            ledger.route(request.epoch, seq, Route::engine(), Intake::Held);
            ledger.settle(request.epoch, seq, &Route::engine(), Outcome::Dropped);
        }
        *self.asked.lock() = (capacity == 0).then(|| (request.epoch, request.awaiting.clone()));
        received
    }

    fn wants(&self, epoch: Epoch, seq: Seq) -> bool {
        if self.counts.is_over(self.capacity) {
            return false;
        }
        let asked =
            self.asked.lock().as_ref().is_none_or(|(e, awaiting)| *e == epoch && awaiting.contains(seq));
        asked && self.ledger.lock().knows(epoch, seq)
    }
}

pub(crate) fn milliseconds(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
}

/// Filter for events. Canaries always pass, so that a busy runtime does not look silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// All.
    Open,
    /// Events since this time, except full reports.
    Younger(Timestamp),
    /// Canaries only.
    Canary,
}

impl Door {
    pub(crate) fn admits(self, event: &v3::Event<'_>) -> bool {
        event.watch == v3::CANARY
            || match self {
                Self::Open => true,
                Self::Younger(since) => !event.listed && event.observed_at >= since,
                Self::Canary => false,
            }
    }
}

/// Ledgers of one session. Cheap to clone.
#[derive(Clone)]
pub struct Deliveries(Arc<Inner>);

struct Inner {
    session: SessionId,
    per_runtime: usize,
    runtimes: Mutex<HashMap<String, Arc<Entry>>>,
    held: Arc<AtomicUsize>,
    capacity: Capacity,
}

impl Deliveries {
    /// Creates empty ledgers.
    #[must_use]
    pub fn new(session: SessionId) -> Self {
        Self::with(session, PER_RUNTIME, Capacity(usize::MAX))
    }

    fn with(session: SessionId, per_runtime: usize, capacity: Capacity) -> Self {
        let (runtimes, held) = (Mutex::default(), Arc::default());
        Self(Arc::new(Inner { session, per_runtime, runtimes, held, capacity }))
    }

    /// Sets the most numbers per runtime (default 20,000). Empties the ledgers.
    #[must_use]
    pub fn remembering(self, per_runtime: usize) -> Self {
        Self::with(self.0.session, per_runtime, self.0.capacity)
    }

    /// Sets the most held events of all runtimes. Empties the ledgers.
    ///
    /// A runtime may hold a twenty-fourth of the free capacity, at most 20,000. Forgotten events count until their
    /// reconciles finish. Canaries and up to 16 events per runtime always pass, even beyond the limit.
    #[must_use]
    pub fn with_capacity(self, events: usize) -> Self {
        Self::with(self.0.session, self.0.per_runtime, Capacity(events.max(1)))
    }

    /// Load, 1 at the limit.
    #[must_use]
    pub fn load(&self) -> f64 {
        self.0.capacity.load(self.held())
    }

    /// Whether shares have become small.
    #[must_use]
    pub fn is_scarce(&self) -> bool {
        self.load() >= SCARCE
    }

    fn entry(&self, runtime: &str) -> Arc<Entry> {
        let mut runtimes = self.0.runtimes.lock();
        if let Some(entry) = runtimes.get(runtime) {
            return Arc::clone(entry);
        }
        let ledger = Mutex::new(Ledger::new(self.0.session, self.0.per_runtime));
        let all = Arc::clone(&self.0.held);
        let counts = Counts { all, own: AtomicUsize::default(), canaries: AtomicUsize::default() };
        let (changed, capacity, asked) = (Notify::new(), self.0.capacity, Mutex::default());
        let entry = Arc::new(Entry { ledger, changed, counts, capacity, asked });
        runtimes.insert(runtime.to_owned(), Arc::clone(&entry));
        entry
    }

    /// Receives a request within the runtime's capacity; see [`Ledger::receive`].
    pub fn receive(&self, runtime: &str, request: &Request<'_>) -> Received {
        self.receive_at(runtime, request, Door::Open)
    }

    /// Like [`Deliveries::receive`], for events that pass `door`.
    pub fn receive_at(&self, runtime: &str, request: &Request<'_>, door: Door) -> Received {
        self.entry(runtime).receive(request, door)
    }

    /// Returns the ticket of a fresh event.
    pub fn ticket(&self, runtime: &str, epoch: Epoch, seq: Seq) -> Ticket {
        Ticket { entry: self.entry(runtime), epoch, seq, canary: false, used: false }
    }

    /// Returns a maker of tickets for one request.
    pub fn tickets(&self, runtime: &str, epoch: Epoch) -> impl Fn(&v3::Event<'_>) -> Ticket + use<> {
        let entry = self.entry(runtime);
        move |event| {
            let (seq, canary) = (event.seq, event.watch == v3::CANARY);
            Ticket { entry: Arc::clone(&entry), epoch, seq, canary, used: false }
        }
    }

    /// Answers a request. `wait` is the pause that the agent is asked for at overload.
    pub fn answer(&self, runtime: &str, epoch: Epoch, awaiting: &SeqSet, wait: Option<Duration>) -> Response {
        let mut response = self.entry(runtime).ledger.lock().answer(epoch, awaiting);
        response.retry_after_ms = wait.map(milliseconds);
        response
    }

    /// Waits until an awaited number has an answer. Cancel-safe.
    pub async fn changed(&self, runtime: &str, epoch: Epoch, awaiting: &SeqSet) {
        let entry = self.entry(runtime);
        loop {
            let changed = entry.changed.notified();
            tokio::pin!(changed);
            // Before the check, so that no change is missed.
            changed.as_mut().enable();
            if entry.ledger.lock().has_changes(epoch, awaiting) {
                return;
            }
            changed.await;
        }
    }

    /// Held events of all runtimes, per route, limited by [`Deliveries::with_capacity`].
    #[must_use]
    pub fn held(&self) -> usize {
        self.0.held.load(Ordering::Relaxed)
    }

    /// Held events of one runtime, per route, without canaries.
    #[must_use]
    pub fn held_by(&self, runtime: &str) -> usize {
        let runtimes = self.0.runtimes.lock();
        runtimes.get(runtime).map_or(0, |entry| entry.counts.own.load(Ordering::Relaxed))
    }

    /// Forgets unregistered runtimes.
    pub fn retain(&self, registered: impl Fn(&str) -> bool) {
        self.0.runtimes.lock().retain(|id, _| registered(id));
    }
}

/// Routes a fresh event. Each route acknowledges separately. Dropped unused, the event is resent.
#[must_use = "an event whose ticket is dropped unused is sent again"]
pub struct Ticket {
    entry: Arc<Entry>,
    epoch: Epoch,
    seq: Seq,
    canary: bool,
    used: bool,
}

impl Ticket {
    /// Acknowledges: nothing on this route depends on the event.
    pub fn done(&mut self, route: Route) {
        self.route(route, Intake::Done);
    }

    /// Refuses: the agent drops and counts the event.
    pub fn refuse(&mut self, route: Route) {
        self.route(route, Intake::Refused);
    }

    /// Holds the event until `parts` guards finish. With zero parts, it is done.
    #[must_use = "an event whose guard is dropped is sent again"]
    pub fn hold(&mut self, route: Route, parts: usize) -> Guards {
        if parts == 0 {
            self.done(route);
            return Guards(None);
        }
        self.route(route.clone(), Intake::Held);
        for count in self.entry.counts.of(self.canary) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let held = Arc::new(Held {
            entry: Arc::clone(&self.entry),
            epoch: self.epoch,
            seq: self.seq,
            canary: self.canary,
            route,
            open: AtomicUsize::new(parts),
            settled: AtomicBool::new(false),
        });
        Guards::new(held, parts)
    }

    fn route(&mut self, route: Route, intake: Intake) {
        self.used = true;
        self.entry.ledger.lock().route(self.epoch, self.seq, route, intake);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.used {
            // Any route: a drop forgets the whole event.
            drop(self.hold(Route::engine(), 1));
        }
    }
}

struct Held {
    entry: Arc<Entry>,
    epoch: Epoch,
    seq: Seq,
    canary: bool,
    route: Route,
    open: AtomicUsize,
    settled: AtomicBool,
}

impl Held {
    fn settle(&self, outcome: Outcome) {
        if !self.settled.swap(true, Ordering::AcqRel) {
            self.entry.ledger.lock().settle(self.epoch, self.seq, &self.route, outcome);
            self.entry.changed.notify_waiters();
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for count in self.entry.counts.of(self.canary) {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Ties an event to a reconcile. Dropped unfinished, the event is resent.
pub struct Guard {
    held: Arc<Held>,
    finished: bool,
}

impl Guard {
    /// Splits into guards that must all finish. With zero parts, it is finished.
    #[must_use = "an event whose guard is dropped is sent again"]
    pub fn split(mut self, parts: usize) -> Guards {
        if parts == 0 {
            self.finished();
            return Guards(None);
        }
        self.held.open.fetch_add(parts - 1, Ordering::AcqRel);
        self.finished = true;
        Guards::new(Arc::clone(&self.held), parts)
    }

    /// Whether retries should keep the event.
    ///
    /// A forgotten number cannot be acknowledged: its key changed or its agent restarted. With a full share, the last
    /// request must ask for the number. Over its share, a runtime's events are all unwanted. Dropped events are resent.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.held.entry.wants(self.held.epoch, self.held.seq)
    }

    /// Reports that the reconcile has finished or its result is persisted. The last guard acknowledges its route.
    pub fn finished(mut self) {
        self.finished = true;
        if self.held.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.held.settle(Outcome::Done);
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("seq", &self.held.seq)
            .field("route", &self.held.route)
            .finish_non_exhaustive()
    }
}

impl Guard {
    /// Refuses the event for this route. Other guards then have no effect.
    pub fn refused(mut self) {
        self.finished = true;
        self.held.settle(Outcome::Refused);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.finished {
            self.held.settle(Outcome::Dropped);
        }
    }
}

/// Guards of one route. Those not taken are dropped.
#[must_use = "an event whose guard is dropped is sent again"]
pub struct Guards(Option<(Guard, usize)>);

impl Guards {
    fn new(held: Arc<Held>, parts: usize) -> Self {
        Self(Some((Guard { held, finished: false }, parts)))
    }
}

impl Iterator for Guards {
    type Item = Guard;

    fn next(&mut self) -> Option<Guard> {
        let (guard, left) = self.0.take()?;
        if left > 1 {
            let other = Guard { held: Arc::clone(&guard.held), finished: false };
            self.0 = Some((other, left - 1));
        }
        Some(guard)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.0.as_ref().map_or(0, |(_, left)| *left);
        (left, Some(left))
    }
}

impl ExactSizeIterator for Guards {}

impl fmt::Debug for Guards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guards").field(&self.0).finish()
    }
}

#[cfg(test)]
mod tests;
