//! Permits per key. Unused keys take no memory.

use std::{collections::HashMap, hash::Hash, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

#[derive(Debug)]
pub(crate) struct Shares<K: Eq + Hash> {
    max: usize,
    holders: Mutex<HashMap<K, Holder>>,
}

#[derive(Debug)]
struct Holder {
    semaphore: Arc<Semaphore>,
    /// Permits and waiters, at least one.
    visits: usize,
}

#[derive(Debug)]
pub(crate) struct Permit<K: Eq + Hash + Clone> {
    // First: the last visit removes the holder.
    _permit: OwnedSemaphorePermit,
    _visit: Visit<K>,
}

#[derive(Debug)]
struct Visit<K: Eq + Hash + Clone> {
    shares: Arc<Shares<K>>,
    key: K,
}

impl<K: Eq + Hash + Clone> Shares<K> {
    /// At least one permit per key.
    pub(crate) fn new(max: usize) -> Arc<Self> {
        let max = max.clamp(1, Semaphore::MAX_PERMITS);
        Arc::new(Self { max, holders: Mutex::default() })
    }

    /// Waits for a permit. Cancel-safe. Callers must bound the wait.
    pub(crate) async fn acquire(self: &Arc<Self>, key: K) -> Option<Permit<K>> {
        let (visit, semaphore) = self.visit(key);
        // Never closed.
        let permit = semaphore.acquire_owned().await.ok()?;
        Some(Permit { _permit: permit, _visit: visit })
    }

    pub(crate) fn try_acquire(self: &Arc<Self>, key: K) -> Option<Permit<K>> {
        let (visit, semaphore) = self.visit(key);
        let permit = semaphore.try_acquire_owned().ok()?;
        Some(Permit { _permit: permit, _visit: visit })
    }

    fn visit(self: &Arc<Self>, key: K) -> (Visit<K>, Arc<Semaphore>) {
        let mut holders = self.holders.lock();
        let holder = holders
            .entry(key.clone())
            .or_insert_with(|| Holder { semaphore: Arc::new(Semaphore::new(self.max)), visits: 0 });
        holder.visits += 1;
        (Visit { shares: Arc::clone(self), key }, Arc::clone(&holder.semaphore))
    }

    #[cfg(test)]
    pub(crate) fn holders(&self) -> usize {
        self.holders.lock().len()
    }
}

impl<K: Eq + Hash + Clone> Drop for Visit<K> {
    fn drop(&mut self) {
        let mut holders = self.shares.holders.lock();
        if let Some(holder) = holders.get_mut(&self.key) {
            holder.visits -= 1;
            if holder.visits == 0 {
                holders.remove(&self.key);
            }
        }
    }
}
