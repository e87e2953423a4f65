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

use parking_lot::Mutex;
use tidewatch_delivery::ledger::{Intake, Ledger, Outcome, Received};
use tidewatch_wire::{
    Epoch, Route, Seq, SeqSet, SessionId,
    v3::{Request, Response},
};
use tokio::sync::Notify;

/// Most unsettled numbers of one runtime, if nothing else is said; an agent that has more is asked to wait.
const PER_RUNTIME: usize = 20_000;

struct Entry {
    ledger: Mutex<Ledger>,
    changed: Notify,
    /// Events with guards, of all runtimes.
    held: Arc<AtomicUsize>,
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
    room: usize,
}

impl Deliveries {
    /// Empty ledgers for a new session.
    #[must_use]
    pub fn new(session: SessionId) -> Self {
        Self::with(session, PER_RUNTIME, usize::MAX)
    }

    fn with(session: SessionId, per_runtime: usize, room: usize) -> Self {
        let (runtimes, held) = (Mutex::default(), Arc::default());
        Self(Arc::new(Inner { session, per_runtime, runtimes, held, room }))
    }

    /// Empty ledgers for the same session that remember at most so many numbers of a runtime (usually 20,000).
    #[must_use]
    pub fn remembering(self, per_runtime: usize) -> Self {
        Self::with(self.0.session, per_runtime, self.0.room)
    }

    /// The same, with the number of events that may be held at the same time, over all runtimes. It is asked for
    /// before a request is taken; a request that is taken may go over it.
    #[must_use]
    pub fn with_room_for(self, events: usize) -> Self {
        Self::with(self.0.session, self.0.per_runtime, events.max(1))
    }

    /// How full the ledgers are together: 1 at the limit.
    #[must_use]
    pub fn load(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a count of events is far below 2^52")]
        let load = self.0.held.load(Ordering::Relaxed) as f64 / self.0.room as f64;
        load
    }

    fn entry(&self, runtime: &str) -> Arc<Entry> {
        let mut runtimes = self.0.runtimes.lock();
        if let Some(entry) = runtimes.get(runtime) {
            return Arc::clone(entry);
        }
        let ledger = Mutex::new(Ledger::new(self.0.session, self.0.per_runtime));
        let entry = Arc::new(Entry { ledger, changed: Notify::new(), held: Arc::clone(&self.0.held) });
        runtimes.insert(runtime.to_owned(), Arc::clone(&entry));
        entry
    }

    /// Takes a request in; see [`Ledger::receive`].
    pub fn receive(&self, runtime: &str, request: &Request<'_>) -> Received {
        self.entry(runtime).ledger.lock().receive(request)
    }

    /// What decides over an event that [`Deliveries::receive`] has called fresh.
    pub fn ticket(&self, runtime: &str, epoch: Epoch, seq: Seq) -> Ticket {
        self.tickets(runtime, epoch)(seq)
    }

    /// The same for many events of one request: the runtime is looked up once.
    pub fn tickets(&self, runtime: &str, epoch: Epoch) -> impl Fn(Seq) -> Ticket + use<> {
        let entry = self.entry(runtime);
        move |seq| Ticket { entry: Arc::clone(&entry), epoch, seq, used: false }
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
        response.retry_after_ms = patience.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
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

    /// Events held over all runtimes.
    pub fn held(&self) -> usize {
        let entries: Vec<_> = self.0.runtimes.lock().values().cloned().collect();
        entries.iter().map(|e| e.ledger.lock().held()).sum()
    }

    /// Events held for one runtime.
    pub fn held_by(&self, runtime: &str) -> usize {
        let entry = self.0.runtimes.lock().get(runtime).cloned();
        entry.map_or(0, |e| e.ledger.lock().held())
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
        self.entry.held.fetch_add(1, Ordering::Relaxed);
        let held = Arc::new(Held {
            entry: Arc::clone(&self.entry),
            epoch: self.epoch,
            seq: self.seq,
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
        self.entry.held.fetch_sub(1, Ordering::Relaxed);
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
    /// its agent runs anew) tells nobody anything, so work that is tried for ever need not keep it.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.held.entry.ledger.lock().knows(self.held.epoch, self.held.seq)
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
mod tests {
    use super::*;

    const RUNTIME: &str = "r1";
    const EPOCH: Epoch = Epoch::from_bits(1);

    fn request(awaiting: &[u64]) -> Request<'static> {
        Request {
            events: awaiting
                .iter()
                .map(|n| tidewatch_wire::v3::Event {
                    seq: Seq(*n),
                    watch: "w".into(),
                    group: "".into(),
                    version: "v1".into(),
                    kind: "K".into(),
                    namespace: "".into(),
                    name: "n".into(),
                    uid: "".into(),
                    resource_version: "".into(),
                    change: tidewatch_wire::v3::Change::Changed,
                    observed_at: jiff::Timestamp::UNIX_EPOCH,
                })
                .collect(),
            awaiting: awaiting.iter().map(|n| Seq(*n)).collect(),
            ..Request::new(EPOCH)
        }
    }

    fn awaited() -> SeqSet {
        request(&[1]).awaiting
    }

    fn held(parts: usize) -> (Deliveries, Vec<Guard>) {
        let deliveries = Deliveries::new(SessionId::from_bits(7));
        deliveries.receive(RUNTIME, &request(&[1]));
        let guards = deliveries.ticket(RUNTIME, EPOCH, Seq(1)).hold(Route::engine(), parts).collect();
        (deliveries, guards)
    }

    fn is_done(deliveries: &Deliveries) -> bool {
        deliveries.answer(RUNTIME, EPOCH, &awaited(), None).acks.iter().any(|a| a.done.contains(Seq(1)))
    }

    #[test]
    fn an_event_is_done_when_all_its_work_is() {
        let (deliveries, mut guards) = held(2);
        guards.remove(0).finished();
        assert!(!is_done(&deliveries));
        guards.remove(0).finished();
        assert!(is_done(&deliveries));
        assert_eq!(deliveries.held(), 0);
    }

    #[test]
    fn a_dropped_guard_acknowledges_nothing() {
        let (deliveries, mut guards) = held(2);
        drop(guards.remove(0));
        guards.remove(0).finished();
        assert!(!is_done(&deliveries));
        let answer = deliveries.answer(RUNTIME, EPOCH, &awaited(), None);
        assert!(answer.unknown.contains(Seq(1)), "the agent is asked to send it again");
    }

    #[test]
    fn a_guard_of_a_forgotten_number_is_not_wanted() {
        let (deliveries, guards) = held(1);
        assert!(guards[0].is_wanted());
        for epoch in 2..=3 {
            let next = Request { epoch: Epoch::from_bits(epoch), ..request(&[1]) };
            deliveries.receive(RUNTIME, &next);
        }
        assert!(!guards[0].is_wanted(), "its agent has been started anew, twice");
    }

    #[test]
    fn each_route_acknowledges_for_itself() {
        let deliveries = Deliveries::new(SessionId::from_bits(7));
        deliveries.receive(RUNTIME, &request(&[1]));
        let mut ticket = deliveries.ticket(RUNTIME, EPOCH, Seq(1));
        let (engine, other) = (ticket.hold(Route::engine(), 1), ticket.hold(Route::manager("other"), 1));
        drop(ticket);
        let done = || -> Vec<Route> {
            let answer = deliveries.answer(RUNTIME, EPOCH, &awaited(), None);
            answer.acks.into_iter().map(|a| a.route).collect()
        };
        other.for_each(Guard::finished);
        assert_eq!(done(), [Route::manager("other")]);
        engine.for_each(Guard::finished);
        assert_eq!(done(), [Route::engine(), Route::manager("other")]);
    }

    #[test]
    fn a_guard_that_is_split_is_finished_when_all_its_parts_are() {
        let (deliveries, mut guards) = held(2);
        assert!(guards.remove(0).split(0).next().is_none());
        let mut parts: Vec<_> = guards.remove(0).split(2).collect();
        parts.remove(0).finished();
        assert!(!is_done(&deliveries));
        parts.remove(0).finished();
        assert!(is_done(&deliveries));
    }

    #[test]
    fn guards_that_are_not_taken_give_the_event_back() {
        let (deliveries, guards) = held(2);
        let [one, other] = <[Guard; 2]>::try_from(guards).unwrap();
        one.finished();
        let mut parts = other.split(3);
        assert_eq!(parts.len(), 3);
        parts.next().unwrap().finished();
        assert_eq!(parts.len(), 2);
        drop(parts);
        let answer = deliveries.answer(RUNTIME, EPOCH, &awaited(), None);
        assert!(answer.unknown.contains(Seq(1)), "the agent is asked to send it again");
        assert_eq!(deliveries.load().to_bits(), 0.0_f64.to_bits(), "nothing is held");
    }

    #[test]
    fn an_unused_ticket_gives_the_event_back() {
        let deliveries = Deliveries::new(SessionId::from_bits(7));
        deliveries.receive(RUNTIME, &request(&[1]));
        drop(deliveries.ticket(RUNTIME, EPOCH, Seq(1)));
        let answer = deliveries.answer(RUNTIME, EPOCH, &awaited(), None);
        assert!(answer.unknown.contains(Seq(1)), "the agent is asked to send it again");
        assert_eq!(deliveries.held(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_poll_is_answered_when_the_work_is_done() {
        let (deliveries, mut guards) = held(1);
        let waiting = tokio::spawn({
            let deliveries = deliveries.clone();
            async move { deliveries.news(RUNTIME, EPOCH, &awaited()).await }
        });
        let early = tokio::time::timeout(Duration::from_secs(20), async {
            while !waiting.is_finished() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        assert!(early.await.is_err(), "nothing to say yet");
        guards.remove(0).finished();
        waiting.await.unwrap();
    }

    #[test]
    fn overload_asks_for_patience() {
        let (deliveries, _guards) = held(1);
        let patience = Some(Duration::from_secs(5));
        assert_eq!(deliveries.answer(RUNTIME, EPOCH, &awaited(), patience).retry_after_ms, Some(5_000));
        deliveries.retain(|_| false);
        assert_eq!(deliveries.held(), 0);
    }
}
