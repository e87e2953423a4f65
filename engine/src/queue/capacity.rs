//! Shrinks hash tables, which otherwise keep a fleet installation's capacity.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
};

/// Capacity always kept, in entries.
const KEPT: usize = 1_024;
/// Capacity per entry above which a table shrinks to twice its length. Removal stays amortised constant.
const LOOSE: usize = 8;

/// Smaller capacity, if any.
fn less(entries: usize, room: usize) -> Option<usize> {
    (room > KEPT.max(entries * LOOSE)).then(|| (entries * 2).max(KEPT / 2))
}

pub(super) fn entries<K: Eq + Hash, V>(map: &mut HashMap<K, V>) {
    if let Some(room) = less(map.len(), map.capacity()) {
        map.shrink_to(room);
    }
}

pub(super) fn members<K: Eq + Hash>(set: &mut HashSet<K>) {
    if let Some(room) = less(set.len(), set.capacity()) {
        set.shrink_to(room);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_table_has_little_room_and_a_full_one_keeps_it() {
        let mut map: HashMap<usize, usize> = (0..100_000).map(|n| (n, n)).collect();
        let mut set: HashSet<usize> = (0..100_000).collect();
        let full = (map.capacity(), set.capacity());
        entries(&mut map);
        members(&mut set);
        assert_eq!((map.capacity(), set.capacity()), full);
        let mut moved = 0;
        for n in 0..100_000 {
            map.remove(&n);
            set.remove(&n);
            let before = map.capacity();
            entries(&mut map);
            members(&mut set);
            moved += usize::from(map.capacity() != before) * map.len();
        }
        assert!(
            map.capacity() <= KEPT && set.capacity() <= KEPT,
            "{} and {}",
            map.capacity(),
            set.capacity()
        );
        assert!(moved < 100_000, "{moved} entries were moved");
    }
}
