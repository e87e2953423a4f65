//! Remembers reapplied objects. Other objects need no memory, since [`drift`](tidewatch_deployer::drift) compares them directly.

use std::num::NonZeroUsize;

use jiff::{SignedDuration, Timestamp};
use lru::LruCache;
use parking_lot::Mutex;
use tidewatch_api::object::ObjectRef;
use tidewatch_deployer::{
    conflict::{Conflict, Verdict},
    readiness::End,
};

use crate::key::WorkKey;

/// Objects remembered, fleet-wide. A forgotten one costs a write without changes, or more rounds of a conflict.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(20_000).unwrap();

const REMEMBERED_SCHEMAS: NonZeroUsize = NonZeroUsize::new(2_000).unwrap();

/// Self-deleting Jobs remembered, fleet-wide. A forgotten one reruns if its module has not been ready since.
const REMEMBERED_JOBS: NonZeroUsize = NonZeroUsize::new(2_000).unwrap();

/// How long API servers may use an old CRD: each caches CRDs, and several may share one address.
const FRESH: SignedDuration = SignedDuration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Standing {
    objects: Mutex<LruCache<u64, Entry>>,
    schemas: Mutex<LruCache<u64, Timestamp>>,
    /// Self-deleting Jobs: spec hash and last run.
    jobs: Mutex<LruCache<u64, (u64, Run)>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    /// Created. If it is gone, it has ended or was deleted.
    Made,
    Ended(End),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    wanted: u64,
    /// Hash of the engine's fields after the apply.
    content: u64,
    conflict: Conflict,
}

impl Default for Standing {
    fn default() -> Self {
        Self {
            objects: Mutex::new(LruCache::new(REMEMBERED)),
            schemas: Mutex::new(LruCache::new(REMEMBERED_SCHEMAS)),
            jobs: Mutex::new(LruCache::new(REMEMBERED_JOBS)),
        }
    }
}

impl Standing {
    /// The key of an object within a reconcile key. Two Manifests that apply one object have an ordinary conflict.
    pub(crate) fn key(work: &WorkKey, object: &ObjectRef) -> u64 {
        let (kyma, (group, kind, namespace, name)) = (work.kyma(), object.identity());
        let text = format!("{kyma}\n{work}\n{group}\n{kind}\n{namespace}\n{name}");
        xxhash_rust::xxh3::xxh3_64(text.as_bytes())
    }

    /// Whether the object equals the result of the last apply of this content.
    pub(crate) fn is_settled(&self, key: u64, wanted: u64, content: u64) -> bool {
        self.objects.lock().get(&key).is_some_and(|e| e.wanted == wanted && e.content == content)
    }

    pub(crate) fn verdict(&self, key: u64, wanted: u64, now: Timestamp) -> Verdict {
        match self.objects.lock().get(&key) {
            Some(entry) if entry.wanted == wanted => entry.conflict.verdict(now),
            _ => Verdict::Go,
        }
    }

    pub(crate) fn on_trial(&self, key: u64, now: Timestamp) -> Option<Timestamp> {
        self.objects.lock().get(&key)?.conflict.on_trial(now)
    }

    /// Records an apply. Only equal content counts as a round of a conflict; other content is an upgrade.
    pub(crate) fn applied(&self, key: u64, wanted: u64, content: u64, now: Timestamp) {
        let mut all = self.objects.lock();
        let conflict = match all.get(&key) {
            Some(entry) if entry.wanted == wanted => entry.conflict.reverted(now),
            _ => Conflict::default(),
        };
        all.put(key, Entry { wanted, content, conflict });
    }

    /// Forgets a deleted object, so that a new one starts without conflict.
    pub(crate) fn forget(&self, key: u64) {
        self.objects.lock().pop(&key);
        self.jobs.lock().pop(&key);
    }

    /// Records a Job's run. A recorded end stays.
    pub(crate) fn ran(&self, key: u64, spec: u64, run: Run) {
        let mut jobs = self.jobs.lock();
        let has_ended = matches!(jobs.get(&key), Some((of, Run::Ended(_))) if *of == spec);
        if run != Run::Made || !has_ended {
            jobs.put(key, (spec, run));
        }
    }

    pub(crate) fn run(&self, key: u64, spec: u64) -> Option<Run> {
        self.jobs.lock().get(&key).filter(|(of, _)| *of == spec).map(|(_, run)| *run)
    }

    pub(crate) fn interrupted(&self, key: u64) {
        self.jobs.lock().pop(&key);
    }

    pub(crate) fn wrote_schema(&self, key: u64, now: Timestamp) {
        self.schemas.lock().put(key, now);
    }

    /// Whether a CRD was written so recently that an object may have met the old one.
    pub(crate) fn is_fresh(&self, key: u64, now: Timestamp) -> bool {
        self.schemas.lock().get(&key).is_some_and(|at| now.duration_since(*at) < FRESH)
    }
}

#[cfg(test)]
mod tests {
    use tidewatch_api::object::Gvk;
    use tidewatch_deployer::conflict::TIMES;

    use super::*;

    #[test]
    fn a_definition_is_fresh_for_a_while() {
        let (standing, now) = (Standing::default(), Timestamp::UNIX_EPOCH);
        assert!(!standing.is_fresh(1, now));
        standing.wrote_schema(1, now);
        assert!(standing.is_fresh(1, now) && !standing.is_fresh(2, now));
        assert!(!standing.is_fresh(1, now + FRESH));
    }

    #[test]
    fn the_same_again_and_again_is_a_fight_and_an_upgrade_is_none() {
        let (standing, now) = (Standing::default(), Timestamp::UNIX_EPOCH);
        let object = ObjectRef { gvk: Gvk::of("v1", "ConfigMap"), namespace: "n".into(), name: "a".into() };
        let of = |kyma: &str, name: &str| {
            Standing::key(&WorkKey::Manifest { kyma: kyma.into(), name: name.into() }, &object)
        };
        let (key, other) = (of("k", "m"), of("j", "m"));
        assert!(key != other && key != of("k", "another"), "each Manifest fights for itself");
        assert!(!standing.is_settled(key, 1, 10));
        standing.applied(key, 1, 10, now);
        assert!(standing.is_settled(key, 1, 10), "what the API server made of it stands");
        assert!(!standing.is_settled(key, 1, 11) && !standing.is_settled(key, 2, 10));
        for _ in 0..TIMES {
            assert_eq!(standing.verdict(key, 1, now), Verdict::Go);
            standing.applied(key, 1, 10, now);
        }
        assert!(matches!(standing.verdict(key, 1, now), Verdict::Suspended(_)));
        assert_eq!(standing.verdict(key, 2, now), Verdict::Go, "an upgrade");
        assert_eq!(standing.verdict(other, 1, now), Verdict::Go, "another runtime");
        standing.forget(key);
        assert_eq!(standing.verdict(key, 1, now), Verdict::Go, "what was removed begins anew");
    }
}
