//! The agent's half: a dirty *set* keyed by (watch, object), not a log.
//!
//! Coalescing is free and memory is bounded by the number of watched objects. A key that changes again
//! while it is in flight gets a new number, so that an acknowledgement of the old number does not
//! release it.
//!
//! Where a change is for others than the engine, its object's name is kept, too ([`crate::names`]): the change of an
//! object that nobody was told of yet is withheld until its name is stored.
//!
//! It also keeps the [`Digest`] of what was reconciled last, and speaks for the digest that an earlier run has
//! left behind: until the receiver has answered that claim, no event is sent.

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
    /// Routes that have not let it go. Never empty.
    pending: SmallVec<[Route; 1]>,
    refused: bool,
    /// `before` is what was reconciled last, however often the key has changed since.
    moved: Moved,
}

/// Of which watches the objects' names are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeepNames {
    /// Those that are not for the engine alone.
    OfOthers,
    /// All: the listener understands nothing but names.
    OfAll,
}

/// The dirty set of one agent process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Outbox {
    epoch: Epoch,
    next: u64,
    /// The latest number that is not the canary's.
    serial: u64,
    session: Option<SessionId>,
    /// The highest mark of that session.
    mark: u64,
    routes: BTreeMap<String, Vec<Route>>,
    entries: Entries<Entry>,
    by_key: ByKey,
    /// Numbers to send. A subset of `entries`.
    unsent: Unsent,
    /// How often the receiver has asked for a number again, if it has. Changes only while the number is not in `unsent`.
    asked: Aside<BTreeMap<Seq, u32>>,
    /// Sessions in a row, the present one included, that have let nothing go.
    fruitless: Aside<u32>,
    /// What was observed before is older than the session, as far as the receiver has told.
    older_than: Option<Timestamp>,
    keep_names: Option<KeepNames>,
    names: Names,
    /// Numbers that are not to be sent before their object's name is stored. A subset of `entries`, apart from `unsent`.
    withheld: BTreeSet<Seq>,
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
        for entry in self.entries.values_mut() {
            let key = &entry.seen.key;
            if *key.watch == *watch && differs(bucket(&key.namespace, &key.name)) {
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
        match self.by_key.find(key, &self.entries).and_then(|seq| self.entries.get_mut(seq)) {
            // Whoever reconciles it sees the later state, too.
            Some(entry) => entry.moved.after = moved.after,
            None => self.digest.shift(&key.watch, &key.namespace, &key.name, moved.before, moved.after),
        }
        self.revision.0.quiet += 1;
    }

    /// A watch is not configured any more: its keys and its part of the digest are dropped. Returns how many keys were
    /// dirty. A late acknowledgement of one is ignored, and so is the failure of a request that carried it.
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

    /// The highest mark that the session of the last answer has told.
    pub fn mark(&self) -> u64 {
        self.mark
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
    pub fn observe_moved(&mut self, mut observation: Observation, moved: Moved, now: Tick) -> Observed {
        let seq = Seq(self.next);
        self.next += 1;
        let counts = &*observation.key.watch != v3::CANARY;
        if counts {
            self.serial = seq.0;
        }
        let old = self.by_key.find(&observation.key, &self.entries);
        let before = old.and_then(|old| self.drop_entry(old));
        // A report of everything makes nobody wait who has changed something.
        observation.listed &= before.as_ref().is_none_or(|e| e.seen.listed);
        let moved = Moved { before: before.as_ref().map_or(moved.before, |e| e.moved.before), ..moved };
        if observation.change == Change::Resync {
            self.digest.doubt(&observation.key.watch);
        }
        let first_observed = before.as_ref().map_or(now, |e| e.first_observed);
        let routes = self.routes.get(&*observation.key.watch);
        let pending =
            routes.map_or_else(|| smallvec![Route::engine()], |routes| routes.iter().cloned().collect());
        // An end, too: whoever looks then may find an object that was made anew.
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

    /// Whether the receiver has asked for a number again that is still dirty.
    pub fn is_asked_again(&self) -> bool {
        !self.asked.0.is_empty()
    }

    /// Whether anything is unsent that needs just this leave: none, for what somebody has changed just now.
    pub fn has_unsent(&self, needs: May) -> bool {
        self.unsent.has(needs)
    }

    fn place(&self, seq: Seq) -> Place {
        let round = self.asked.0.get(&seq).copied().unwrap_or(0);
        Place { older: self.is_older(seq), round }
    }

    /// Whether it has to take turns at the receiver: it is part of a full report, or older than the session.
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
