use std::hash::Hash;

use lru::LruCache;

/// Values of at most `budget` bytes. The least recently used is evicted first.
#[derive(Debug)]
pub struct ByteLru<K: Hash + Eq, V> {
    values: LruCache<K, (V, u64)>,
    used: u64,
    budget: u64,
}

impl<K: Hash + Eq, V> ByteLru<K, V> {
    /// Creates an empty cache.
    #[must_use]
    pub fn new(budget: u64) -> Self {
        Self { values: LruCache::unbounded(), used: 0, budget }
    }

    /// Returns a value and marks it as used.
    pub fn get(&mut self, key: &K) -> Option<&V> {
        self.values.get(key).map(|(value, _)| value)
    }

    /// Stores or replaces a value of `weight` bytes. One above the budget is dropped.
    pub fn insert(&mut self, key: K, value: V, weight: u64) {
        if let Some((_, replaced)) = self.values.pop(&key) {
            self.used -= replaced;
        }
        if weight > self.budget {
            return;
        }
        while self.used > self.budget - weight {
            let Some((_, (_, oldest))) = self.values.pop_lru() else { break };
            self.used -= oldest;
        }
        self.used += weight;
        self.values.put(key, (value, weight));
    }

    /// Bytes of all values.
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.used
    }

    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evicts_the_least_recently_used_value() {
        let mut cache = ByteLru::new(10);
        for key in ["a", "b"] {
            cache.insert(key, key, 5);
        }
        assert_eq!(cache.get(&"a"), Some(&"a"));
        cache.insert("c", "c", 4);
        assert_eq!(cache.get(&"b"), None);
        assert_eq!((cache.len(), cache.used()), (2, 9));
    }

    #[test]
    fn replaced_values_free_bytes_and_oversized_ones_are_skipped() {
        let mut cache = ByteLru::new(10);
        cache.insert("a", 1, 4);
        cache.insert("a", 2, 6);
        assert_eq!(cache.get(&"a"), Some(&2));
        assert_eq!(cache.used(), 6);
        cache.insert("b", 3, 11);
        assert_eq!((cache.len(), cache.used()), (1, 6));
        cache.insert("a", 4, 11);
        assert!(cache.is_empty() && cache.used() == 0, "the old value is not the one that was to be stored");
    }
}
