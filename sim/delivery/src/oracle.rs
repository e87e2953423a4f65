//! What is in the runtimes against what was reconciled.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tidewatch_engine::WorkKey;
use tidewatch_wire::{
    Epoch, Seq,
    v3::{self, Change},
};

/// Objects of a runtime that the engine reconciles.
pub(crate) const OWN: usize = 6;
/// All objects of a runtime: another manager hears of the rest.
pub(crate) const OBJECTS: usize = 9;
/// The watches: the engine's, and the other manager's.
pub(crate) const WATCHES: [&str; 2] = ["things", "parts"];
/// The other manager.
pub(crate) const MANAGER: &str = "central";

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
    /// What there was of an object when the other manager was told of it last.
    told: BTreeMap<Object, u64>,
    /// Objects that nobody in a restored runtime can know of: their end is not told.
    unknown: BTreeSet<Object>,
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

/// Which watch shows an object.
pub(crate) fn watch_of(object: usize) -> usize {
    usize::from(object >= OWN)
}

/// What has to be reconciled when an object changes: one thing, or two; nothing, if it is another manager's.
pub(crate) fn targets((runtime, object): Object) -> Vec<WorkKey> {
    if watch_of(object) > 0 {
        return Vec::new();
    }
    let kyma = runtime_name(runtime);
    let manifest = WorkKey::Manifest { kyma: kyma.clone(), name: format!("m{}", object % 3) };
    if object == 0 { vec![WorkKey::Kyma { kyma }, manifest] } else { vec![manifest] }
}

/// What a reconcile looks at.
pub(crate) fn objects_of(key: &WorkKey) -> Vec<Object> {
    let runtime = number(key.kyma());
    (0..OWN).map(|n| (runtime, n)).filter(|object| targets(*object).contains(key)).collect()
}

/// All that is to be reconciled in a runtime.
pub(crate) fn all_targets(runtime: usize) -> Vec<WorkKey> {
    let mut all: Vec<_> = (0..OWN).flat_map(|object| targets((runtime, object))).collect();
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

    /// What is persisted of failures, for a backup of the control plane.
    pub(crate) fn persisted(&self) -> BTreeMap<WorkKey, Vec<(Object, u64)>> {
        self.failed.clone()
    }

    /// The control plane was restored: what it says of failures is old. In runtimes that nobody has to tell of everything,
    /// what has failed since is hidden until the safety resync, which is at once here.
    pub(crate) fn restored(
        &mut self,
        persisted: BTreeMap<WorkKey, Vec<(Object, u64)>>,
        hidden: impl Fn(usize) -> bool,
    ) {
        let since = std::mem::replace(&mut self.failed, persisted);
        for (key, read) in since.into_iter().filter(|(key, _)| hidden(number(key.kyma()))) {
            self.failed.entry(key).or_insert(read);
        }
    }

    /// The other manager was told of an object, and looks. `named`: whether its name is stored in the runtime, which after
    /// a restore need not have it, since the request may be from before.
    pub(crate) fn told(&mut self, object: Object, named: bool) {
        let actual = self.actual(object);
        self.told.insert(object, actual);
        if named {
            self.unknown.remove(&object);
        }
    }

    /// A runtime was restored, and with it the names of what the other manager was told of.
    pub(crate) fn names_restored(&mut self, runtime: usize, known: impl Fn(usize) -> bool) {
        self.unknown.extend((OWN..OBJECTS).filter(|n| !known(*n)).map(|n| (runtime, n)));
    }

    /// The agent of an epoch is gone: nobody reads its answers any more.
    pub(crate) fn epoch_ended(&mut self, ended: Epoch) {
        self.sent.retain(|(epoch, _), _| *epoch != ended);
    }

    /// An agent sends a request.
    pub(crate) fn sent(&mut self, runtime: usize, request: &v3::Request<'_>) {
        for event in &request.events {
            let objects = match event.change {
                Change::Resync if event.watch == WATCHES[0] => 0..OWN,
                // It names nothing that could be told.
                Change::Resync => 0..0,
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
                let told = self.told.get(object).copied().unwrap_or_default();
                if watch_of(object.1) > 0 && told < *version {
                    return Some(format!(
                        "{object:?}: number {seq} was let go when its manager had not been told of change {version}, \
                         but of {told}"
                    ));
                }
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

    /// What is not reconciled as it is now. `shown` says whether a present agent was told of an object, `unnoticed` whether
    /// nobody can have told it of a change.
    pub(crate) fn behind(
        &self,
        shown: impl Fn(Object) -> bool,
        unnoticed: impl Fn(Object, u64) -> bool,
    ) -> Vec<String> {
        let mut behind = Vec::new();
        for (object, existed) in &self.existed {
            let actual = self.actual(*object);
            let was = |version: u64| existed.get(usize::try_from(version).unwrap_or(0)) == Some(&true);
            // It came and went, and was swallowed both times: a reconcile for another cause may have found it, no agent has.
            if !was(actual) && unnoticed(*object, actual) {
                continue;
            }
            if watch_of(object.1) > 0 {
                let told = self.told.get(object).copied().unwrap_or_default();
                let knows = was(told) && !self.unknown.contains(object);
                // What came and went before it was told of has no end to be told of.
                if told != actual && (was(actual) || knows) {
                    behind.push(format!("{object:?}: {actual} changes, its manager was told of {told}"));
                }
            }
            for key in targets(*object) {
                let seen = self.reconciled.get(&(key.clone(), *object)).copied().unwrap_or_default();
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
