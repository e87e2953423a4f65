//! A small map with a weight budget that forgets what was not used for longest.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

/// Least-recently-used map, bounded by the sum of its entries' weights. Not synchronised; operations are O(log n).
#[derive(Debug)]
pub(crate) struct Lru<K, V> {
    budget: u64,
    used: u64,
    tick: u64,
    entries: HashMap<K, Entry<V>>,
    by_age: BTreeMap<u64, K>,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    weight: u64,
    tick: u64,
}

impl<K: Eq + Hash + Clone, V> Lru<K, V> {
    /// An empty map that holds entries of at most `budget` weight together.
    pub(crate) fn new(budget: u64) -> Self {
        Self { budget, used: 0, tick: 0, entries: HashMap::new(), by_age: BTreeMap::new() }
    }

    /// The value, marked as just used.
    pub(crate) fn get<Q>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        let entry = self.entries.get_mut(key)?;
        let key = self.by_age.remove(&entry.tick)?;
        self.tick += 1;
        entry.tick = self.tick;
        self.by_age.insert(self.tick, key);
        Some(&mut entry.value)
    }

    /// Stores the value, replacing one under the same key, and forgets old entries until the budget holds. A value
    /// heavier than the whole budget is not stored.
    pub(crate) fn insert(&mut self, key: K, value: V, weight: u64) {
        self.remove(&key);
        if weight > self.budget {
            return;
        }
        while self.used + weight > self.budget {
            let Some((_, oldest)) = self.by_age.pop_first() else { break };
            if let Some(entry) = self.entries.remove(&oldest) {
                self.used -= entry.weight;
            }
        }
        self.tick += 1;
        self.used += weight;
        self.by_age.insert(self.tick, key.clone());
        self.entries.insert(key, Entry { value, weight, tick: self.tick });
    }

    /// Removes and returns the value.
    pub(crate) fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        let entry = self.entries.remove(key)?;
        self.by_age.remove(&entry.tick);
        self.used -= entry.weight;
        Some(entry.value)
    }

    /// Removes and returns what was not used for longest, if it is `old`.
    pub(crate) fn pop_oldest_if(&mut self, old: impl FnOnce(&V) -> bool) -> Option<V> {
        let (_, key) = self.by_age.first_key_value()?;
        if !old(&self.entries.get(key)?.value) {
            return None;
        }
        let key = key.clone();
        self.remove(&key)
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Sum of the entries' weights.
    #[cfg(test)]
    pub(crate) fn used(&self) -> u64 {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgets_what_was_not_used_for_longest() {
        let mut lru = Lru::new(3);
        for key in ["a", "b", "c"] {
            lru.insert(key, key.to_owned(), 1);
        }
        assert!(lru.get("a").is_some());
        lru.insert("d", "d".to_owned(), 1);
        assert!(lru.get("b").is_none(), "b was the oldest");
        assert!(lru.get("a").is_some() && lru.get("c").is_some() && lru.get("d").is_some());
        assert_eq!(lru.pop_oldest_if(|value| value == "c"), None, "a is the oldest");
        assert_eq!(lru.pop_oldest_if(|value| value == "a").as_deref(), Some("a"));
        assert_eq!(lru.len(), 2);
    }

    #[test]
    fn weight_is_accounted_on_replace_remove_and_oversize() {
        let mut lru = Lru::new(10);
        lru.insert("a", 1, 4);
        lru.insert("a", 2, 6);
        assert_eq!((lru.used(), lru.len()), (6, 1));
        lru.insert("too heavy", 3, 11);
        assert_eq!((lru.used(), lru.len()), (6, 1));
        lru.insert("b", 4, 10);
        assert_eq!((lru.used(), lru.len()), (10, 1));
        assert_eq!(lru.remove("b"), Some(4));
        assert_eq!((lru.used(), lru.len()), (0, 0));
    }
}
