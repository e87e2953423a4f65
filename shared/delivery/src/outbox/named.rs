//! The dirty set's part in keeping names: what is not sent before its object's name is stored.

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
    /// Keeps names from now on, beginning with those that an earlier run has stored. Changes are withheld until
    /// [`Outbox::names_stored`] says that their names are stored. To be called before anything is observed.
    pub fn keep_names(&mut self, which: KeepNames, found: Names) {
        (self.keep_names, self.names) = (Some(which), found);
    }

    /// The names that are kept.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// What to store of the names.
    pub fn names_snapshot(&self) -> Snapshot {
        self.names.snapshot()
    }

    /// Number of changes that wait for their names to be stored.
    pub fn withheld(&self) -> usize {
        self.withheld.len()
    }

    /// A snapshot of the names with this revision is stored, or cannot be: what waited for it may be sent.
    pub fn names_stored(&mut self, revision: u64) {
        self.names.stored(revision);
        let (names, entries) = (&self.names, &self.entries);
        let free = |seq: &Seq| entries.get(*seq).is_none_or(|entry| names.is_stored(&entry.seen.key));
        let free: Vec<Seq> = self.withheld.extract_if(.., |seq| free(seq)).collect();
        for seq in free {
            self.unsent.insert(seq, self.place(seq));
        }
    }

    /// Which watches there are is known now: names that an earlier run has kept of others are of no use.
    pub fn retain_names(&mut self, wanted: impl Fn(&str) -> bool) {
        self.names.retain(wanted);
    }

    /// Takes out the names of objects whose end was let go before their watch had shown what happened until then; see
    /// [`Names::expire`].
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

    /// A watch was listed as a whole: what is not in the list is observed to be gone.
    pub fn listed(&mut self, watch: &str, Present { mut objects, gone }: Present, now: Tick) {
        if !self.keeps_names(watch) {
            return;
        }
        for key in self.names.missing(watch, &objects) {
            let seen = self.by_key.find(&key, &self.entries).and_then(|seq| self.entries.get(seq));
            // An end that was seen waits to be let go already.
            if seen.is_none_or(|entry| entry.seen.change != Change::Gone) {
                self.observe(Observation { key, ..gone.clone() }, now);
            }
        }
        // The digest may know them when the names do not: somebody has deleted what was stored.
        objects.retain(|key| !self.names.contains(key));
        for key in objects {
            self.names.add(&key, &gone.version, &gone.kind);
        }
    }
}
