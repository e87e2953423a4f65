//! Bounded change log for watches and past lists.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use crate::{kinds::Kind, object::Stored};

/// In list order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) resource: Arc<str>,
    pub(crate) namespace: Arc<str>,
    pub(crate) name: Arc<str>,
}

impl Key {
    /// Not interned, since the object may not exist. Cluster-scoped kinds ignore the namespace.
    pub(crate) fn of(kind: &Kind, namespace: &str, name: &str) -> Self {
        let namespace = if kind.namespaced { namespace } else { "" };
        Self { resource: Arc::clone(&kind.storage), namespace: namespace.into(), name: name.into() }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) revision: u64,
    pub(crate) key: Key,
    /// `None`: created.
    pub(crate) before: Option<Arc<Stored>>,
    /// Removed objects: the last state.
    pub(crate) after: Arc<Stored>,
    pub(crate) gone: bool,
}

#[derive(Debug)]
pub(crate) struct Log {
    entries: VecDeque<Entry>,
    limit: usize,
    /// Last dropped revision.
    trimmed: u64,
}

impl Log {
    pub(crate) fn new(limit: usize) -> Self {
        Self { entries: VecDeque::new(), limit, trimmed: 0 }
    }

    pub(crate) fn push(&mut self, entry: Entry) {
        self.entries.push_back(entry);
        while self.entries.len() > self.limit {
            self.forget_one();
        }
    }

    fn forget_one(&mut self) {
        if let Some(entry) = self.entries.pop_front() {
            self.trimmed = entry.revision;
        }
    }

    /// Drops changes up to `revision`.
    pub(crate) fn trim(&mut self, revision: u64) {
        while self.entries.front().is_some_and(|entry| entry.revision <= revision) {
            self.forget_one();
        }
        self.trimmed = self.trimmed.max(revision);
    }

    /// `None`: already dropped.
    pub(crate) fn since(&self, revision: u64) -> Option<impl Iterator<Item = &Entry>> {
        let start = self.entries.partition_point(|entry| entry.revision <= revision);
        (revision >= self.trimmed).then(|| self.entries.range(start..))
    }

    /// Undoes changes after `revision`.
    pub(crate) fn rewind(
        &self,
        objects: &mut BTreeMap<Key, Arc<Stored>>,
        revision: u64,
        resource: &str,
    ) -> Option<()> {
        let changes: Vec<&Entry> = self.since(revision)?.collect();
        for entry in changes.into_iter().rev().filter(|entry| &*entry.key.resource == resource) {
            match &entry.before {
                Some(before) => _ = objects.insert(entry.key.clone(), Arc::clone(before)),
                None => _ = objects.remove(&entry.key),
            }
        }
        Some(())
    }
}
