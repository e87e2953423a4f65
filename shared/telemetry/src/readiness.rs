//! Readiness.

use parking_lot::Mutex;
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Tasks not ready yet. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    pending: Arc<Mutex<Pending>>,
}

#[derive(Debug, Default)]
struct Pending {
    next_id: u64,
    tasks: BTreeMap<u64, Cow<'static, str>>,
}

/// Keeps the process unready until dropped outside of a panic.
#[derive(Debug)]
#[must_use = "a guard that is dropped at once makes nothing wait"]
pub struct Guard {
    id: u64,
    pending: Arc<Mutex<Pending>>,
}

impl Readiness {
    /// Creates a ready state.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the process unready until the guard drops.
    pub fn register(&self, name: impl Into<Cow<'static, str>>) -> Guard {
        let mut pending = self.pending.lock();
        let id = pending.next_id;
        pending.next_id += 1;
        pending.tasks.insert(id, name.into());
        Guard { id, pending: Arc::clone(&self.pending) }
    }

    /// Unready tasks, sorted and unique.
    pub fn unready(&self) -> Vec<Cow<'static, str>> {
        let names: BTreeSet<_> = self.pending.lock().tasks.values().cloned().collect();
        names.into_iter().collect()
    }
}

impl Guard {
    /// Drops the guard.
    pub fn ready(self) {}
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.pending.lock().tasks.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_unready_components() {
        let readiness = Readiness::new();
        assert!(readiness.unready().is_empty());
        let (watch, sender) = (readiness.register("watches"), readiness.register("sender"));
        assert_eq!(readiness.unready(), ["sender", "watches"]);
        watch.ready();
        assert_eq!(readiness.unready(), ["sender"]);
        drop(sender);
        assert!(readiness.unready().is_empty());
    }

    #[test]
    fn a_panicking_component_stays_unready() {
        let readiness = Readiness::new();
        let guard = readiness.register("task");
        let thread = std::thread::spawn(move || {
            let _keep = &guard;
            panic!("on purpose");
        });
        assert!(thread.join().is_err());
        assert_eq!(readiness.unready(), ["task"]);
    }
}
