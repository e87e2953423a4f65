//! What the agents have told and what has become of it: one ledger per runtime, and the guards that tie
//! its entries to work.

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

use crate::fair::{CANARIES, Room};

/// Most unsettled numbers of one runtime, if nothing else is said; an agent that has more is asked to wait.
const PER_RUNTIME: usize = 20_000;
/// The room counts as scarce from here on.
const SCARCE: f64 = 0.5;

/// Events with guards. An event that several routes hold counts for each.
///
/// The ledgers do not say how many there are: they forget numbers whose work goes on.
struct Counts {
    /// Of all runtimes.
    all: Arc<AtomicUsize>,
    /// Of one, without its canaries.
    own: AtomicUsize,
    canaries: AtomicUsize,
}

impl Counts {
    /// What an event is counted by.
    fn of(&self, canary: bool) -> [&AtomicUsize; 2] {
        [&*self.all, if canary { &self.canaries } else { &self.own }]
    }

    fn left(&self, room: Room) -> usize {
        room.left(self.all.load(Ordering::Relaxed), self.own.load(Ordering::Relaxed))
    }

    fn is_over(&self, room: Room) -> bool {
        room.is_over(self.all.load(Ordering::Relaxed), self.own.load(Ordering::Relaxed))
    }
}

struct Entry {
    ledger: Mutex<Ledger>,
    changed: Notify,
    counts: Counts,
    /// What all share.
    room: Room,
    /// With the share full, what the agent has asked about last: nothing else is worth its place.
    asked: Mutex<Option<(Epoch, SeqSet)>>,
}

impl Entry {
    fn receive(&self, request: &Request<'_>, door: Door) -> Received {
        let mut ledger = self.ledger.lock();
        // Also without room: only so it forgets what nobody asks about any more.
        let mut received = ledger.receive_those(request, |event| door.lets(event));
        let room = self.counts.left(self.room);
        let mut left = room;
        let mut canaries = CANARIES.saturating_sub(self.counts.canaries.load(Ordering::Relaxed));
        let mut excess = Vec::new();
        received.fresh.retain(|&index| {
            let Some(event) = request.events.get(index) else { return false };
            let places = if event.watch == v3::CANARY { &mut canaries } else { &mut left };
            let taken = *places > 0;
            *places = places.saturating_sub(1);
            if !taken {
                excess.push(event.seq);
            }
            taken
        });
        received.overloaded |= !excess.is_empty();
        for seq in excess {
            // Given back, so that it is new when it comes again. Only what is held can be.
            ledger.route(request.epoch, seq, Route::engine(), Intake::Held);
            ledger.settle(request.epoch, seq, &Route::engine(), Outcome::Dropped);
        }
        *self.asked.lock() = (room == 0).then(|| (request.epoch, request.awaiting.clone()));
        received
    }

    /// Whether anybody is told when the work for this number is finished, or, with the share full, has asked for it; and
    /// whether the runtime does not have to give way to others.
    fn wants(&self, epoch: Epoch, seq: Seq) -> bool {
        if self.counts.is_over(self.room) {
            return false;
        }
        let asked =
            self.asked.lock().as_ref().is_none_or(|(e, awaiting)| *e == epoch && awaiting.contains(seq));
        asked && self.ledger.lock().knows(epoch, seq)
    }
}

/// A wait as it is told to agents.
pub(crate) fn milliseconds(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
}

/// Which events of a request are taken, if there is room. The agent's canary always is: a runtime that is busy is not one whose
/// events do not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// All.
    Open,
    /// Those that were observed since then, but none that is reported only because everything is.
    Younger(Timestamp),
    /// None but the canary.
    Canary,
}

impl Door {
    pub(crate) fn lets(self, event: &v3::Event<'_>) -> bool {
        event.watch == v3::CANARY
            || match self {
                Self::Open => true,
                Self::Younger(since) => !event.listed && event.observed_at >= since,
                Self::Canary => false,
            }
    }
}

/// All ledgers of one session. Cheap to clone.
#[derive(Clone)]
pub struct Deliveries(Arc<Inner>);

struct Inner {
    session: SessionId,
    /// Most unsettled numbers of one runtime.
    per_runtime: usize,
    runtimes: Mutex<HashMap<String, Arc<Entry>>>,
    /// Events with guards, of all runtimes, and how many there may be.
    held: Arc<AtomicUsize>,
    room: Room,
}

impl Deliveries {
    /// Empty ledgers for a new session.
    #[must_use]
    pub fn new(session: SessionId) -> Self {
        Self::with(session, PER_RUNTIME, Room(usize::MAX))
    }

    fn with(session: SessionId, per_runtime: usize, room: Room) -> Self {
        let (runtimes, held) = (Mutex::default(), Arc::default());
        Self(Arc::new(Inner { session, per_runtime, runtimes, held, room }))
    }

    /// Empty ledgers for the same session that remember at most so many numbers of a runtime (usually 20,000).
    #[must_use]
    pub fn remembering(self, per_runtime: usize) -> Self {
        Self::with(self.0.session, per_runtime, self.0.room)
    }

    /// The same, with the number of events that may be held at the same time, over all runtimes. One runtime may hold a
    /// twenty-fourth of what is free beside its own, and at most 20,000: events that were forgotten since, but whose work
    /// goes on, are among them. Its first 16, and its canary, have a place however much the others hold; they may go over
    /// the number.
    #[must_use]
    pub fn with_room_for(self, events: usize) -> Self {
        Self::with(self.0.session, self.0.per_runtime, Room(events.max(1)))
    }

    /// How full the ledgers are together: 1 at the limit.
    #[must_use]
    pub fn load(&self) -> f64 {
        self.0.room.load(self.held())
    }

    /// Whether so much is held that the runtimes' shares have become small.
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
        let (changed, room, asked) = (Notify::new(), self.0.room, Mutex::default());
        let entry = Arc::new(Entry { ledger, changed, counts, room, asked });
        runtimes.insert(runtime.to_owned(), Arc::clone(&entry));
        entry
    }

    /// Takes a request in; see [`Ledger::receive`]. Events for which the runtime has no place are left out as well.
    pub fn receive(&self, runtime: &str, request: &Request<'_>) -> Received {
        self.receive_at(runtime, request, Door::Open)
    }

    /// The same, and events that may not pass the door now are left out, too.
    pub fn receive_at(&self, runtime: &str, request: &Request<'_>, door: Door) -> Received {
        self.entry(runtime).receive(request, door)
    }

    /// What decides over an event that [`Deliveries::receive`] has called fresh.
    pub fn ticket(&self, runtime: &str, epoch: Epoch, seq: Seq) -> Ticket {
        Ticket { entry: self.entry(runtime), epoch, seq, canary: false, used: false }
    }

    /// The same for many events of one request, the canary among them: the runtime is looked up once.
    pub fn tickets(&self, runtime: &str, epoch: Epoch) -> impl Fn(&v3::Event<'_>) -> Ticket + use<> {
        let entry = self.entry(runtime);
        move |event| {
            let (seq, canary) = (event.seq, event.watch == v3::CANARY);
            Ticket { entry: Arc::clone(&entry), epoch, seq, canary, used: false }
        }
    }

    /// The answer to a request, with the patience that is asked for at overload.
    pub fn answer(
        &self,
        runtime: &str,
        epoch: Epoch,
        awaiting: &SeqSet,
        patience: Option<Duration>,
    ) -> Response {
        let mut response = self.entry(runtime).ledger.lock().answer(epoch, awaiting);
        response.retry_after_ms = patience.map(milliseconds);
        response
    }

    /// Waits until there is something to say about the awaited numbers. Cancel-safe.
    pub async fn news(&self, runtime: &str, epoch: Epoch, awaiting: &SeqSet) {
        let entry = self.entry(runtime);
        loop {
            let changed = entry.changed.notified();
            tokio::pin!(changed);
            // Registered before the look, so that a change in between is not missed.
            changed.as_mut().enable();
            if entry.ledger.lock().has_news(epoch, awaiting) {
                return;
            }
            changed.await;
        }
    }

    /// Events held over all runtimes: what [`Deliveries::with_room_for`] limits. One that several routes hold counts for
    /// each.
    #[must_use]
    pub fn held(&self) -> usize {
        self.0.held.load(Ordering::Relaxed)
    }

    /// Events held for one runtime, counted in the same way.
    #[must_use]
    pub fn held_by(&self, runtime: &str) -> usize {
        let runtimes = self.0.runtimes.lock();
        runtimes.get(runtime).map_or(0, |entry| entry.counts.own.load(Ordering::Relaxed))
    }

    /// Forgets runtimes that are not registered any more.
    pub fn retain(&self, registered: impl Fn(&str) -> bool) {
        self.0.runtimes.lock().retain(|id, _| registered(id));
    }
}

/// Says where a fresh event goes: to one route or to several, each of which acknowledges for itself. Dropped
/// without having said anything, it gives the event back: the agent is asked to send it again.
#[must_use = "an event whose ticket is dropped unused is sent again"]
pub struct Ticket {
    entry: Arc<Entry>,
    epoch: Epoch,
    seq: Seq,
    canary: bool,
    used: bool,
}

impl Ticket {
    /// Nothing on this route depends on the event.
    pub fn done(&mut self, route: Route) {
        self.route(route, Intake::Done);
    }

    /// This route does not want the event; the agent lets it go and counts it.
    pub fn refuse(&mut self, route: Route) {
        self.route(route, Intake::Refused);
    }

    /// Holds the event for this route until `parts` pieces of work are finished; one guard for each. With none it
    /// is done.
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
            // Which route gives it back makes no difference: the whole event is forgotten.
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

/// Ties one held event to one piece of work. Dropped without being finished, it gives the event back: the
/// agent is asked to send it again.
pub struct Guard {
    held: Arc<Held>,
    finished: bool,
}

impl Guard {
    /// The same guard for `parts` pieces of work, each of which has to finish. For none, it is finished.
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

    /// Whether the event's number is still remembered. Finishing one that was forgotten (its key has changed again, or
    /// its agent runs anew) tells nobody anything, so work that is tried for ever need not keep it. While its runtime has
    /// no place for more, the agent must have asked about it as well; and while it holds more than it may, because others
    /// need room by now, nothing is wanted of it: what is dropped is sent again.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.held.entry.wants(self.held.epoch, self.held.seq)
    }

    /// The work has finished, or what it found is persisted. The event is acknowledged on its route when all its
    /// guards have.
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
    /// Nobody on this route wants the event any more: the agent lets it go and counts it. What other guards of the
    /// event on this route do makes no difference then.
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

/// Guards of one event on one route. Those that are not taken out are dropped with it.
#[must_use = "an event whose guard is dropped is sent again"]
pub struct Guards(Option<(Guard, usize)>);

impl Guards {
    /// `parts` of them, which `held` has counted; at least one.
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
