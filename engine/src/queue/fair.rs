//! One class of ready keys, served round robin over their groups.

use std::collections::{HashMap, VecDeque};

use super::Key;

/// Ready keys of one class. Every group in `turns` has at least one key in `keys`.
#[derive(Debug)]
pub(super) struct Lane<K: Key> {
    turns: VecDeque<K::Group>,
    keys: HashMap<K::Group, VecDeque<K>>,
}

impl<K: Key> Default for Lane<K> {
    fn default() -> Self {
        Self { turns: VecDeque::new(), keys: HashMap::new() }
    }
}

impl<K: Key> Lane<K> {
    pub(super) fn push(&mut self, key: K) {
        let group = key.group();
        let keys = self.keys.entry(group.clone()).or_default();
        if keys.is_empty() {
            self.turns.push_back(group);
        }
        keys.push_back(key);
    }

    /// The next key of the next group for which `free` holds.
    pub(super) fn pop(&mut self, free: &impl Fn(&K::Group) -> bool) -> Option<K> {
        let turn = self.turns.iter().position(free)?;
        let group = self.turns.remove(turn)?;
        let keys = self.keys.get_mut(&group)?;
        let key = keys.pop_front();
        if keys.is_empty() {
            self.keys.remove(&group);
        } else {
            self.turns.push_back(group);
        }
        key
    }

    pub(super) fn remove(&mut self, key: &K) {
        let group = key.group();
        let Some(keys) = self.keys.get_mut(&group) else { return };
        keys.retain(|k| k != key);
        if keys.is_empty() {
            self.keys.remove(&group);
            self.turns.retain(|g| *g != group);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.keys.values().map(VecDeque::len).sum()
    }
}
