//! Shrinks hash tables, which otherwise keep a fleet installation's capacity.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
};

/// Capacity always kept, in entries.
const MIN_CAPACITY: usize = 1_024;
/// Capacity per entry above which a table shrinks to twice its length. Removal stays amortised constant.
const MAX_CAPACITY_PER_ENTRY: usize = 8;

/// Smaller capacity, if any.
fn shrunk(entries: usize, capacity: usize) -> Option<usize> {
    (capacity > MIN_CAPACITY.max(entries * MAX_CAPACITY_PER_ENTRY))
        .then(|| (entries * 2).max(MIN_CAPACITY / 2))
}

pub(super) fn shrink_map<K: Eq + Hash, V>(map: &mut HashMap<K, V>) {
    if let Some(capacity) = shrunk(map.len(), map.capacity()) {
        map.shrink_to(capacity);
    }
}

pub(super) fn shrink_set<K: Eq + Hash>(set: &mut HashSet<K>) {
    if let Some(capacity) = shrunk(set.len(), set.capacity()) {
        set.shrink_to(capacity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emptied_table_shrinks_and_a_full_one_not() {
        let mut map: HashMap<usize, usize> = (0..100_000).map(|n| (n, n)).collect();
        let mut set: HashSet<usize> = (0..100_000).collect();
        let full = (map.capacity(), set.capacity());
        shrink_map(&mut map);
        shrink_set(&mut set);
        assert_eq!((map.capacity(), set.capacity()), full);
        let mut moved = 0;
        for n in 0..100_000 {
            map.remove(&n);
            set.remove(&n);
            let before = map.capacity();
            shrink_map(&mut map);
            shrink_set(&mut set);
            moved += usize::from(map.capacity() != before) * map.len();
        }
        assert!(
            map.capacity() <= MIN_CAPACITY && set.capacity() <= MIN_CAPACITY,
            "{} and {}",
            map.capacity(),
            set.capacity()
        );
        assert!(moved < 100_000, "{moved} entries were moved");
    }
}
