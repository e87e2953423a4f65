//! Changes that wait for a stored name.

use tidewatch_wire::v3::{self, Change};

use super::{
    Outbox,
    types::{KeepNames, Observation, Present},
};
use crate::{Tick, names::Names};

impl Outbox {
    /// Keeps names from the first observation, with those of an earlier run. Changes wait for [`Outbox::names_stored`].
    pub fn keep_names(&mut self, watches: KeepNames, found: Names) {
        (self.keep_names, self.names) = (Some(watches), found);
    }

    /// The kept names.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// The kept names, to drop some.
    pub fn names_mut(&mut self) -> &mut Names {
        &mut self.names
    }

    /// Releases withheld changes: this revision is stored or cannot be.
    pub fn names_stored(&mut self, revision: u64) {
        self.names.stored(revision);
        self.dirty.release(&self.names);
    }

    pub(super) fn keeps_names(&self, watch: &str) -> bool {
        match self.keep_names {
            None => false,
            Some(KeepNames::OfAll) => watch != v3::CANARY,
            Some(KeepNames::OfOthers) => self.routes.contains_key(watch),
        }
    }

    /// Records a full list: missing objects are gone.
    pub fn listed(&mut self, watch: &str, present: Present, now: Tick) {
        let Present { mut objects, gone } = present;
        if !self.keeps_names(watch) {
            return;
        }
        for key in self.names.missing(watch, &objects) {
            let seen = self.dirty.find(&key).and_then(|seq| self.dirty.get(seq));
            // An observed deletion already waits for acknowledgement.
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
