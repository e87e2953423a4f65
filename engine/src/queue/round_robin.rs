//! One class of ready keys, served round robin over their groups.

use std::collections::{HashMap, HashSet, VecDeque};

use super::Key;
use crate::queue::capacity;

/// Ready keys of one class, each at most once.
///
/// Removal from the middle would be linear, so a key that moved elsewhere stays until its turn. [`Lane::pop`] skips it
/// then.
///
/// A group found full at its turn leaves the round until [`Lane::freed`], so it is not checked repeatedly. It loses
/// nothing: it is being served.
#[derive(Debug)]
pub(super) struct Lane<K: Key> {
    /// Each group has a key in `keys` and is not in `full`.
    turns: VecDeque<K::Group>,
    /// Groups that were full at their turn; each has a key in `keys`.
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

    /// Returns a group to the round after it has freed capacity.
    pub(super) fn freed(&mut self, group: &K::Group) {
        if let Some(group) = self.full.take(group) {
            self.turns.push_back(group);
        }
    }

    /// Returns the next key that `counts`, from the next group that is `free`. Full groups wait for [`Lane::freed`].
    pub(super) fn pop(
        &mut self,
        free: &impl Fn(&K::Group) -> bool,
        counts: &impl Fn(&K) -> bool,
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
            capacity::members(&mut self.members);
            let counted = counts(&key);
            if keys.is_empty() {
                self.keys.remove(&group);
                capacity::entries(&mut self.keys);
            } else if counted {
                self.turns.push_back(group);
            } else {
                // The key was skipped, so its group keeps its turn.
                self.turns.push_front(group);
            }
            if counted {
                return Some(key);
            }
        }
    }
}
