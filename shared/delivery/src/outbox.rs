//! The agent's half: a dirty *set* keyed by (watch, object), not a log.
//!
//! Coalescing is free and memory is bounded by the number of watched objects. A key that changes again
//! while it is in flight gets a new number, so that an acknowledgement of the old number does not
//! release it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use tidewatch_wire::{
    Epoch, Route, Seq, SeqSet, SessionId, limits,
    v3::{Change, Event, Request, Response},
};

use crate::Tick;

/// What is dirty: one object under one watch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Name of the configured watch.
    pub watch: String,
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// One observed change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The object.
    pub key: Key,
    /// API group.
    pub group: String,
    /// API version.
    pub version: String,
    /// Kind.
    pub kind: String,
    /// The object's uid, if known.
    pub uid: String,
    /// The resourceVersion at which it was seen.
    pub resource_version: String,
    /// What happened.
    pub change: Change,
    /// When, on the wall clock.
    pub at: Timestamp,
}

/// Whether an observation made a key dirty or found it so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed {
    /// The key was clean.
    New(Seq),
    /// The key was dirty already; it has a new number now.
    Coalesced(Seq),
}

/// A key that every route has let go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    /// The key.
    pub key: Key,
    /// The number that was let go.
    pub seq: Seq,
    /// Since the key's first unreconciled change.
    pub since_observed: Tick,
    /// Since it was last sent.
    pub since_sent: Tick,
    /// Whether any route refused it.
    pub refused: bool,
}

/// What an answer did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Keys that are clean now.
    pub released: Vec<Released>,
    /// Numbers that must be sent again.
    pub to_resend: usize,
    /// The receiver is another one than before (or has restarted).
    pub new_session: bool,
    /// The answer was for another epoch and changed nothing.
    pub ignored: bool,
    /// The receiver's wish to be left alone for this long.
    pub retry_after: Option<Tick>,
}

/// Numbers sent in one request, to take back if the request fails.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct InFlight(Vec<Seq>);

impl InFlight {
    /// Number of events.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the request carried no event.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    event: Event,
    first_observed: Tick,
    sent: Option<Tick>,
    /// Routes that have not let it go. Never empty.
    pending: Vec<Route>,
    refused: bool,
}

/// The dirty set of one agent process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Outbox {
    epoch: Epoch,
    next: u64,
    session: Option<SessionId>,
    routes: BTreeMap<String, Vec<Route>>,
    entries: BTreeMap<Seq, Entry>,
    by_key: BTreeMap<Key, Seq>,
    /// Numbers to send, oldest first. A subset of `entries`.
    unsent: std::collections::BTreeSet<Seq>,
}

impl Outbox {
    /// An empty set for a new epoch. `routes` names the routes of watches that are not for the engine
    /// alone.
    #[must_use]
    pub fn new(epoch: Epoch, routes: BTreeMap<String, Vec<Route>>) -> Self {
        Self {
            epoch,
            next: 1,
            session: None,
            routes,
            entries: BTreeMap::new(),
            by_key: BTreeMap::new(),
            unsent: std::collections::BTreeSet::new(),
        }
    }

    /// Sets the routes of watches that are not for the engine alone. What is dirty already keeps its own.
    pub fn set_routes(&mut self, routes: BTreeMap<String, Vec<Route>>) {
        self.routes = routes;
    }

    /// Lets go of all that is dirty under a watch that is no more, and returns how many keys that were. A late
    /// acknowledgement of one is ignored, and so is the failure of a request that carried it.
    pub fn forget_watch(&mut self, watch: &str) -> usize {
        let forgotten: Vec<Key> = self.by_key.keys().filter(|key| key.watch == watch).cloned().collect();
        for key in &forgotten {
            if let Some(seq) = self.by_key.remove(key) {
                self.entries.remove(&seq);
                self.unsent.remove(&seq);
            }
        }
        forgotten.len()
    }

    /// This process's epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The receiver session of the last answer.
    pub fn session(&self) -> Option<SessionId> {
        self.session
    }

    /// Number of dirty keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether everything was let go.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of changes that still have to be sent.
    pub fn unsent(&self) -> usize {
        self.unsent.len()
    }

    /// Age of the oldest unreconciled change.
    pub fn oldest(&self, now: Tick) -> Option<Tick> {
        self.entries.values().map(|e| now.saturating_sub(e.first_observed)).max()
    }

    /// Records a change.
    pub fn observe(&mut self, observation: Observation, now: Tick) -> Observed {
        let seq = Seq(self.next);
        self.next += 1;
        let Observation { key, group, version, kind, uid, resource_version, change, at } = observation;
        let before = self.by_key.insert(key.clone(), seq).and_then(|old| {
            self.unsent.remove(&old);
            self.entries.remove(&old)
        });
        let first_observed = before.as_ref().map_or(now, |e| e.first_observed);
        let pending = self.routes.get(&key.watch).cloned().unwrap_or_else(|| vec![Route::engine()]);
        let event = Event {
            seq,
            watch: key.watch,
            group,
            version,
            kind,
            namespace: key.namespace,
            name: key.name,
            uid,
            resource_version,
            change,
            observed_at: at,
        };
        self.entries.insert(seq, Entry { event, first_observed, sent: None, pending, refused: false });
        self.unsent.insert(seq);
        if before.is_some() { Observed::Coalesced(seq) } else { Observed::New(seq) }
    }

    /// The next request with events, oldest first, if anything is unsent. What it carries counts as
    /// sent until [`Outbox::failed`] takes it back.
    pub fn next_batch(&mut self, now: Tick) -> Option<(Request, InFlight)> {
        let seqs: Vec<Seq> = self.unsent.iter().take(limits::V3_EVENTS).copied().collect();
        if seqs.is_empty() {
            return None;
        }
        let mut events = Vec::with_capacity(seqs.len());
        for seq in &seqs {
            self.unsent.remove(seq);
            if let Some(entry) = self.entries.get_mut(seq) {
                entry.sent = Some(now);
                events.push(entry.event.clone());
            }
        }
        Some((self.request(events, false), InFlight(seqs)))
    }

    /// A request that waits for acknowledgements, if any number is awaited.
    pub fn poll(&self) -> Option<Request> {
        let request = self.request(Vec::new(), true);
        (!request.awaiting.is_empty()).then_some(request)
    }

    /// A request that says only that the agent lives.
    pub fn heartbeat(&self) -> Request {
        self.request(Vec::new(), false)
    }

    fn request(&self, events: Vec<Event>, poll: bool) -> Request {
        let mut awaiting = SeqSet::new();
        for (&seq, _) in self.entries.iter().filter(|(_, e)| e.sent.is_some()) {
            // A set of more ranges than the contract allows would be refused; the rest waits its turn.
            if awaiting.range_count() >= limits::SEQ_RANGES {
                break;
            }
            awaiting.insert(seq);
        }
        Request { epoch: self.epoch, session: self.session, events, awaiting, poll }
    }

    /// A request did not get an answer: its events have to be sent again.
    pub fn failed(&mut self, in_flight: &InFlight) {
        for seq in &in_flight.0 {
            self.resend(*seq);
        }
    }

    fn resend(&mut self, seq: Seq) -> bool {
        let Some(entry) = self.entries.get_mut(&seq) else { return false };
        entry.sent = None;
        self.unsent.insert(seq);
        true
    }

    /// Takes an answer in.
    pub fn answered(&mut self, response: &Response, now: Tick) -> Applied {
        if response.epoch != self.epoch {
            return Applied { ignored: true, ..Applied::default() };
        }
        let mut applied = Applied {
            retry_after: response.retry_after_ms.map(Tick::from_millis),
            new_session: self.session.is_some_and(|s| s != response.session),
            ..Applied::default()
        };
        self.session = Some(response.session);
        for ack in &response.acks {
            for (set, refused) in [(&ack.done, false), (&ack.refused, true)] {
                let hit: Vec<Seq> = set
                    .ranges()
                    .flat_map(|(s, e)| self.entries.range(Seq(s)..=Seq(e)))
                    .map(|(&s, _)| s)
                    .collect();
                for seq in hit {
                    applied.released.extend(self.let_go(seq, &ack.route, refused, now));
                }
            }
        }
        if applied.new_session {
            // The new session may know some of them (events and answer crossed); sending again is harmless.
            let sent: Vec<Seq> =
                self.entries.iter().filter(|(_, e)| e.sent.is_some()).map(|(&s, _)| s).collect();
            applied.to_resend = sent.into_iter().filter(|&s| self.resend(s)).count();
        } else {
            let unknown: Vec<Seq> = response
                .unknown
                .ranges()
                .flat_map(|(s, e)| self.entries.range(Seq(s)..=Seq(e)))
                .filter(|(_, e)| e.sent.is_some())
                .map(|(&s, _)| s)
                .collect();
            applied.to_resend = unknown.into_iter().filter(|&s| self.resend(s)).count();
        }
        applied
    }

    fn let_go(&mut self, seq: Seq, route: &Route, refused: bool, now: Tick) -> Option<Released> {
        let entry = self.entries.get_mut(&seq)?;
        entry.pending.retain(|r| r != route);
        entry.refused |= refused;
        if !entry.pending.is_empty() {
            return None;
        }
        let entry = self.entries.remove(&seq)?;
        self.unsent.remove(&seq);
        let key = Key { watch: entry.event.watch, namespace: entry.event.namespace, name: entry.event.name };
        self.by_key.remove(&key);
        Some(Released {
            key,
            seq,
            since_observed: now.saturating_sub(entry.first_observed),
            since_sent: entry.sent.map_or(Tick::ZERO, |sent| now.saturating_sub(sent)),
            refused: entry.refused,
        })
    }
}

#[cfg(test)]
mod tests;
