//! Compares the state of runtimes with reconciles.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
};

use tidewatch_engine::WorkKey;
use tidewatch_wire::{
    Epoch, Seq,
    v3::{self, Change},
};

/// Engine-owned objects.
pub(crate) const OWN: usize = 6;
/// All objects; the rest is another manager's.
pub(crate) const OBJECTS: usize = 9;
/// The engine's watch, then the other manager's.
pub(crate) const WATCHES: [&str; 2] = ["things", "parts"];
pub(crate) const MANAGER: &str = "central";

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Object {
    pub(crate) runtime: usize,
    pub(crate) number: usize,
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.runtime, self.number)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Oracle {
    /// Existence, initially and after each change.
    existed: BTreeMap<Object, Vec<bool>>,
    /// Last change read by a successful reconcile.
    reconciled: BTreeMap<(WorkKey, Object), u64>,
    /// Last change read by a successful reconcile or a persisted failure.
    settled: BTreeMap<(WorkKey, Object), u64>,
    /// Persisted failures, always retried.
    failed: BTreeMap<WorkKey, Vec<(Object, u64)>>,
    /// Changes when a number was first sent. An acknowledging reconcile starts later.
    sent: HashMap<(Epoch, Seq), Vec<(Object, u64)>>,
    /// Change at the last notification.
    notified: BTreeMap<Object, u64>,
    /// Names missing after a restore: deletions are not reported.
    unknown: BTreeSet<Object>,
}

pub(crate) fn runtime_name(runtime: usize) -> String {
    format!("r{runtime}")
}

pub(crate) fn object_name(object: usize) -> String {
    format!("o{object}")
}

pub(crate) fn number(name: &str) -> usize {
    name.get(1..).and_then(|digits| digits.parse().ok()).unwrap_or_default()
}

pub(crate) fn watch_of(object: usize) -> usize {
    usize::from(object >= OWN)
}

/// Keys to reconcile; none for another manager's object.
pub(crate) fn targets(object: Object) -> Vec<WorkKey> {
    let Object { runtime, number } = object;
    if watch_of(number) > 0 {
        return Vec::new();
    }
    let kyma = runtime_name(runtime);
    let manifest = WorkKey::Manifest { kyma: kyma.clone(), name: format!("m{}", number % 3) };
    if number == 0 { vec![WorkKey::Kyma { kyma }, manifest] } else { vec![manifest] }
}

pub(crate) fn objects_of(key: &WorkKey) -> Vec<Object> {
    let runtime = number(key.kyma());
    (0..OWN)
        .map(|number| Object { runtime, number })
        .filter(|object| targets(*object).contains(key))
        .collect()
}

pub(crate) fn all_targets(runtime: usize) -> Vec<WorkKey> {
    let mut all: Vec<_> = (0..OWN).flat_map(|number| targets(Object { runtime, number })).collect();
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

    /// Records a reconcile. If not `done`, its failure is persisted.
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

    pub(crate) fn not_ready(&self) -> Vec<WorkKey> {
        self.failed.keys().cloned().collect()
    }

    pub(crate) fn persisted(&self) -> BTreeMap<WorkKey, Vec<(Object, u64)>> {
        self.failed.clone()
    }

    /// Restores persisted failures. Where no agent resyncs (`hidden`), a safety resync reveals later ones at
    /// once.
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

    /// Records a notification. `named`: the runtime stores the name, unless the request predates a restore.
    pub(crate) fn notified(&mut self, object: Object, named: bool) {
        let actual = self.actual(object);
        self.notified.insert(object, actual);
        if named {
            self.unknown.remove(&object);
        }
    }

    pub(crate) fn names_restored(&mut self, runtime: usize, known: impl Fn(usize) -> bool) {
        self.unknown.extend((OWN..OBJECTS).filter(|n| !known(*n)).map(|number| Object { runtime, number }));
    }

    /// Forgets an epoch: its answers have no reader.
    pub(crate) fn epoch_ended(&mut self, ended: Epoch) {
        self.sent.retain(|(epoch, _), _| *epoch != ended);
    }

    pub(crate) fn sent(&mut self, runtime: usize, request: &v3::Request<'_>) {
        for event in &request.events {
            let objects = match event.change {
                Change::Resync if event.watch == WATCHES[0] => 0..OWN,
                // A resync names no object.
                Change::Resync => 0..0,
                Change::Changed | Change::Gone => number(&event.name)..number(&event.name) + 1,
            };
            let objects = objects.map(|number| Object { runtime, number });
            let seen = objects.map(|object| (object, self.actual(object))).collect();
            self.sent.entry((request.epoch, event.seq)).or_insert(seen);
        }
    }

    /// Describes a refusal or early acknowledgement.
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
                let notified = self.notified.get(object).copied().unwrap_or_default();
                if watch_of(object.number) > 0 && notified < *version {
                    return Some(format!(
                        "{object:?}: number {seq} was acknowledged before its manager was notified of change {version}, \
                         only of {notified}"
                    ));
                }
                for key in targets(*object) {
                    let seen = self.settled.get(&(key.clone(), *object)).copied().unwrap_or_default();
                    if seen < *version {
                        return Some(format!(
                            "{object:?}: number {seq} was acknowledged before {key} had seen change {version}, \
                             only {seen}"
                        ));
                    }
                }
            }
        }
        None
    }

    /// Describes outdated objects.
    ///
    /// `shown`: received by the running agent. `unnoticed`: unknown to every agent.
    pub(crate) fn behind(
        &self,
        shown: impl Fn(Object) -> bool,
        unnoticed: impl Fn(Object, u64) -> bool,
    ) -> Vec<String> {
        let mut behind = Vec::new();
        for (object, existed) in &self.existed {
            let actual = self.actual(*object);
            let was = |version: u64| existed.get(usize::try_from(version).unwrap_or(0)) == Some(&true);
            // At most a reconcile for another cause observed it.
            if !was(actual) && unnoticed(*object, actual) {
                continue;
            }
            if watch_of(object.number) > 0 {
                let notified = self.notified.get(object).copied().unwrap_or_default();
                let knows = was(notified) && !self.unknown.contains(object);
                // Objects never reported have no deletion to report.
                if notified != actual && (was(actual) || knows) {
                    behind.push(format!(
                        "{object:?}: {actual} changes, its manager was notified of {notified}"
                    ));
                }
            }
            for key in targets(*object) {
                let seen = self.reconciled.get(&(key.clone(), *object)).copied().unwrap_or_default();
                // Objects never observed leave no traces.
                let matters = was(actual) || was(seen) || shown(*object);
                if seen != actual && matters {
                    behind.push(format!("{object:?}: {actual} changes, {key} has seen {seen}"));
                }
            }
        }
        behind
    }
}
