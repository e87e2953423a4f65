//! One class of ready keys, served round robin over their groups.

use std::collections::{HashMap, HashSet, VecDeque};

use super::Key;
use crate::queue::capacity;

/// Ready keys of one class, without duplicates.
///
/// A key that moved elsewhere stays until [`Lane::pop`] skips it; earlier removal would be linear.
///
/// A full group leaves the round until [`Lane::freed`], to avoid repeated checks. It loses nothing: it is being
/// served.
#[derive(Debug)]
pub(super) struct Lane<K: Key> {
    /// Groups with keys, not in `full`.
    turns: VecDeque<K::Group>,
    /// Groups with keys that were full at their turn.
    full: HashSet<K::Group>,
    keys: HashMap<K::Group, VecDeque<K>>,
    members: HashSet<K>,
}

impl<K: Key> Default for Lane<K> {
    fn default() -> Self {
        Self { turns: VecDeque::new(), full: HashSet::new(), keys: HashMap::new(), members: HashSet::new() }
    }
}

impl<K: Key> Lane<K> {
    pub(super) fn push(&mut self, key: &K) {
        if !self.members.insert(key.clone()) {
            return;
        }
        let group = key.group();
        let keys = self.keys.entry(group.clone()).or_default();
        if keys.is_empty() {
            self.turns.push_back(group);
        }
        keys.push_back(key.clone());
    }

    /// Returns a group with new capacity to the round.
    pub(super) fn freed(&mut self, group: &K::Group) {
        if let Some(group) = self.full.take(group) {
            self.turns.push_back(group);
        }
    }

    /// Next key that `is_ready`, of a `free` group. Full groups wait for [`Lane::freed`].
    pub(super) fn pop(
        &mut self,
        free: &impl Fn(&K::Group) -> bool,
        is_ready: &impl Fn(&K) -> bool,
    ) -> Option<K> {
        loop {
            let group = self.turns.pop_front()?;
            if !free(&group) {
                self.full.insert(group);
                continue;
            }
            let keys = self.keys.get_mut(&group)?;
            let key = keys.pop_front()?;
            self.members.remove(&key);
            capacity::shrink_set(&mut self.members);
            let ready = is_ready(&key);
            if keys.is_empty() {
                self.keys.remove(&group);
                capacity::shrink_map(&mut self.keys);
            } else if ready {
                self.turns.push_back(group);
            } else {
                // Skipped: its group keeps its turn.
                self.turns.push_front(group);
            }
            if ready {
                return Some(key);
            }
        }
    }
}
