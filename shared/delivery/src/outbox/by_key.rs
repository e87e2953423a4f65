//! Numbers of dirty keys.

use std::collections::BTreeSet;

use tidewatch_wire::{Seq, v3};
use xxhash_rust::xxh3::Xxh3;

use super::{entries::Entries, entry::Entry, types::Key};

/// Numbers by key hash. The keys are in the entries, since copies take four times the memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ByKey {
    all: BTreeSet<(u64, Seq)>,
    canaries: BTreeSet<Seq>,
}

impl ByKey {
    pub(super) fn find(&self, key: &Key, entries: &Entries<Entry>) -> Option<Seq> {
        let hash = hash(key);
        let mut some = self.all.range((hash, Seq(0))..=(hash, Seq(u64::MAX))).map(|(_, seq)| *seq);
        some.find(|seq| entries.get(*seq).is_some_and(|entry| entry.seen.key == *key))
    }

    pub(super) fn insert(&mut self, key: &Key, seq: Seq) {
        self.all.insert((hash(key), seq));
        if &*key.watch == v3::CANARY {
            self.canaries.insert(seq);
        }
    }

    pub(super) fn remove(&mut self, key: &Key, seq: Seq) {
        self.all.remove(&(hash(key), seq));
        self.canaries.remove(&seq);
    }

    pub(super) fn canaries(&self) -> impl Iterator<Item = Seq> {
        self.canaries.iter().copied()
    }
}

fn hash(key: &Key) -> u64 {
    let mut hash = Xxh3::new();
    for part in [&key.watch, &key.namespace, &key.name] {
        hash.update(part.as_bytes());
        // Not in a name.
        hash.update(b"/");
    }
    hash.digest()
}
