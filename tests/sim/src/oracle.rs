//! What is in the runtimes against what was reconciled.

use std::collections::{BTreeMap, HashMap};
use tidewatch_engine::WorkKey;
use tidewatch_wire::{
    Epoch, Seq,
    v3::{self, Change},
};

/// Objects of a runtime.
pub(crate) const OBJECTS: usize = 6;

/// An object: its runtime and its number.
pub(crate) type Object = (usize, usize);

/// Knows every change of every object by number, and which of them each reconcile has seen.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    /// Whether the object was there before its first change, and after each.
    existed: BTreeMap<Object, Vec<bool>>,
    /// What the last reconcile that ended well had read.
    reconciled: BTreeMap<(WorkKey, Object), u64>,
    /// The same with those whose failure was persisted.
    settled: BTreeMap<(WorkKey, Object), u64>,
    /// What is persisted of failures: they are tried again, whatever happens.
    failed: BTreeMap<WorkKey, Vec<(Object, u64)>>,
    /// What had happened to the objects when a number was sent first. A reconcile that may acknowledge it begins later.
    sent: HashMap<(Epoch, Seq), Vec<(Object, u64)>>,
}

pub(crate) fn runtime_name(runtime: usize) -> String {
    format!("r{runtime}")
}

pub(crate) fn object_name(object: usize) -> String {
    format!("o{object}")
}

/// The number in `r1` or `o1`.
pub(crate) fn number(name: &str) -> usize {
    name.get(1..).and_then(|digits| digits.parse().ok()).unwrap_or_default()
}

/// What has to be reconciled when an object changes: one thing, or two.
pub(crate) fn targets((runtime, object): Object) -> Vec<WorkKey> {
    let kyma = runtime_name(runtime);
    let manifest = WorkKey::Manifest { kyma: kyma.clone(), name: format!("m{}", object % 3) };
    if object == 0 { vec![WorkKey::Kyma { kyma }, manifest] } else { vec![manifest] }
}

/// What a reconcile looks at.
pub(crate) fn objects_of(key: &WorkKey) -> Vec<Object> {
    let runtime = number(key.kyma());
    (0..OBJECTS).map(|n| (runtime, n)).filter(|object| targets(*object).contains(key)).collect()
}

/// All that is to be reconciled in a runtime.
pub(crate) fn all_targets(runtime: usize) -> Vec<WorkKey> {
    let mut all: Vec<_> = (0..OBJECTS).flat_map(|object| targets((runtime, object))).collect();
    all.sort();
    all.dedup();
    all
}

impl Oracle {
    pub(crate) fn changed(&mut self, object: Object, exists: bool) {
        self.existed.entry(object).or_insert_with(|| vec![false]).push(exists);
    }

    pub(crate) fn actual(&self, object: Object) -> u64 {
        self.existed.get(&object).map_or(0, |existed| existed.len() as u64 - 1)
    }

    /// A reconcile has ended that had read this; `done` if it ended well, else its failure is persisted.
    pub(crate) fn ended(&mut self, key: &WorkKey, read: &[(Object, u64)], done: bool) {
        for (object, version) in read {
            let at = (key.clone(), *object);
            let settled = self.settled.entry(at.clone()).or_default();
            *settled = (*settled).max(*version);
            if done {
                let reconciled = self.reconciled.entry(at).or_default();
                *reconciled = (*reconciled).max(*version);
            }
        }
        if !done {
            self.failed.insert(key.clone(), read.to_vec());
        } else if self.failed.get(key).is_some_and(|failed| failed.iter().zip(read).all(|(f, r)| f.1 <= r.1))
        {
            self.failed.remove(key);
        }
    }

    /// What a restarted engine finds persisted as not ready.
    pub(crate) fn not_ready(&self) -> Vec<WorkKey> {
        self.failed.keys().cloned().collect()
    }

    /// The control plane was restored: what it says of failures is old. The engine, which reconciles everything when it
    /// starts, finds it all to be done.
    pub(crate) fn restored(&mut self, runtimes: usize) {
        self.failed = (0..runtimes).flat_map(all_targets).map(|key| (key, Vec::new())).collect();
    }

    /// The agent of an epoch is gone: nobody reads its answers any more.
    pub(crate) fn epoch_ended(&mut self, ended: Epoch) {
        self.sent.retain(|(epoch, _), _| *epoch != ended);
    }

    /// An agent sends a request.
    pub(crate) fn sent(&mut self, runtime: usize, request: &v3::Request<'_>) {
        for event in &request.events {
            let objects = match event.change {
                Change::Resync => 0..OBJECTS,
                Change::Changed | Change::Gone => number(&event.name)..number(&event.name) + 1,
            };
            let seen = objects.map(|n| ((runtime, n), self.actual((runtime, n)))).collect();
            self.sent.entry((request.epoch, event.seq)).or_insert(seen);
        }
    }

    /// An answer reaches an agent. Says what was let go too early.
    pub(crate) fn answered(&self, answer: &v3::Response) -> Option<String> {
        let mut sent: Vec<_> = self.sent.iter().filter(|((epoch, _), _)| *epoch == answer.epoch).collect();
        sent.sort_by_key(|((_, seq), _)| *seq);
        for ((_, seq), objects) in sent {
            if answer.acks.iter().any(|ack| ack.refused.contains(*seq)) {
                return Some(format!("number {seq} was refused"));
            }
            if !answer.acks.iter().any(|ack| ack.done.contains(*seq)) {
                continue;
            }
            for (object, version) in objects {
                for key in targets(*object) {
                    let seen = self.settled.get(&(key.clone(), *object)).copied().unwrap_or_default();
                    if seen < *version {
                        return Some(format!(
                            "{object:?}: number {seq} was let go when its change {version} had not been seen by \
                             {key}, which has seen {seen}"
                        ));
                    }
                }
            }
        }
        None
    }

    /// What is not reconciled as it is now. `shown` says whether a present agent was told of an object.
    pub(crate) fn behind(&self, shown: impl Fn(Object) -> bool) -> Vec<String> {
        let mut behind = Vec::new();
        for (object, existed) in &self.existed {
            let actual = self.actual(*object);
            for key in targets(*object) {
                let seen = self.reconciled.get(&(key.clone(), *object)).copied().unwrap_or_default();
                let was = |version: u64| existed.get(usize::try_from(version).unwrap_or(0)) == Some(&true);
                // What came and went while nobody looked has left nothing behind.
                let matters = was(actual) || was(seen) || shown(*object);
                if seen != actual && matters {
                    behind.push(format!("{object:?}: {actual} changes, {key} has seen {seen}"));
                }
            }
        }
        behind
    }
}
