//! The agent's half: a dirty *set* keyed by (watch, object), not a log.
//!
//! Coalescing is free and memory is bounded by the number of watched objects. A key that changes again
//! while it is in flight gets a new number, so that an acknowledgement of the old number does not
//! release it.
//!
//! It also keeps the [`Digest`] of what was reconciled last, and speaks for the digest that an earlier run has
//! left behind: until the receiver has answered that claim, no event is sent.

mod batch;

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
    sync::Arc,
};

use jiff::Timestamp;
use tidewatch_wire::{
    Epoch, Route, Seq, SessionId, limits,
    v3::{self, Change, Health, Response, Resume},
};

use crate::{
    Tick,
    digest::{Digest, Section, bucket},
};

/// What is dirty: one object under one watch. Its strings are shared with whoever else knows the object, so that ten thousand
/// dirty keys cost little more than their numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Name of the configured watch.
    pub watch: Arc<str>,
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

/// One observed change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Observation {
    /// The object.
    pub key: Key,
    /// API group.
    pub group: Arc<str>,
    /// API version.
    pub version: Arc<str>,
    /// Kind.
    pub kind: Arc<str>,
    /// The object's uid, if known.
    pub uid: String,
    /// The resourceVersion at which it was seen.
    pub resource_version: String,
    /// What happened.
    pub change: Change,
    /// When, on the wall clock.
    pub at: Timestamp,
}

/// What an object contributes to the digest (see [`crate::digest::contribution`]), 0 while it is not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Moved {
    /// Before the change.
    pub before: u64,
    /// After it.
    pub after: u64,
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
    /// The answer to the claim of [`Outbox::begin`]: whether the digest may be relied on.
    pub confirmed: Option<bool>,
    /// Every object must be reported again. The digest is empty now.
    pub resync: bool,
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
    seen: Observation,
    first_observed: Tick,
    sent: Option<Tick>,
    /// Routes that have not let it go. Never empty.
    pending: Vec<Route>,
    refused: bool,
    /// `before` is what was reconciled last, however often the key has changed since.
    moved: Moved,
}

/// The dirty set of one agent process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Outbox {
    epoch: Epoch,
    next: u64,
    /// The latest number that is not the canary's.
    serial: u64,
    session: Option<SessionId>,
    routes: BTreeMap<String, Vec<Route>>,
    entries: BTreeMap<Seq, Entry>,
    by_key: BTreeMap<Key, Seq>,
    /// Numbers to send. A subset of `entries`.
    unsent: std::collections::BTreeSet<Seq>,
    /// How often the receiver has asked for a number again, if it has. Those asked for less often go first: what finds
    /// no room on one route holds back nothing else. Decides an order only, and only among more than a batch.
    asked: Aside<BTreeMap<Seq, u32>>,
    /// How many of `unsent` are in `asked`.
    asked_unsent: Aside<usize>,
    digest: Digest,
    /// What an earlier run has left behind, until the receiver has answered.
    claim: Option<(Resume, Digest)>,
    /// The last number that the stored digest of this epoch covers.
    stored: Option<u64>,
    /// The session whose demand for a resync was obeyed.
    resynced: Option<SessionId>,
    revision: Aside<Revision>,
    health: Option<Health>,
    reconciled_ms: Aside<Vec<u32>>,
    size: Aside<batch::Size>,
}

/// Something that is counted beside the protocol and decides nothing in it: two outboxes that differ in it alone are
/// equal, which keeps the states of a model few.
#[derive(Clone, Debug, Default)]
struct Aside<T>(T);

impl<T> PartialEq for Aside<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> Eq for Aside<T> {}

impl<T> Hash for Aside<T> {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// Counts what a digest that is stored later would say otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Revision {
    /// Changes, acknowledgements, sessions.
    pub counted: u64,
    /// Changes that nobody was told of. A digest without them is right, and costs a report of those objects.
    pub quiet: u64,
}

impl Outbox {
    /// An empty set for a new epoch. `routes` names the routes of watches that are not for the engine
    /// alone.
    #[must_use]
    pub fn new(epoch: Epoch, routes: BTreeMap<String, Vec<Route>>) -> Self {
        Self {
            epoch,
            next: 1,
            serial: 0,
            session: None,
            routes,
            entries: BTreeMap::new(),
            by_key: BTreeMap::new(),
            unsent: std::collections::BTreeSet::new(),
            asked: Aside::default(),
            asked_unsent: Aside::default(),
            digest: Digest::new(),
            claim: None,
            stored: None,
            resynced: None,
            revision: Aside::default(),
            health: None,
            reconciled_ms: Aside::default(),
            size: Aside::default(),
        }
    }

    /// Claims what an earlier run has stored. No event is sent until an answer says, by
    /// [`Applied::confirmed`], whether the claim stands. To be called before the first request.
    pub fn begin(&mut self, claim: Resume, digest: Digest) {
        self.claim = Some((claim, digest));
    }

    /// Whether a claim waits for its answer.
    pub fn is_claiming(&self) -> bool {
        self.claim.is_some()
    }

    /// What was reconciled last, and what a later run may claim with it; nothing before the first answer, and nothing
    /// while a change is dirty: it may be reconciled for another cause before it is let go, and what was reconciled
    /// is not what the digest says of it then. Once nothing is dirty, a serial has one digest.
    pub fn digest(&self) -> Option<(Resume, &Digest)> {
        let session = self.session.filter(|_| self.claim.is_none() && self.is_calm())?;
        Some((Resume { session, epoch: self.epoch, serial: self.serial() }, &self.digest))
    }

    /// What is known to be reconciled, whatever is dirty: to compare a list with.
    pub fn reconciled(&self) -> &Digest {
        &self.digest
    }

    /// Changes whenever [`Outbox::digest`] does.
    pub fn revision(&self) -> Revision {
        self.revision.0
    }

    /// The number of the latest change that a digest has to cover, which the canary's are not; 0 before the first.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// The digest with this serial is stored where the next run finds it.
    pub fn digest_stored(&mut self, serial: u64) {
        self.stored = Some(serial);
    }

    /// Whether the stored digest covers all that was observed, so that the next heartbeat declares it.
    pub fn declares(&self) -> bool {
        self.stored == Some(self.serial()) && self.is_calm()
    }

    /// How the watches stand, to be told with each sign of life.
    pub fn set_health(&mut self, health: Option<Health>) {
        self.health = health;
    }

    /// A watch was compared with what is known to be reconciled of it. `section` has the sums of what was
    /// listed, and as `stale` the buckets that differ: their objects must be observed again after this.
    /// `unnamed` is a [`Change::Resync`] for what cannot be, needed if any bucket differs.
    pub fn baseline(&mut self, watch: &str, mut section: Section, unnamed: Option<Observation>, now: Tick) {
        let stale = section.stale;
        let differs = |bucket: usize| stale >> bucket & 1 == 1;
        for (_, sum) in section.sums.iter_mut().enumerate().filter(|(n, _)| differs(*n)) {
            *sum = 0;
        }
        let before_any = Key { watch: watch.into(), namespace: Arc::default(), name: Arc::default() };
        for (key, seq) in self.by_key.range(before_any..).take_while(|(key, _)| *key.watch == *watch) {
            if differs(bucket(&key.namespace, &key.name))
                && let Some(entry) = self.entries.get_mut(seq)
            {
                entry.moved.before = 0;
            }
        }
        // Together, so that an acknowledgement of an earlier one does not settle this.
        if let Some(unnamed) = unnamed {
            self.observe(unnamed, now);
        }
        self.digest.insert(watch, section);
        self.revision.0.counted += 1;
    }

    /// An object's contribution is another one, without a change that counts.
    pub fn moved(&mut self, key: &Key, moved: Moved) {
        match self.by_key.get(key).and_then(|seq| self.entries.get_mut(seq)) {
            // Whoever reconciles it sees the later state, too.
            Some(entry) => entry.moved.after = moved.after,
            None => self.digest.shift(&key.watch, &key.namespace, &key.name, moved.before, moved.after),
        }
        self.revision.0.quiet += 1;
    }

    /// A watch is not configured any more: its keys and its part of the digest are dropped. Returns how many keys were
    /// dirty. A late acknowledgement of one is ignored, and so is the failure of a request that carried it.
    pub fn forget(&mut self, watch: &str) -> usize {
        let before_any = Key { watch: watch.into(), namespace: Arc::default(), name: Arc::default() };
        let keys: Vec<Key> = self
            .by_key
            .range(before_any..)
            .map(|(key, _)| key)
            .take_while(|key| *key.watch == *watch)
            .cloned()
            .collect();
        for key in &keys {
            if let Some(seq) = self.by_key.remove(key) {
                self.drop_entry(seq);
            }
        }
        if self.digest.remove(watch) || !keys.is_empty() {
            self.revision.0.counted += 1;
        }
        keys.len()
    }

    /// Sets the routes of watches that are not for the engine alone. What is dirty already keeps its own.
    pub fn set_routes(&mut self, routes: BTreeMap<String, Vec<Route>>) {
        self.routes = routes;
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

    /// Whether nothing but the canary is dirty.
    pub fn is_calm(&self) -> bool {
        self.entries.values().all(|entry| &*entry.seen.key.watch == v3::CANARY)
    }

    /// Number of changes that still have to be sent.
    pub fn unsent(&self) -> usize {
        self.unsent.len()
    }

    /// Age of the oldest unreconciled change.
    pub fn oldest(&self, now: Tick) -> Option<Tick> {
        self.entries.values().map(|e| now.saturating_sub(e.first_observed)).max()
    }

    /// Records a change of an object that has no part in the digest.
    pub fn observe(&mut self, observation: Observation, now: Tick) -> Observed {
        self.observe_moved(observation, Moved::default(), now)
    }

    /// Records a change. `moved` is from what was last observed of the object to what it is now.
    pub fn observe_moved(&mut self, observation: Observation, moved: Moved, now: Tick) -> Observed {
        let seq = Seq(self.next);
        self.next += 1;
        let counts = &*observation.key.watch != v3::CANARY;
        if counts {
            self.serial = seq.0;
        }
        let before = self.by_key.insert(observation.key.clone(), seq).and_then(|old| self.drop_entry(old));
        let moved = Moved { before: before.as_ref().map_or(moved.before, |e| e.moved.before), ..moved };
        if observation.change == Change::Resync {
            self.digest.doubt(&observation.key.watch);
        }
        let first_observed = before.as_ref().map_or(now, |e| e.first_observed);
        let routes = self.routes.get(&*observation.key.watch);
        let pending = routes.cloned().unwrap_or_else(|| vec![Route::engine()]);
        let entry = Entry { seen: observation, first_observed, sent: None, pending, refused: false, moved };
        self.entries.insert(seq, entry);
        self.unsent.insert(seq);
        self.revision.0.counted += u64::from(counts);
        if before.is_some() { Observed::Coalesced(seq) } else { Observed::New(seq) }
    }

    /// Whether the receiver has asked for a number again that is still dirty.
    pub fn is_asked_again(&self) -> bool {
        !self.asked.0.is_empty()
    }

    /// Whether anything is unsent that the receiver has not asked for again.
    pub fn has_new(&self) -> bool {
        self.unsent.len() > self.asked_unsent.0
    }

    fn resend(&mut self, seq: Seq) -> bool {
        let Some(entry) = self.entries.get_mut(&seq) else { return false };
        entry.sent = None;
        if self.unsent.insert(seq) && self.asked.0.contains_key(&seq) {
            self.asked_unsent.0 += 1;
        }
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
        if self.session != Some(response.session) {
            self.session = Some(response.session);
            self.revision.0.counted += 1;
        }
        if let Some((_, digest)) = self.claim.take() {
            applied.confirmed = Some(!response.resync);
            if response.resync {
                self.resynced = Some(response.session);
            } else {
                self.digest = digest;
            }
        } else if response.resync && self.resynced != Some(response.session) {
            self.resynced = Some(response.session);
            applied.resync = true;
            self.digest = Digest::new();
            self.revision.0.counted += 1;
        }
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
            for seq in &unknown {
                *self.asked.0.entry(*seq).or_default() += 1;
            }
            applied.to_resend = unknown.into_iter().filter(|&s| self.resend(s)).count();
        }
        applied
    }

    fn drop_entry(&mut self, seq: Seq) -> Option<Entry> {
        self.take_unsent(seq);
        self.asked.0.remove(&seq);
        self.entries.remove(&seq)
    }

    fn take_unsent(&mut self, seq: Seq) {
        if self.unsent.remove(&seq) && self.asked.0.contains_key(&seq) {
            self.asked_unsent.0 -= 1;
        }
    }

    fn let_go(&mut self, seq: Seq, route: &Route, refused: bool, now: Tick) -> Option<Released> {
        let entry = self.entries.get_mut(&seq)?;
        entry.pending.retain(|r| r != route);
        entry.refused |= refused;
        if !entry.pending.is_empty() {
            return None;
        }
        let entry = self.drop_entry(seq)?;
        let key = entry.seen.key;
        self.by_key.remove(&key);
        let counts = &*key.watch != v3::CANARY;
        if entry.seen.change == Change::Resync {
            self.digest.settle(&key.watch);
        } else if counts {
            let Moved { before, after } = entry.moved;
            self.digest.shift(&key.watch, &key.namespace, &key.name, before, after);
        }
        self.revision.0.counted += u64::from(counts);
        let since_observed = now.saturating_sub(entry.first_observed);
        if counts && self.reconciled_ms.0.len() < limits::RECONCILED {
            self.reconciled_ms.0.push(u32::try_from(since_observed.as_millis()).unwrap_or(u32::MAX));
        }
        Some(Released {
            key,
            seq,
            since_observed,
            since_sent: entry.sent.map_or(Tick::ZERO, |sent| now.saturating_sub(sent)),
            refused: entry.refused,
        })
    }
}

#[cfg(test)]
mod digest_tests;
#[cfg(test)]
mod tests;
