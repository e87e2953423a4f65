//! Dirty keys, and which of them are to be sent.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use tidewatch_wire::{Seq, SeqSet};

use super::{
    aside::Aside,
    by_key::ByKey,
    entries::Entries,
    entry::Entry,
    types::Key,
    unsent::{FRESH, May, Priority, Unsent},
};
use crate::{Tick, names::Names};

/// Dirty keys of an outbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Dirty {
    entries: Entries<Entry>,
    by_key: ByKey,
    /// A subset of `entries`.
    unsent: Unsent,
    /// How often the receiver has asked again. Changes only while the number is not in `unsent`.
    asked: Aside<BTreeMap<Seq, u32>>,
    /// Earlier observations are older than the session.
    older_than: Option<Timestamp>,
    /// Numbers that wait for a stored name. A subset of `entries`, disjoint from `unsent`.
    withheld: BTreeSet<Seq>,
}

impl Dirty {
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
        self.entries.values().all(Entry::is_canary)
    }

    /// Number of changes to send.
    pub fn unsent(&self) -> usize {
        self.unsent.len()
    }

    /// Number of changes that wait for a stored name.
    pub fn withheld(&self) -> usize {
        self.withheld.len()
    }

    /// Age of the oldest unreconciled change.
    pub fn oldest(&self, now: Tick) -> Option<Tick> {
        self.entries.values().map(|e| now.saturating_sub(e.first_observed)).max()
    }

    /// Whether the receiver has asked again for a dirty number.
    pub fn is_asked_again(&self) -> bool {
        !self.asked.0.is_empty()
    }

    /// Whether a change is unsent that needs exactly this permission.
    pub fn has_unsent(&self, needs: May) -> bool {
        self.unsent.has(needs)
    }

    /// Whether a fresh canary is unsent.
    pub fn has_new_canary(&self) -> bool {
        self.new_canary().is_some()
    }

    pub(super) fn new_canary(&self) -> Option<Seq> {
        self.by_key.canaries().find(|seq| self.unsent.contains(*seq, FRESH))
    }

    /// Up to `max` numbers to send, most urgent first.
    pub(super) fn choose(&self, may: May, max: usize) -> Vec<Seq> {
        let mut chosen = self.unsent.first(may, max);
        // Behind thousands of changes it would prove the path too late.
        if let Some(canary) = self.new_canary() {
            chosen.retain(|seq| *seq != canary);
            chosen.truncate(max.saturating_sub(1));
            chosen.insert(0, canary);
        }
        chosen
    }

    pub(super) fn find(&self, key: &Key) -> Option<Seq> {
        self.by_key.find(key, &self.entries)
    }

    pub(super) fn get(&self, seq: Seq) -> Option<&Entry> {
        self.entries.get(seq)
    }

    pub(super) fn get_mut(&mut self, seq: Seq) -> Option<&mut Entry> {
        self.entries.get_mut(seq)
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.entries.values_mut()
    }

    pub(super) fn of_watch(&self, watch: &str) -> Vec<Seq> {
        let of_watch = self.entries.iter().filter(|(_, entry)| *entry.seen.key.watch == *watch);
        of_watch.map(|(seq, _)| seq).collect()
    }

    pub(super) fn sent(&self) -> impl Iterator<Item = Seq> {
        self.entries.iter().filter(|(_, entry)| entry.sent.is_some()).map(|(seq, _)| seq)
    }

    pub(super) fn within(&self, set: &SeqSet) -> Vec<Seq> {
        let ranges = set.ranges().flat_map(|(start, end)| self.entries.range(Seq(start)..=Seq(end)));
        ranges.map(|(seq, _)| seq).collect()
    }

    /// Adds an entry under the highest number. A withheld one waits for [`Dirty::release`].
    pub(super) fn push(&mut self, seq: Seq, entry: Entry, withheld: bool) {
        self.by_key.insert(&entry.seen.key, seq);
        self.entries.push(seq, entry);
        if withheld {
            self.withheld.insert(seq);
        } else {
            self.unsent.insert(seq, self.priority(seq));
        }
    }

    pub(super) fn remove(&mut self, seq: Seq) -> Option<Entry> {
        self.take_unsent(seq);
        self.withheld.remove(&seq);
        self.asked.0.remove(&seq);
        let entry = self.entries.remove(seq)?;
        self.by_key.remove(&entry.seen.key, seq);
        Some(entry)
    }

    pub(super) fn take_unsent(&mut self, seq: Seq) {
        self.unsent.remove(seq, self.priority(seq));
    }

    /// Returns a sent number to the unsent ones. Returns whether it is dirty.
    pub(super) fn resend(&mut self, seq: Seq) -> bool {
        let Some(entry) = self.entries.get_mut(seq) else { return false };
        entry.sent = None;
        self.unsent.insert(seq, self.priority(seq));
        true
    }

    /// Counts a request to send a number again.
    pub(super) fn count_asked(&mut self, seq: Seq) {
        *self.asked.0.entry(seq).or_default() += 1;
    }

    /// Sends withheld changes whose names are stored.
    pub(super) fn release(&mut self, names: &Names) {
        let entries = &self.entries;
        let free = |seq: &Seq| entries.get(*seq).is_none_or(|entry| names.is_stored(&entry.seen.key));
        let free: Vec<Seq> = self.withheld.extract_if(.., |seq| free(seq)).collect();
        for seq in free {
            self.unsent.insert(seq, self.priority(seq));
        }
    }

    /// Whether it takes turns: part of a full report, or older than the session.
    pub(super) fn is_older(&self, seq: Seq) -> bool {
        let before = |entry: &Entry| self.older_than.is_some_and(|than| entry.seen.at < than);
        self.entries.get(seq).is_some_and(|entry| entry.seen.listed || before(entry))
    }

    pub(super) fn set_older_than(&mut self, than: Option<Timestamp>) {
        if self.older_than == than {
            return;
        }
        self.older_than = than;
        for seq in self.unsent.take() {
            self.unsent.insert(seq, self.priority(seq));
        }
    }

    fn priority(&self, seq: Seq) -> Priority {
        let round = self.asked.0.get(&seq).copied().unwrap_or(0);
        Priority { older: self.is_older(seq), round }
    }
}
