//! Equal values, held once.

use std::{collections::HashSet, hash::Hash, sync::Arc};

/// Number of values below which unused ones stay.
const SMALL: usize = 1024;

/// Values that many holders have in common.
#[derive(Debug)]
pub(crate) struct Pool<T> {
    values: HashSet<Arc<T>>,
    /// Number of values that triggers the removal of unused ones.
    limit: usize,
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self { values: HashSet::new(), limit: SMALL }
    }
}

impl<T: Eq + Hash> Pool<T> {
    /// The held equal of a value, or the value itself.
    pub(crate) fn share(&mut self, value: impl Into<Arc<T>>) -> Arc<T> {
        let value: Arc<T> = value.into();
        if let Some(held) = self.values.get(&*value) {
            return Arc::clone(held);
        }
        if self.values.len() >= self.limit {
            self.values.retain(|value| Arc::strong_count(value) > 1);
            self.limit = SMALL.max(2 * self.values.len());
        }
        self.values.insert(Arc::clone(&value));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_values_are_removed_and_used_ones_stay() {
        let mut pool = Pool::default();
        let held = pool.share(0);
        for n in 1..2 * SMALL {
            drop(pool.share(n));
        }
        assert!(pool.values.len() <= SMALL && Arc::ptr_eq(&held, &pool.share(0)));
    }

    #[test]
    fn limit_follows_the_number_of_used_values() {
        let mut pool = Pool::default();
        let held: Vec<_> = (0..2 * SMALL).map(|n| pool.share(n)).collect();
        assert_eq!((pool.values.len(), pool.limit), (2 * SMALL, 2 * SMALL));
        drop(held);
        drop(pool.share(9999));
        assert_eq!((pool.values.len(), pool.limit), (1, SMALL));
    }
}
