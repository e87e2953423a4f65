//! One class of ready keys, served round robin over their groups.

use std::collections::{HashMap, HashSet, VecDeque};

use super::Key;

/// Keys of one class, in the order in which they are served. Taking a key out of the middle would cost a
/// look at everything, so a key that has gone elsewhere stays until its turn and is passed over then: who
/// pops says which keys still count. A key stands here at most once.
#[derive(Debug)]
pub(super) struct Lane<K: Key> {
    /// Every group here has at least one key in `keys`.
    turns: VecDeque<K::Group>,
    keys: HashMap<K::Group, VecDeque<K>>,
    members: HashSet<K>,
}

impl<K: Key> Default for Lane<K> {
    fn default() -> Self {
        Self { turns: VecDeque::new(), keys: HashMap::new(), members: HashSet::new() }
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

    /// The next key that `counts`, of the next group for which `free` holds.
    pub(super) fn pop(
        &mut self,
        free: &impl Fn(&K::Group) -> bool,
        counts: &impl Fn(&K) -> bool,
    ) -> Option<K> {
        loop {
            let turn = self.turns.iter().position(free)?;
            let group = self.turns.remove(turn)?;
            let keys = self.keys.get_mut(&group)?;
            let key = keys.pop_front()?;
            self.members.remove(&key);
            let counted = counts(&key);
            if keys.is_empty() {
                self.keys.remove(&group);
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
