//! A map with a weight budget that forgets what was not used for longest.

use std::{borrow::Borrow, collections::HashMap, hash::Hash};

/// No place.
const NONE: u32 = u32::MAX;

/// Least-recently-used map, bounded by the sum of its entries' weights. Not synchronised; operations are O(1).
///
/// Its entries lie in one piece, in a list by age that their numbers make: a fleet fills several of these maps with tens of thousands,
/// and as pieces of their own they would keep the pages around them (docs/scale.md).
#[derive(Debug)]
pub(crate) struct Lru<K, V> {
    budget: u64,
    used: u64,
    places: HashMap<K, u32>,
    entries: Vec<Entry<K, V>>,
    newest: u32,
    oldest: u32,
}

#[derive(Debug)]
struct Entry<K, V> {
    key: K,
    value: V,
    weight: u64,
    newer: u32,
    older: u32,
}

impl<K: Eq + Hash + Clone, V> Lru<K, V> {
    /// An empty map that holds entries of at most `budget` weight together.
    pub(crate) fn new(budget: u64) -> Self {
        Self { budget, used: 0, places: HashMap::new(), entries: Vec::new(), newest: NONE, oldest: NONE }
    }

    /// The value, marked as just used.
    pub(crate) fn get<Q>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        let place = *self.places.get(key)?;
        if self.newest != place {
            self.unlink(place);
            self.link(place);
        }
        self.entries.get_mut(place as usize).map(|entry| &mut entry.value)
    }

    /// Stores the value, replacing one under the same key, and forgets old entries until the budget holds. A value
    /// heavier than the whole budget is not stored.
    pub(crate) fn insert(&mut self, key: K, value: V, weight: u64) {
        self.remove(&key);
        if weight > self.budget {
            return;
        }
        while self.used + weight > self.budget || self.entries.len() >= NONE as usize {
            if self.take(self.oldest).is_none() {
                break;
            }
        }
        self.used += weight;
        let place = u32::try_from(self.entries.len()).unwrap_or(NONE);
        self.places.insert(key.clone(), place);
        self.entries.push(Entry { key, value, weight, newer: NONE, older: NONE });
        self.link(place);
    }

    /// Removes and returns the value.
    pub(crate) fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        let place = *self.places.get(key)?;
        self.take(place)
    }

    /// Removes and returns what was not used for longest, if it is `old`.
    pub(crate) fn pop_oldest_if(&mut self, old: impl FnOnce(&V) -> bool) -> Option<V> {
        let oldest = self.entries.get(self.oldest as usize)?;
        if old(&oldest.value) { self.take(self.oldest) } else { None }
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

    /// Takes an entry out. The last one gets its place.
    fn take(&mut self, place: u32) -> Option<V> {
        if place as usize >= self.entries.len() {
            return None;
        }
        self.unlink(place);
        let Entry { key, value, weight, .. } = self.entries.swap_remove(place as usize);
        self.places.remove(&key);
        self.used -= weight;
        if let Some(moved) = self.entries.get(place as usize) {
            if let Some(its) = self.places.get_mut(&moved.key) {
                *its = place;
            }
            let (newer, older) = (moved.newer, moved.older);
            *self.older_of(newer) = place;
            *self.newer_of(older) = place;
        }
        Some(value)
    }

    /// Makes an entry that is in no list the newest.
    fn link(&mut self, place: u32) {
        let older = std::mem::replace(&mut self.newest, place);
        *self.newer_of(older) = place;
        if let Some(entry) = self.entries.get_mut(place as usize) {
            (entry.newer, entry.older) = (NONE, older);
        }
    }

    /// Takes an entry out of the list.
    fn unlink(&mut self, place: u32) {
        let Some(entry) = self.entries.get(place as usize) else { return };
        let (newer, older) = (entry.newer, entry.older);
        *self.older_of(newer) = older;
        *self.newer_of(older) = newer;
    }

    /// Where it stands which entry is older than this one; of none, which is the newest of all.
    fn older_of(&mut self, place: u32) -> &mut u32 {
        self.entries.get_mut(place as usize).map_or(&mut self.newest, |entry| &mut entry.older)
    }

    /// Where it stands which entry is newer than this one; of none, which is the oldest of all.
    fn newer_of(&mut self, place: u32) -> &mut u32 {
        self.entries.get_mut(place as usize).map_or(&mut self.oldest, |entry| &mut entry.newer)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// As a list by age would, of which each entry is looked for.
        #[test]
        fn it_forgets_as_a_plain_list_would(
            steps in prop::collection::vec((0_u8..4, 0_u8..12, 0_u64..6), 0..200)
        ) {
            const BUDGET: u64 = 20;
            let mut lru = Lru::new(BUDGET);
            // The oldest first.
            let mut list: Vec<(u8, usize, u64)> = Vec::new();
            for (step, (what, key, weight)) in steps.into_iter().enumerate() {
                let at = list.iter().position(|(k, ..)| *k == key);
                match what {
                    0 => {
                        prop_assert_eq!(lru.get(&key).map(|value| *value), at.map(|at| list[at].1));
                        if let Some(at) = at {
                            let used = list.remove(at);
                            list.push(used);
                        }
                    }
                    1 => prop_assert_eq!(lru.remove(&key), at.map(|at| list.remove(at).1)),
                    2 => {
                        let old = |value: &usize| value.is_multiple_of(2);
                        let is_old = list.first().is_some_and(|(_, value, _)| old(value));
                        prop_assert_eq!(lru.pop_oldest_if(old), is_old.then(|| list.remove(0).1));
                    }
                    _ => {
                        at.map(|at| list.remove(at));
                        while list.iter().map(|(.., weight)| weight).sum::<u64>() + weight > BUDGET {
                            list.remove(0);
                        }
                        list.push((key, step, weight));
                        lru.insert(key, step, weight);
                    }
                }
                prop_assert_eq!(lru.len(), list.len());
                prop_assert_eq!(lru.used(), list.iter().map(|(.., weight)| weight).sum::<u64>());
            }
            while !list.is_empty() {
                prop_assert_eq!(lru.pop_oldest_if(|_| true), Some(list.remove(0).1));
            }
            prop_assert_eq!(lru.pop_oldest_if(|_| true), None);
        }
    }

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
