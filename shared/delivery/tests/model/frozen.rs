//! A shared part of a state, hashed once.

use std::{
    collections::hash_map::DefaultHasher,
    fmt,
    hash::{Hash, Hasher},
    ops::Deref,
    sync::Arc,
};

/// An action changes few parts; the others are neither copied nor hashed.
pub(crate) struct Frozen<T> {
    value: Arc<T>,
    hash: u64,
}

/// A hash that is equal in every run.
pub(crate) fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl<T: Hash> Frozen<T> {
    pub(crate) fn new(value: T) -> Self {
        let hash = hash_of(&value);
        Self { value: Arc::new(value), hash }
    }

    pub(crate) fn rank(&self) -> u64 {
        self.hash
    }
}

impl<T: Hash + Clone> Frozen<T> {
    /// Replaces the value by a changed copy.
    pub(crate) fn change<R>(&mut self, change: impl FnOnce(&mut T) -> R) -> R {
        let mut copy = T::clone(&self.value);
        let result = change(&mut copy);
        *self = Self::new(copy);
        result
    }
}

impl<T> Deref for Frozen<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Clone for Frozen<T> {
    fn clone(&self) -> Self {
        Self { value: Arc::clone(&self.value), hash: self.hash }
    }
}

impl<T: PartialEq> PartialEq for Frozen<T> {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.value == other.value
    }
}

impl<T: Eq> Eq for Frozen<T> {}

impl<T> Hash for Frozen<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl<T: fmt::Debug> fmt::Debug for Frozen<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}
