//! The agent's half: a dirty *set* keyed by (watch, object), not a log.
//!
//! Changes coalesce, so the number of objects bounds the memory. A key that changes in flight gets a new number: an
//! acknowledgement of the old one does not release it.
//!
//! Changes for other managers are withheld until their object's name is stored ([`crate::names`]). The outbox also
//! keeps the [`Digest`]. It sends no event until the receiver has answered the claim of an earlier digest.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{Hash, Hasher},
};

use jiff::Timestamp;
use smallvec::{SmallVec, smallvec};
use tidewatch_wire::{
    Epoch, Route, Seq, SessionId,
    v3::{self, Change, Health, Resume},
};

use crate::{
    Tick,
    digest::{Digest, Section, bucket},
    names::Names,
};

use by_key::ByKey;
use entries::Entries;
use unsent::{Place, Unsent};

pub use types::{Applied, InFlight, Key, Moved, Observation, Observed, Present, Released};
pub use unsent::May;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    seen: Observation,
    first_observed: Tick,
    sent: Option<Tick>,
    /// Never empty.
    pending: SmallVec<[Route; 1]>,
    refused: bool,
    /// `before` stays the last reconciled contribution.
    moved: Moved,
}

/// Watches that keep names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeepNames {
    /// Watches for other routes than the engine.
    OfOthers,
    /// All, because the listener understands only names.
    OfAll,
}

/// Dirty set of one agent process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Outbox {
    epoch: Epoch,
    next: u64,
    /// Latest number, without canaries.
    serial: u64,
    session: Option<SessionId>,
    /// Highest mark of that session.
    mark: u64,
    routes: BTreeMap<String, Vec<Route>>,
    entries: Entries<Entry>,
    by_key: ByKey,
    /// A subset of `entries`.
    unsent: Unsent,
    /// How often the receiver has asked again. Changes only while the number is not in `unsent`.
    asked: Aside<BTreeMap<Seq, u32>>,
    /// Consecutive sessions without acknowledgement, including the present one.
    fruitless: Aside<u32>,
    /// Earlier observations are older than the session.
    older_than: Option<Timestamp>,
    keep_names: Option<KeepNames>,
    names: Names,
    /// Numbers that wait for a stored name. A subset of `entries`, disjoint from `unsent`.
    withheld: BTreeSet<Seq>,
    digest: Digest,
    /// Earlier run's claim and digest, until answered.
    claim: Option<(Resume, Digest)>,
    /// Last number covered by the stored digest.
    stored: Option<u64>,
    /// Session that caused a resync.
    resynced: Option<SessionId>,
    revision: Aside<Revision>,
    health: Option<Health>,
    reconciled_ms: Aside<Vec<u32>>,
    size: Aside<batch::Size>,
}

/// A value that decides nothing. Equality ignores it, which keeps a model's states few.
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

/// Counts changes of the digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Revision {
    /// Changes, acknowledgements, sessions.
    pub counted: u64,
    /// Unreported changes. A digest without them is correct, and costs a report of those objects.
    pub quiet: u64,
}

impl Outbox {
    /// An empty set. `routes` has only watches with other routes than the engine.
    #[must_use]
    pub fn new(epoch: Epoch, routes: BTreeMap<String, Vec<Route>>) -> Self {
        Self {
            epoch,
            next: 1,
            serial: 0,
            session: None,
            mark: 0,
            routes,
            entries: Entries::default(),
            by_key: ByKey::default(),
            unsent: Unsent::default(),
            asked: Aside::default(),
            fruitless: Aside::default(),
            older_than: None,
            keep_names: None,
            names: Names::default(),
            withheld: BTreeSet::new(),
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

    /// Claims an earlier digest, before the first request. Events wait for [`Applied::confirmed`].
    pub fn begin(&mut self, claim: Resume, digest: Digest) {
        self.claim = Some((claim, digest));
    }

    /// Whether a claim waits for its answer.
    pub fn is_claiming(&self) -> bool {
        self.claim.is_some()
    }

    /// Claim and digest for a later run. `None` before the first answer, and while a change is dirty.
    ///
    /// Another cause may reconcile a dirty change before its acknowledgement, so the digest would be wrong. With
    /// nothing dirty, a serial has one digest.
    pub fn digest(&self) -> Option<(Resume, &Digest)> {
        let session = self.session.filter(|_| self.claim.is_none() && self.is_calm())?;
        Some((Resume { session, epoch: self.epoch, serial: self.serial() }, &self.digest))
    }

    /// Reconciled state regardless of dirty changes, to compare with a list.
    pub fn reconciled(&self) -> &Digest {
        &self.digest
    }

    /// Changes whenever [`Outbox::digest`] does.
    pub fn revision(&self) -> Revision {
        self.revision.0
    }

    /// Last number that a digest must cover (no canary); 0 at first.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Records that the digest with this serial is stored.
    pub fn digest_stored(&mut self, serial: u64) {
        self.stored = Some(serial);
    }

    /// Whether the stored digest covers all observations; then a heartbeat declares it.
    pub fn declares(&self) -> bool {
        self.stored == Some(self.serial()) && self.is_calm()
    }

    /// Sets the watches' health.
    pub fn set_health(&mut self, health: Option<Health>) {
        self.health = health;
    }

    /// Records a comparison of a watch with its reconciled state.
    ///
    /// `section` has the listed sums and, as `stale`, the differing buckets; their objects must be observed afterwards.
    /// If any differs, `unnamed` is a [`Change::Resync`] for objects that cannot be named.
    pub fn baseline(&mut self, watch: &str, mut section: Section, unnamed: Option<Observation>, now: Tick) {
        let stale = section.stale;
        let differs = |bucket: usize| stale >> bucket & 1 == 1;
        for (_, sum) in section.sums.iter_mut().enumerate().filter(|(n, _)| differs(*n)) {
            *sum = 0;
        }
        for entry in self.entries.values_mut() {
            let key = &entry.seen.key;
            if *key.watch == *watch && differs(bucket(&key.namespace, &key.name)) {
                entry.moved.before = 0;
            }
        }
        // In one step, so that an earlier acknowledgement does not settle this.
        if let Some(unnamed) = unnamed {
            self.observe(unnamed, now);
        }
        self.digest.insert(watch, section);
        self.revision.0.counted += 1;
    }

    /// Records a contribution without a relevant change.
    pub fn moved(&mut self, key: &Key, moved: Moved) {
        match self.by_key.find(key, &self.entries).and_then(|seq| self.entries.get_mut(seq)) {
            // The pending reconcile observes the later state.
            Some(entry) => entry.moved.after = moved.after,
            None => self.digest.shift(&key.watch, &key.namespace, &key.name, moved.before, moved.after),
        }
        self.revision.0.quiet += 1;
    }

    /// Drops a removed watch; returns the number of dirty keys. Late acknowledgements and failures are ignored.
    pub fn forget(&mut self, watch: &str) -> usize {
        let of_watch = self.entries.iter().filter(|(_, entry)| *entry.seen.key.watch == *watch);
        let seqs: Vec<Seq> = of_watch.map(|(seq, _)| seq).collect();
        for seq in &seqs {
            self.drop_entry(*seq);
        }
        self.names.forget(watch);
        if self.digest.remove(watch) || !seqs.is_empty() {
            self.revision.0.counted += 1;
        }
        seqs.len()
    }

    /// Sets the other routes. Dirty keys keep theirs.
    pub fn set_routes(&mut self, routes: BTreeMap<String, Vec<Route>>) {
        self.routes = routes;
    }

    /// Epoch of this process.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Receiver session of the last answer.
    pub fn session(&self) -> Option<SessionId> {
        self.session
    }

    /// Highest mark of that session.
    pub fn mark(&self) -> u64 {
        self.mark
    }

    /// Number of dirty keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no key is dirty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether at most the canary is dirty.
    pub fn is_calm(&self) -> bool {
        self.entries.values().all(|entry| &*entry.seen.key.watch == v3::CANARY)
    }

    /// Number of changes to send.
    pub fn unsent(&self) -> usize {
        self.unsent.len()
    }

    /// Age of the oldest unreconciled change.
    pub fn oldest(&self, now: Tick) -> Option<Tick> {
        self.entries.values().map(|e| now.saturating_sub(e.first_observed)).max()
    }

    /// Records a change outside the digest.
    pub fn observe(&mut self, observation: Observation, now: Tick) -> Observed {
        self.observe_moved(observation, Moved::default(), now)
    }

    /// Records a change. `moved` is from the last observed contribution to the present one.
    pub fn observe_moved(&mut self, mut observation: Observation, moved: Moved, now: Tick) -> Observed {
        let seq = Seq(self.next);
        self.next += 1;
        let counts = &*observation.key.watch != v3::CANARY;
        if counts {
            self.serial = seq.0;
        }
        let old = self.by_key.find(&observation.key, &self.entries);
        let before = old.and_then(|old| self.drop_entry(old));
        // A full report must not delay a user's change.
        observation.listed &= before.as_ref().is_none_or(|e| e.seen.listed);
        let moved = Moved { before: before.as_ref().map_or(moved.before, |e| e.moved.before), ..moved };
        if observation.change == Change::Resync {
            self.digest.doubt(&observation.key.watch);
        }
        let first_observed = before.as_ref().map_or(now, |e| e.first_observed);
        let routes = self.routes.get(&*observation.key.watch);
        let pending =
            routes.map_or_else(|| smallvec![Route::engine()], |routes| routes.iter().cloned().collect());
        // Also an end: the manager may find a recreated object.
        let telling = observation.change != Change::Resync && self.keeps_names(&observation.key.watch);
        let withheld = telling && !self.names.add(&observation.key, &observation.version, &observation.kind);
        let entry = Entry { seen: observation, first_observed, sent: None, pending, refused: false, moved };
        self.by_key.insert(&entry.seen.key, seq);
        self.entries.push(seq, entry);
        if withheld {
            self.withheld.insert(seq);
        } else {
            self.unsent.insert(seq, self.place(seq));
        }
        self.revision.0.counted += u64::from(counts);
        if before.is_some() { Observed::Coalesced(seq) } else { Observed::New(seq) }
    }

    /// Whether the receiver has asked again for a dirty number.
    pub fn is_asked_again(&self) -> bool {
        !self.asked.0.is_empty()
    }

    /// Whether a change is unsent that needs exactly this permission.
    pub fn has_unsent(&self, needs: May) -> bool {
        self.unsent.has(needs)
    }

    fn place(&self, seq: Seq) -> Place {
        let round = self.asked.0.get(&seq).copied().unwrap_or(0);
        Place { older: self.is_older(seq), round }
    }

    /// Whether it takes turns: part of a full report, or older than the session.
    fn is_older(&self, seq: Seq) -> bool {
        let before = |entry: &Entry| self.older_than.is_some_and(|than| entry.seen.at < than);
        self.entries.get(seq).is_some_and(|entry| entry.seen.listed || before(entry))
    }

    fn set_older_than(&mut self, than: Option<Timestamp>) {
        if self.older_than == than {
            return;
        }
        self.older_than = than;
        for seq in self.unsent.take() {
            self.unsent.insert(seq, self.place(seq));
        }
    }

    fn drop_entry(&mut self, seq: Seq) -> Option<Entry> {
        self.take_unsent(seq);
        self.withheld.remove(&seq);
        self.asked.0.remove(&seq);
        let entry = self.entries.remove(seq)?;
        self.by_key.remove(&entry.seen.key, seq);
        Some(entry)
    }

    fn take_unsent(&mut self, seq: Seq) {
        self.unsent.remove(seq, self.place(seq));
    }
}

mod answer;
mod batch;
mod by_key;
mod entries;
mod named;
mod types;
mod unsent;

#[cfg(test)]
mod digest_tests;
#[cfg(test)]
mod names_tests;
#[cfg(test)]
mod tests;
