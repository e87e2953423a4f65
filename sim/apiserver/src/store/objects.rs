//! The objects of a cluster, their owners, and the log of their changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};

use serde_json::Value;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_128;

use super::{
    log::{Entry, Key, Log},
    refusal::Refusal,
};
use crate::{kinds::Kind, object::Stored};

#[derive(Debug)]
pub(super) struct Objects {
    /// Revision of the last change.
    revision: u64,
    by_key: BTreeMap<Key, Arc<Stored>>,
    log: Log,
    /// Dependents by the owner's uid.
    dependents: BTreeMap<Uuid, BTreeSet<Key>>,
    /// Objects that may have lost all owners.
    suspects: BTreeSet<Key>,
    /// Objects with a deletion timestamp.
    terminating: BTreeSet<Key>,
    /// Seed of the uids.
    seed: u64,
    /// Number of uids.
    uids: u64,
}

impl Objects {
    /// `log_limit`: changes kept for watches and list pages.
    pub(super) fn new(seed: u64, log_limit: usize) -> Self {
        Self {
            revision: 0,
            by_key: BTreeMap::new(),
            log: Log::new(log_limit.max(1)),
            dependents: BTreeMap::new(),
            suspects: BTreeSet::new(),
            terminating: BTreeSet::new(),
            seed,
            uids: 0,
        }
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(super) fn log(&self) -> &Log {
        &self.log
    }

    /// Drops changes up to `revision`.
    pub(super) fn forget(&mut self, revision: u64) {
        self.log.trim(revision.min(self.revision));
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Arc<Stored>> {
        self.by_key.get(key)
    }

    pub(super) fn find(&self, kind: &Kind, namespace: &str, name: &str) -> Option<&Arc<Stored>> {
        self.by_key.get(&Key::of(kind, namespace, name))
    }

    /// Like [`Self::find`]; a missing object is a 404.
    pub(super) fn lookup(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Arc<Stored>, Refusal> {
        self.find(kind, namespace, name).cloned().ok_or_else(|| Refusal::not_found(kind, name))
    }

    /// Objects of a kind. An empty namespace selects all.
    pub(super) fn range<'a>(
        &'a self,
        kind: &Kind,
        namespace: &str,
    ) -> impl Iterator<Item = (&'a Key, &'a Arc<Stored>)> {
        let start = Key { resource: Arc::clone(&kind.storage), namespace: namespace.into(), name: "".into() };
        let (resource, namespace) = (Arc::clone(&kind.storage), namespace.to_owned());
        self.by_key.range((Bound::Included(start), Bound::Unbounded)).take_while(move |(key, _)| {
            key.resource == resource && (namespace.is_empty() || *key.namespace == *namespace)
        })
    }

    /// Objects of all kinds in a namespace.
    pub(super) fn content(&self, namespace: &str) -> impl Iterator<Item = (&Key, &Arc<Stored>)> {
        self.by_key.iter().filter(move |(key, _)| *key.namespace == *namespace)
    }

    pub(super) fn of_resource(&self, resource: &str) -> impl Iterator<Item = (&Key, &Arc<Stored>)> {
        self.by_key.iter().filter(move |(key, _)| *key.resource == *resource)
    }

    pub(super) fn terminating(&self) -> impl Iterator<Item = (Key, Arc<Stored>)> {
        self.terminating.iter().filter_map(|key| Some((key.clone(), self.by_key.get(key).cloned()?)))
    }

    /// Creates the next uid.
    pub(super) fn uid(&mut self) -> Uuid {
        self.uids += 1;
        let mut bytes = [0_u8; 16];
        let input = self.seed.to_le_bytes().into_iter().chain(self.uids.to_le_bytes());
        bytes.iter_mut().zip(input).for_each(|(byte, value)| *byte = value);
        uuid::Builder::from_random_bytes(xxh3_128(&bytes).to_le_bytes()).into_uuid()
    }

    /// Adds or replaces an object.
    pub(super) fn insert(&mut self, kind: &Kind, object: Value) -> (Key, Arc<Stored>) {
        self.revision += 1;
        let stored = Arc::new(Stored::new(object, self.revision));
        let key = Key {
            resource: Arc::clone(&kind.storage),
            namespace: Arc::clone(stored.namespace()),
            name: Arc::clone(stored.name()),
        };
        let before = self.by_key.insert(key.clone(), Arc::clone(&stored));
        self.relate(&key, before.as_deref(), Some(&stored));
        if stored.is_deleted() {
            self.terminating.insert(key.clone());
        } else {
            self.terminating.remove(&key);
        }
        self.log.push(Entry {
            revision: self.revision,
            key: key.clone(),
            before,
            after: Arc::clone(&stored),
            gone: false,
        });
        (key, stored)
    }

    /// Removes an object; its dependents become suspects. Returns whether it existed.
    pub(super) fn remove(&mut self, key: &Key) -> bool {
        let Some(before) = self.by_key.remove(key) else { return false };
        self.relate(key, Some(&before), None);
        self.terminating.remove(key);
        self.suspects.extend(self.dependents.get(&before.uid).into_iter().flatten().cloned());
        self.revision += 1;
        let after = Arc::new(Stored::new(before.render(), self.revision));
        self.log.push(Entry {
            revision: self.revision,
            key: key.clone(),
            before: Some(before),
            after,
            gone: true,
        });
        true
    }

    /// Changes a resource's stored objects without a new revision.
    pub(super) fn rewrite(&mut self, resource: &str, change: impl Fn(&mut Value)) {
        for (_, stored) in self.by_key.iter_mut().filter(|(key, _)| *key.resource == *resource) {
            let mut object = stored.render();
            change(&mut object);
            *stored = Arc::new(Stored::new(object, stored.revision));
        }
    }

    pub(super) fn dependents(&self, owner: Uuid) -> BTreeSet<Key> {
        self.dependents.get(&owner).cloned().unwrap_or_default()
    }

    pub(super) fn next_suspect(&mut self) -> Option<Key> {
        self.suspects.pop_first()
    }

    fn relate(&mut self, key: &Key, before: Option<&Stored>, after: Option<&Stored>) {
        let owners = |stored: Option<&Stored>| stored.map(Stored::owner_uids).unwrap_or_default();
        let (before, after) = (owners(before), owners(after));
        if before == after {
            return;
        }
        for owner in before {
            if let Some(all) = self.dependents.get_mut(&owner) {
                all.remove(key);
                if all.is_empty() {
                    self.dependents.remove(&owner);
                }
            }
        }
        for owner in after {
            self.dependents.entry(owner).or_default().insert(key.clone());
            self.suspects.insert(key.clone());
        }
    }
}
