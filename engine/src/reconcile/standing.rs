//! What is remembered of objects that were applied again. Of all others nothing has to be: they say themselves whether they stand
//! ([`drift`](tidewatch_deployer::drift)).

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

/// Objects remembered, of the whole fleet. One that is forgotten costs a write that changes nothing, or a few more rounds of a conflict.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(20_000).unwrap();

/// CRDs remembered, of the whole fleet, that were written just now.
const REMEMBERED_SCHEMAS: NonZeroUsize = NonZeroUsize::new(2_000).unwrap();

/// Jobs remembered, of the whole fleet, that go by themselves. One that is forgotten runs again if its module was not ready since.
const REMEMBERED_JOBS: NonZeroUsize = NonZeroUsize::new(2_000).unwrap();

/// For how long after a CRD was written an API server may still go by the old one. Each has its own memory of them, and there may be
/// several behind one address.
const FRESH: SignedDuration = SignedDuration::from_secs(10);

/// See the module.
#[derive(Debug)]
pub(crate) struct Standing {
    objects: Mutex<LruCache<u64, Entry>>,
    /// When CRDs were written.
    schemas: Mutex<LruCache<u64, Timestamp>>,
    /// Jobs that go by themselves: the spec with which they were last seen or made, and how that one has ended.
    jobs: Mutex<LruCache<u64, (u64, Run)>>,
}

/// What is known of a run of a Job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    /// It was made. If it is gone, it has ended, unless somebody has deleted it before.
    Made,
    /// It has ended.
    Ended(End),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// What was wanted, hashed.
    wanted: u64,
    /// What the API server made of it, hashed: the fields of ours and their values.
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
    /// The key of an object that a piece of work sees to. What two Manifests want of one object is a conflict like any other.
    pub(crate) fn key(work: &WorkKey, object: &ObjectRef) -> u64 {
        let (kyma, (group, kind, namespace, name)) = (work.kyma(), object.identity());
        let text = format!("{kyma}\n{work}\n{group}\n{kind}\n{namespace}\n{name}");
        xxhash_rust::xxh3::xxh3_64(text.as_bytes())
    }

    /// Whether the object is what the API server made of the same wanted content.
    pub(crate) fn is_settled(&self, key: u64, wanted: u64, content: u64) -> bool {
        self.objects.lock().get(&key).is_some_and(|e| e.wanted == wanted && e.content == content)
    }

    /// Whether it may be applied again.
    pub(crate) fn verdict(&self, key: u64, wanted: u64, now: Timestamp) -> Verdict {
        match self.objects.lock().get(&key) {
            Some(entry) if entry.wanted == wanted => entry.conflict.verdict(now),
            _ => Verdict::Go,
        }
    }

    /// Until when an object that was left alone, and has been set back since, has to stay so.
    pub(crate) fn on_trial(&self, key: u64, now: Timestamp) -> Option<Timestamp> {
        self.objects.lock().get(&key)?.conflict.on_trial(now)
    }

    /// It was applied again. Only the same content counts as a round of a conflict; another one is an upgrade.
    pub(crate) fn applied(&self, key: u64, wanted: u64, content: u64, now: Timestamp) {
        let mut all = self.objects.lock();
        let conflict = match all.get(&key) {
            Some(entry) if entry.wanted == wanted => entry.conflict.reverted(now),
            _ => Conflict::default(),
        };
        all.put(key, Entry { wanted, content, conflict });
    }

    /// The engine removes it: what somebody did to it before says nothing of the next that is made.
    pub(crate) fn forget(&self, key: u64) {
        self.objects.lock().pop(&key);
        self.jobs.lock().pop(&key);
    }

    /// A Job that goes by itself was seen or made, with this spec. An end that was seen stays.
    pub(crate) fn ran(&self, key: u64, spec: u64, run: Run) {
        let mut jobs = self.jobs.lock();
        let has_ended = matches!(jobs.get(&key), Some((of, Run::Ended(_))) if *of == spec);
        if run != Run::Made || !has_ended {
            jobs.put(key, (spec, run));
        }
    }

    /// What is known of its run with the spec that is wanted of it now.
    pub(crate) fn run(&self, key: u64, spec: u64) -> Option<Run> {
        self.jobs.lock().get(&key).filter(|(of, _)| *of == spec).map(|(_, run)| *run)
    }

    /// Somebody has deleted a Job before it has ended: it is made again.
    pub(crate) fn interrupted(&self, key: u64) {
        self.jobs.lock().pop(&key);
    }

    /// A CRD was written.
    pub(crate) fn wrote_schema(&self, key: u64, now: Timestamp) {
        self.schemas.lock().put(key, now);
    }

    /// Whether a CRD was written so lately that an object of its kind may have met the old one.
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
