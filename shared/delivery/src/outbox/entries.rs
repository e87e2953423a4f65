//! Dirty entries by number.

use std::{
    collections::VecDeque,
    hash::{Hash, Hasher},
    ops::RangeInclusive,
};

use tidewatch_wire::Seq;

/// Minimum of slots to keep.
const MIN_SLOTS: usize = 64;

/// A map with rising numbers in one block, which is freed as a whole. A tree of ten thousand keys leaves holes in the
/// heap.
#[derive(Clone, Debug)]
pub(super) struct Entries<T> {
    /// Removed entries leave an empty slot for a while.
    all: VecDeque<(Seq, Option<T>)>,
    len: usize,
}

impl<T> Default for Entries<T> {
    fn default() -> Self {
        Self { all: VecDeque::new(), len: 0 }
    }
}

impl<T> Entries<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `seq` must be the highest.
    pub(super) fn push(&mut self, seq: Seq, entry: T) {
        debug_assert!(self.all.back().is_none_or(|(last, _)| *last < seq), "numbers rise");
        if self.all.len() == self.all.capacity() {
            // Not doubled: a large block grows without a copy, and its unused pages take no memory.
            self.all.reserve_exact(self.all.len() / 4 + MIN_SLOTS);
        }
        self.all.push_back((seq, Some(entry)));
        self.len += 1;
    }

    pub(super) fn get(&self, seq: Seq) -> Option<&T> {
        let (_, entry) = self.all.get(self.position(seq)?)?;
        entry.as_ref()
    }

    pub(super) fn get_mut(&mut self, seq: Seq) -> Option<&mut T> {
        let position = self.position(seq)?;
        let (_, entry) = self.all.get_mut(position)?;
        entry.as_mut()
    }

    pub(super) fn remove(&mut self, seq: Seq) -> Option<T> {
        let position = self.position(seq)?;
        let removed = self.all.get_mut(position).and_then(|(_, entry)| entry.take())?;
        self.len -= 1;
        self.tidy();
        Some(removed)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Seq, &T)> {
        self.all.iter().filter_map(|(seq, entry)| Some((*seq, entry.as_ref()?)))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.iter().map(|(_, entry)| entry)
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.all.iter_mut().filter_map(|(_, entry)| entry.as_mut())
    }

    pub(super) fn range(&self, range: RangeInclusive<Seq>) -> impl Iterator<Item = (Seq, &T)> {
        let from = self.all.partition_point(|(seq, _)| seq < range.start());
        let some = self.all.range(from..).take_while(move |(seq, _)| seq <= range.end());
        some.filter_map(|(seq, entry)| Some((*seq, entry.as_ref()?)))
    }

    fn position(&self, seq: Seq) -> Option<usize> {
        self.all.binary_search_by_key(&seq, |(seq, _)| *seq).ok()
    }

    /// Drops empty slots at the ends, others when they are the majority, and memory when mostly unused: low amortized
    /// cost.
    fn tidy(&mut self) {
        while self.all.pop_front_if(|(_, entry)| entry.is_none()).is_some() {}
        while self.all.pop_back_if(|(_, entry)| entry.is_none()).is_some() {}
        if self.all.len() > 2 * self.len + MIN_SLOTS {
            self.all.retain(|(_, entry)| entry.is_some());
        }
        if self.all.capacity() > 4 * self.all.len() + 2 * MIN_SLOTS {
            self.all.shrink_to(2 * self.all.len() + MIN_SLOTS);
        }
    }
}

impl<T: PartialEq> PartialEq for Entries<T> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<T: Eq> Eq for Entries<T> {}

impl<T: Hash> Hash for Entries<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.len.hash(state);
        self.iter().for_each(|entry| entry.hash(state));
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, hash::DefaultHasher};

    use proptest::prelude::*;

    use super::*;

    fn hash(entries: &Entries<u64>) -> u64 {
        let mut hasher = DefaultHasher::new();
        entries.hash(&mut hasher);
        hasher.finish()
    }

    proptest! {
        #[test]
        fn entries_behave_like_a_map(steps in prop::collection::vec((any::<bool>(), 0..200_u64), 1..400)) {
            let (mut entries, mut map) = (Entries::default(), BTreeMap::new());
            for (next, (puts, some)) in (1..).zip(steps) {
                let which = Seq(some * next / 200);
                if puts {
                    entries.push(Seq(next), some);
                    map.insert(Seq(next), some);
                } else {
                    prop_assert_eq!(entries.remove(which), map.remove(&which));
                }
                if let Some(entry) = entries.get_mut(which) {
                    *entry += 1;
                }
                map.entry(which).and_modify(|entry| *entry += 1);
                prop_assert_eq!(entries.get(which), map.get(&which));
                prop_assert_eq!((entries.len(), entries.is_empty()), (map.len(), map.is_empty()));
                let range = Seq(some / 2)..=which.max(Seq(some / 2));
                let some: Vec<_> = entries.range(range.clone()).map(|(seq, entry)| (seq, *entry)).collect();
                prop_assert_eq!(some, map.range(range).map(|(seq, entry)| (*seq, *entry)).collect::<Vec<_>>());
            }
            prop_assert!(entries.iter().eq(map.iter().map(|(seq, entry)| (*seq, entry))));
            prop_assert!(entries.values_mut().map(|entry| *entry).eq(map.into_values()));
            // Only the content counts.
            let mut fresh = Entries::default();
            entries.iter().for_each(|(seq, entry)| fresh.push(seq, *entry));
            prop_assert_eq!(hash(&fresh), hash(&entries));
            prop_assert_eq!(fresh, entries);
        }
    }

    #[test]
    fn memory_is_released_while_any_entry_stays() {
        for stays in [1, 5_000, 10_000] {
            let mut entries = Entries::default();
            (1..=10_000).for_each(|n| entries.push(Seq(n), n));
            (1..=10_000).filter(|n| *n != stays).for_each(|n| assert_eq!(entries.remove(Seq(n)), Some(n)));
            assert_eq!(entries.values().copied().collect::<Vec<_>>(), [stays]);
            // Numbers come and go beside one that stays.
            for n in 10_001..20_000 {
                entries.push(Seq(n), n);
                assert_eq!(entries.remove(Seq(n - 1)).is_some(), n > 10_001 || stays == 10_000);
                assert!(
                    entries.all.len() <= 2 * entries.len + MIN_SLOTS
                        && entries.all.capacity() <= 6 * MIN_SLOTS
                );
            }
        }
    }
}
