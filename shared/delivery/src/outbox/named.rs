//! Changes that wait for a stored name.

use tidewatch_wire::{
    Seq,
    v3::{self, Change},
};

use super::{KeepNames, Observation, Outbox, Present};
use crate::{
    Tick,
    names::{Names, Snapshot},
};

impl Outbox {
    /// Keeps names from the first observation, with those of an earlier run. Changes wait for [`Outbox::names_stored`].
    pub fn keep_names(&mut self, which: KeepNames, found: Names) {
        (self.keep_names, self.names) = (Some(which), found);
    }

    /// The kept names.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Names to store.
    pub fn names_snapshot(&self) -> Snapshot {
        self.names.snapshot()
    }

    /// Number of withheld changes.
    pub fn withheld(&self) -> usize {
        self.withheld.len()
    }

    /// Releases withheld changes: this revision is stored or cannot be.
    pub fn names_stored(&mut self, revision: u64) {
        self.names.stored(revision);
        let (names, entries) = (&self.names, &self.entries);
        let free = |seq: &Seq| entries.get(*seq).is_none_or(|entry| names.is_stored(&entry.seen.key));
        let free: Vec<Seq> = self.withheld.extract_if(.., |seq| free(seq)).collect();
        for seq in free {
            self.unsent.insert(seq, self.place(seq));
        }
    }

    /// Drops names of unwanted watches.
    pub fn retain_names(&mut self, wanted: impl Fn(&str) -> bool) {
        self.names.retain(wanted);
    }

    /// See [`Names::expire`].
    pub fn expire_names(&mut self, until: impl Fn(&str) -> Option<Tick>) {
        self.names.expire(until);
    }

    pub(super) fn keeps_names(&self, watch: &str) -> bool {
        match self.keep_names {
            None => false,
            Some(KeepNames::OfAll) => watch != v3::CANARY,
            Some(KeepNames::OfOthers) => self.routes.contains_key(watch),
        }
    }

    /// Records a full list: missing objects are gone.
    pub fn listed(&mut self, watch: &str, Present { mut objects, gone }: Present, now: Tick) {
        if !self.keeps_names(watch) {
            return;
        }
        for key in self.names.missing(watch, &objects) {
            let seen = self.by_key.find(&key, &self.entries).and_then(|seq| self.entries.get(seq));
            // An observed end already waits for acknowledgement.
            if seen.is_none_or(|entry| entry.seen.change != Change::Gone) {
                self.observe(Observation { key, ..gone.clone() }, now);
            }
        }
        // The digest may know objects without a stored name, if the store was deleted.
        objects.retain(|key| !self.names.contains(key));
        for key in objects {
            self.names.add(&key, &gone.version, &gone.kind);
        }
    }
}
