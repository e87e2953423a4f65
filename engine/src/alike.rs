//! Values that many have alike, held once.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Weak},
};

use xxhash_rust::xxh3::Xxh3;

/// Things that are shared, beyond which those are looked for that nobody holds any more: when there are twice as many as were held then.
const SHELF: usize = 1024;

/// What several hold together, by hash.
#[derive(Debug)]
pub(crate) struct Shared<T> {
    all: HashMap<u64, Vec<Weak<T>>>,
    /// How many there may be before they are looked through.
    room: usize,
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self { all: HashMap::new(), room: SHELF }
    }
}

impl<T: PartialEq> Shared<T> {
    /// The one that is held already, if there is one like it.
    pub(crate) fn share(&mut self, hash: u64, value: T) -> Arc<T> {
        if self.all.len() >= self.room {
            self.all.retain(|_, all| all.iter().any(|one| one.strong_count() > 0));
            self.room = SHELF.max(2 * self.all.len());
        }
        let all = self.all.entry(hash).or_default();
        if let Some(same) = all.iter().filter_map(Weak::upgrade).find(|one| **one == value) {
            return same;
        }
        all.retain(|one| one.strong_count() > 0);
        let value = Arc::new(value);
        all.push(Arc::downgrade(&value));
        value
    }
}

/// A hash that is the same for as long as this process runs.
pub(crate) fn hash_of(value: &impl Hash) -> u64 {
    let mut hash = Xxh3::new();
    value.hash(&mut hash);
    hash.digest()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_holds_any_more_goes() {
        let mut shared = Shared::default();
        let held = shared.share(0, 0);
        for n in 1..2 * SHELF as u64 {
            shared.share(n, n);
        }
        assert!(shared.all.len() <= SHELF && Arc::ptr_eq(&held, &shared.share(0, 0)));
        // Of those with the same hash, too.
        drop(shared.share(0, 1));
        let other = shared.share(0, 2);
        assert_eq!((shared.all[&0].len(), *other), (2, 2));
    }

    #[test]
    fn what_many_hold_is_not_looked_through_each_time() {
        let mut shared = Shared::default();
        let held: Vec<_> = (0..2 * SHELF as u64).map(|n| shared.share(n, n)).collect();
        assert_eq!((shared.all.len(), shared.room), (2 * SHELF, 2 * SHELF));
        drop(held);
        drop(shared.share(9999, 9999));
        assert_eq!((shared.all.len(), shared.room), (1, SHELF));
    }
}
