//! The agent's half: a dirty *set* keyed by (watch, object), not a log.
//!
//! Changes coalesce, so the number of objects bounds the memory. A key that changes in flight gets a new number: an
//! acknowledgement of the old one does not release it.
//!
//! Changes for other managers are withheld until their object's name is stored ([`crate::names`]). The outbox also
//! keeps the [`Digest`]. It sends no event until the receiver has answered the claim of an earlier digest.

mod answer;
mod aside;
mod batch;
mod by_key;
mod dirty;
mod entries;
mod entry;
mod named;
mod reconciled;
mod session;
mod size;
mod types;
mod unsent;

use std::collections::BTreeMap;

use smallvec::smallvec;
use tidewatch_wire::{
    Epoch, Route, Seq, SessionId,
    v3::{self, Change, Health, Resume},
};

use crate::{
    Tick,
    digest::{Digest, Section, bucket},
    names::Names,
};

use aside::Aside;
use entry::Entry;
use reconciled::Reconciled;
use session::Session;
use size::Size;

pub use dirty::Dirty;
pub use types::{
    Applied, InFlight, KeepNames, Key, Moved, Observation, Observed, Present, Released, Revision,
};
pub use unsent::May;

/// Dirty set of one agent process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Outbox {
    epoch: Epoch,
    next: u64,
    /// Latest number, without canaries.
    serial: u64,
    session: Session,
    routes: BTreeMap<String, Vec<Route>>,
    dirty: Dirty,
    keep_names: Option<KeepNames>,
    names: Names,
    reconciled: Reconciled,
    health: Option<Health>,
    reconciled_ms: Aside<Vec<u32>>,
    size: Aside<Size>,
}

impl Outbox {
    /// An empty set. `routes` has only watches with other routes than the engine.
    #[must_use]
    pub fn new(epoch: Epoch, routes: BTreeMap<String, Vec<Route>>) -> Self {
        Self {
            epoch,
            next: 1,
            serial: 0,
            session: Session::default(),
            routes,
            dirty: Dirty::default(),
            keep_names: None,
            names: Names::default(),
            reconciled: Reconciled::default(),
            health: None,
            reconciled_ms: Aside::default(),
            size: Aside::default(),
        }
    }

    /// Claims an earlier digest, before the first request. Events wait for [`Applied::confirmed`].
    pub fn begin(&mut self, claim: Resume, digest: Digest) {
        self.reconciled.begin(claim, digest);
    }

    /// Whether a claim waits for its answer.
    pub fn is_claiming(&self) -> bool {
        self.reconciled.claim().is_some()
    }

    /// Claim and digest for a later run. `None` before the first answer, and while a change is dirty.
    ///
    /// Another cause may reconcile a dirty change before its acknowledgement, so the digest would be wrong. With
    /// nothing dirty, a serial has one digest.
    pub fn digest(&self) -> Option<(Resume, &Digest)> {
        let session = self.session.id.filter(|_| !self.is_claiming() && self.dirty.is_calm())?;
        Some((Resume { session, epoch: self.epoch, serial: self.serial() }, &self.reconciled.digest))
    }

    /// Reconciled state regardless of dirty changes, to compare with a list.
    pub fn reconciled(&self) -> &Digest {
        &self.reconciled.digest
    }

    /// Changes whenever [`Outbox::digest`] does.
    pub fn revision(&self) -> Revision {
        self.reconciled.revision()
    }

    /// Last number that a digest must cover (no canary); 0 at first.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Records that the digest with this serial is stored.
    pub fn digest_stored(&mut self, serial: u64) {
        self.reconciled.stored = Some(serial);
    }

    /// Whether the stored digest covers all observations; then a heartbeat declares it.
    pub fn declares(&self) -> bool {
        self.reconciled.stored == Some(self.serial) && self.dirty.is_calm()
    }

    /// The health of the next requests.
    #[must_use]
    pub fn health(&self) -> Option<&Health> {
        self.health.as_ref()
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
        for entry in self.dirty.values_mut() {
            let key = &entry.seen.key;
            if *key.watch == *watch && differs(bucket(&key.namespace, &key.name)) {
                entry.moved.before = 0;
            }
        }
        // In one step, so that an earlier acknowledgement does not settle this.
        if let Some(unnamed) = unnamed {
            self.observe(unnamed, now);
        }
        self.reconciled.digest.insert(watch, section);
        self.reconciled.changed();
    }

    /// Records a contribution without a relevant change.
    pub fn moved(&mut self, key: &Key, moved: Moved) {
        match self.dirty.find(key).and_then(|seq| self.dirty.get_mut(seq)) {
            // The pending reconcile observes the later state.
            Some(entry) => entry.moved.after = moved.after,
            None => {
                let digest = &mut self.reconciled.digest;
                digest.shift(&key.watch, &key.namespace, &key.name, moved.before, moved.after);
            }
        }
        self.reconciled.changed_quietly();
    }

    /// Drops a removed watch; returns the number of dirty keys. Late acknowledgements and failures are ignored.
    pub fn forget(&mut self, watch: &str) -> usize {
        let seqs = self.dirty.of_watch(watch);
        for seq in &seqs {
            self.dirty.remove(*seq);
        }
        self.names.forget(watch);
        if self.reconciled.digest.remove(watch) || !seqs.is_empty() {
            self.reconciled.changed();
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
        self.session.id
    }

    /// Highest mark of that session.
    pub fn mark(&self) -> u64 {
        self.session.mark
    }

    /// The dirty keys.
    pub fn dirty(&self) -> &Dirty {
        &self.dirty
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
        let old = self.dirty.find(&observation.key);
        let before = old.and_then(|old| self.dirty.remove(old));
        // A full report must not delay a user's change.
        observation.listed &= before.as_ref().is_none_or(|e| e.seen.listed);
        let moved = Moved { before: before.as_ref().map_or(moved.before, |e| e.moved.before), ..moved };
        if observation.change == Change::Resync {
            self.reconciled.digest.doubt(&observation.key.watch);
        }
        let first_observed = before.as_ref().map_or(now, |e| e.first_observed);
        let routes = self.routes.get(&*observation.key.watch);
        let pending =
            routes.map_or_else(|| smallvec![Route::engine()], |routes| routes.iter().cloned().collect());
        // Also a deletion: the manager may find a recreated object.
        let named = observation.change != Change::Resync && self.keeps_names(&observation.key.watch);
        let withheld = named && !self.names.add(&observation.key, &observation.version, &observation.kind);
        let entry = Entry { seen: observation, first_observed, sent: None, pending, refused: false, moved };
        self.dirty.push(seq, entry, withheld);
        if counts {
            self.reconciled.changed();
        }
        if before.is_some() { Observed::Coalesced(seq) } else { Observed::New(seq) }
    }
}

#[cfg(test)]
mod digest_tests;
#[cfg(test)]
mod names_tests;
#[cfg(test)]
mod tests;
