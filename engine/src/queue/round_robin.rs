//! One class of ready keys, served round robin over their groups.

use std::collections::{HashMap, HashSet, VecDeque};

use super::Key;
use crate::queue::capacity;

/// Keys of one class, in the order in which they are served. Taking a key out of the middle would cost a
/// look at everything, so a key that has gone elsewhere stays until its turn and is passed over then: who
/// pops says which keys still count. A key stands here at most once.
///
/// A group that is found full at its turn leaves the round until [`Lane::freed`], so that full groups are not looked at
/// again and again. It has lost nothing by that: it was being served.
#[derive(Debug)]
pub(super) struct Lane<K: Key> {
    /// Every group here has at least one key in `keys`, and is not in `full`.
    turns: VecDeque<K::Group>,
    /// Groups that were full at their turn; each has at least one key in `keys`.
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

    /// A group has become free.
    pub(super) fn freed(&mut self, group: &K::Group) {
        if let Some(group) = self.full.take(group) {
            self.turns.push_back(group);
        }
    }

    /// The next key that `counts`, of the next group for which `free` holds. Groups for which it does not are not asked
    /// about again before they are [`Lane::freed`].
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
                // It was passed over, so its group keeps its turn.
                self.turns.push_front(group);
            }
            if counted {
                return Some(key);
            }
        }
    }
}
