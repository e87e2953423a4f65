//! What the agents have told and what has become of it: one ledger per runtime, and the guards that tie
//! its entries to work in the queue.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use tidewatch_delivery::{
    claims::Claims,
    ledger::{Intake, Ledger, Outcome, Received},
};
use tidewatch_engine::Acknowledge;
use tidewatch_wire::{
    Epoch, Route, Seq, SeqSet, SessionId,
    v3::{Request, Response},
};
use tokio::sync::Notify;

use crate::sessions::Sessions;

/// Most unsettled numbers of one runtime; an agent that has more is asked to wait.
const PER_RUNTIME: usize = 20_000;
/// How long an agent is asked to wait at overload, in milliseconds.
const RETRY_AFTER_MS: u64 = 5_000;

struct Entry {
    ledger: Mutex<Ledger>,
    changed: Notify,
}

/// All ledgers of one session. Cheap to clone.
#[derive(Clone)]
pub struct Deliveries(Arc<Inner>);

struct Inner {
    session: SessionId,
    sessions: Sessions,
    runtimes: Mutex<HashMap<String, Arc<Entry>>>,
    /// By Kyma: its runtime's id, and what that runtime's agent may claim.
    claims: Mutex<HashMap<String, (String, Claims)>>,
}

impl Deliveries {
    /// Empty ledgers for a new session.
    #[must_use]
    pub fn new(session: SessionId, sessions: Sessions) -> Self {
        Self(Arc::new(Inner { session, sessions, runtimes: Mutex::default(), claims: Mutex::default() }))
    }

    /// This session.
    pub fn session(&self) -> SessionId {
        self.0.session
    }

    /// Whether the agent must report everything again; see [`Claims::take`].
    pub fn must_resync(&self, kyma: &str, runtime: &str, request: &Request) -> bool {
        let Inner { session, sessions, claims, .. } = &*self.0;
        let mut claims = claims.lock();
        let (of, claims) = claims.entry(kyma.to_owned()).or_default();
        if of != runtime {
            (*of, *claims) = (runtime.to_owned(), Claims::new());
        }
        claims.take(request, *session, |earlier| sessions.knows(earlier))
    }

    /// A reconcile has worked on the runtime of a Kyma; see [`Claims::touched`].
    pub fn touched(&self, kyma: &str) {
        if let Some((_, claims)) = self.0.claims.lock().get_mut(kyma) {
            claims.touched();
        }
    }

    fn entry(&self, runtime: &str) -> Arc<Entry> {
        let mut runtimes = self.0.runtimes.lock();
        if let Some(entry) = runtimes.get(runtime) {
            return Arc::clone(entry);
        }
        let ledger = Mutex::new(Ledger::new(self.0.session, PER_RUNTIME));
        let entry = Arc::new(Entry { ledger, changed: Notify::new() });
        runtimes.insert(runtime.to_owned(), Arc::clone(&entry));
        entry
    }

    /// Takes a request in; see [`Ledger::receive`].
    pub fn receive(&self, runtime: &str, request: &Request) -> Received {
        self.entry(runtime).ledger.lock().receive(request)
    }

    /// Nothing has to happen for this event.
    pub fn done_at_once(&self, runtime: &str, epoch: Epoch, seq: Seq) {
        self.entry(runtime).ledger.lock().route(epoch, seq, Route::engine(), Intake::Done);
    }

    /// Holds an event until `parts` pieces of work are finished; one guard for each.
    pub fn hold(&self, runtime: &str, epoch: Epoch, seq: Seq, parts: usize) -> Vec<Guard> {
        let entry = self.entry(runtime);
        entry.ledger.lock().route(epoch, seq, Route::engine(), Intake::Held);
        let held = Arc::new(Held {
            entry,
            epoch,
            seq,
            open: AtomicUsize::new(parts),
            settled: AtomicBool::new(false),
        });
        (0..parts).map(|_| Guard { held: Arc::clone(&held), finished: false }).collect()
    }

    /// The answer to a request, with patience asked for at overload.
    pub fn answer(&self, runtime: &str, request: &Request, overloaded: bool) -> Response {
        let mut response = self.entry(runtime).ledger.lock().answer(request.epoch, &request.awaiting);
        response.retry_after_ms = overloaded.then_some(RETRY_AFTER_MS);
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
        self.0.claims.lock().retain(|_, (id, _)| registered(id));
    }
}

struct Held {
    entry: Arc<Entry>,
    epoch: Epoch,
    seq: Seq,
    open: AtomicUsize,
    settled: AtomicBool,
}

impl Held {
    fn settle(&self, outcome: Outcome) {
        if !self.settled.swap(true, Ordering::AcqRel) {
            self.entry.ledger.lock().settle(self.epoch, self.seq, &Route::engine(), outcome);
            self.entry.changed.notify_waiters();
        }
    }
}

/// Ties one held event to one piece of work. Dropped without being finished, it gives the event back: the
/// agent is asked to send it again.
pub struct Guard {
    held: Arc<Held>,
    finished: bool,
}

impl Acknowledge for Guard {
    fn finished(mut self: Box<Self>) {
        self.finished = true;
        if self.held.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.held.settle(Outcome::Done);
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.finished {
            self.held.settle(Outcome::Dropped);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const RUNTIME: &str = "r1";

    fn request(awaiting: &[u64]) -> Request {
        Request {
            events: awaiting
                .iter()
                .map(|n| tidewatch_wire::v3::Event {
                    seq: Seq(*n),
                    watch: "w".into(),
                    group: String::new(),
                    version: "v1".into(),
                    kind: "K".into(),
                    namespace: String::new(),
                    name: "n".into(),
                    uid: String::new(),
                    resource_version: String::new(),
                    change: tidewatch_wire::v3::Change::Changed,
                    observed_at: jiff::Timestamp::UNIX_EPOCH,
                })
                .collect(),
            awaiting: awaiting.iter().map(|n| Seq(*n)).collect(),
            ..Request::new(Epoch::from_bits(1))
        }
    }

    fn held(parts: usize) -> (Deliveries, Vec<Guard>) {
        let deliveries = Deliveries::new(SessionId::from_bits(7), Sessions::default());
        deliveries.receive(RUNTIME, &request(&[1]));
        let guards = deliveries.hold(RUNTIME, Epoch::from_bits(1), Seq(1), parts);
        (deliveries, guards)
    }

    fn is_done(deliveries: &Deliveries) -> bool {
        deliveries.answer(RUNTIME, &request(&[1]), false).acks.iter().any(|a| a.done.contains(Seq(1)))
    }

    #[test]
    fn an_event_is_done_when_all_its_work_is() {
        let (deliveries, mut guards) = held(2);
        Box::new(guards.remove(0)).finished();
        assert!(!is_done(&deliveries));
        Box::new(guards.remove(0)).finished();
        assert!(is_done(&deliveries));
        assert_eq!(deliveries.held(), 0);
    }

    #[test]
    fn a_dropped_guard_acknowledges_nothing() {
        let (deliveries, mut guards) = held(2);
        drop(guards.remove(0));
        Box::new(guards.remove(0)).finished();
        assert!(!is_done(&deliveries));
        let answer = deliveries.answer(RUNTIME, &request(&[1]), false);
        assert!(answer.unknown.contains(Seq(1)), "the agent is asked to send it again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_poll_is_answered_when_the_work_is_done() {
        let (deliveries, mut guards) = held(1);
        let waiting = tokio::spawn({
            let deliveries = deliveries.clone();
            async move { deliveries.news(RUNTIME, Epoch::from_bits(1), &request(&[1]).awaiting).await }
        });
        let early = tokio::time::timeout(Duration::from_secs(20), async {
            while !waiting.is_finished() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        assert!(early.await.is_err(), "nothing to say yet");
        Box::new(guards.remove(0)).finished();
        waiting.await.unwrap();
    }

    #[test]
    fn overload_asks_for_patience() {
        let (deliveries, _guards) = held(1);
        assert_eq!(deliveries.answer(RUNTIME, &request(&[1]), true).retry_after_ms, Some(RETRY_AFTER_MS));
        deliveries.retain(|_| false);
        assert_eq!(deliveries.held(), 0);
    }
}
