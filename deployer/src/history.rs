//! Earlier applies of objects that need a memory. Most objects need none, since [`drift`](crate::drift) compares them directly.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use tidewatch_api::object::ObjectId;

use crate::{
    conflict::{Conflict, RevertDecision},
    readiness::JobResult,
};

/// How long API servers may use an old CRD: each caches CRDs, and several may share one address.
const SCHEMA_CACHED: SignedDuration = SignedDuration::from_secs(10);

/// Most objects of one owner. Beyond, it begins anew.
const OBJECTS: usize = 10_000;

/// Earlier applies of one owner's objects, such as a module's. A forgotten one costs a write without changes, or more rounds of a
/// conflict.
#[derive(Debug, Default)]
pub struct ApplyHistory(HashMap<ObjectId, ObjectHistory>);

#[derive(Debug, Default)]
struct ObjectHistory {
    applied: Option<Applied>,
    /// Spec hash and last run of a Job that deletes itself.
    run: Option<(u64, JobRun)>,
    /// Last write of a CRD.
    schema_written: Option<Timestamp>,
}

#[derive(Debug)]
struct Applied {
    /// Hash of the wanted object.
    wanted: u64,
    /// Hash of the engine's fields after the apply.
    content: u64,
    conflict: Conflict,
}

/// A run of a Job that deletes itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobRun {
    /// Created. If it is gone, it has ended or was deleted.
    Created,
    /// Ended.
    Ended(JobResult),
}

impl ApplyHistory {
    /// Whether the object equals the result of the last apply of this content.
    #[must_use]
    pub fn is_settled(&self, object: ObjectId, wanted: u64, content: u64) -> bool {
        self.applied(object).is_some_and(|applied| (applied.wanted, applied.content) == (wanted, content))
    }

    /// Decides whether to apply this content once more.
    #[must_use]
    pub fn verdict(&self, object: ObjectId, wanted: u64, now: Timestamp) -> RevertDecision {
        match self.applied(object) {
            Some(applied) if applied.wanted == wanted => applied.conflict.verdict(now),
            _ => RevertDecision::Go,
        }
    }

    /// The end of the trial after a suspension.
    #[must_use]
    pub fn on_trial(&self, object: ObjectId, now: Timestamp) -> Option<Timestamp> {
        self.applied(object)?.conflict.on_trial(now)
    }

    /// Records an apply. Only equal content counts as a round of a conflict; other content is an upgrade.
    pub fn record_apply(&mut self, object: ObjectId, wanted: u64, content: u64, now: Timestamp) {
        let conflict = match self.applied(object) {
            Some(applied) if applied.wanted == wanted => applied.conflict.reverted(now),
            _ => Conflict::default(),
        };
        self.entry(object).applied = Some(Applied { wanted, content, conflict });
    }

    /// Forgets a deleted object, so that a new one starts without conflict.
    pub fn forget(&mut self, object: ObjectId) {
        self.0.remove(&object);
    }

    /// Forgets all other objects than these.
    pub fn retain(&mut self, is_wanted: impl Fn(ObjectId) -> bool) {
        self.0.retain(|object, _| is_wanted(*object));
    }

    /// Records a Job's run. A recorded end stays.
    pub fn record_run(&mut self, job: ObjectId, spec: u64, run: JobRun) {
        let before = &mut self.entry(job).run;
        let has_ended = matches!(before, Some((of, JobRun::Ended(_))) if *of == spec);
        if run != JobRun::Created || !has_ended {
            *before = Some((spec, run));
        }
    }

    /// The last run of a Job with this spec.
    #[must_use]
    pub fn run(&self, job: ObjectId, spec: u64) -> Option<JobRun> {
        self.0.get(&job)?.run.filter(|(of, _)| *of == spec).map(|(_, run)| run)
    }

    /// Forgets a run that was interrupted by a deletion.
    pub fn forget_run(&mut self, job: ObjectId) {
        if let Some(history) = self.0.get_mut(&job) {
            history.run = None;
        }
    }

    /// Records the write of a CRD.
    pub fn record_schema(&mut self, crd: ObjectId, now: Timestamp) {
        self.entry(crd).schema_written = Some(now);
    }

    /// Whether a CRD was written so recently that an object may have met the old one.
    #[must_use]
    pub fn is_schema_fresh(&self, crd: ObjectId, now: Timestamp) -> bool {
        let written = self.0.get(&crd).and_then(|history| history.schema_written);
        written.is_some_and(|at| now.duration_since(at) < SCHEMA_CACHED)
    }

    fn entry(&mut self, object: ObjectId) -> &mut ObjectHistory {
        if self.0.len() >= OBJECTS && !self.0.contains_key(&object) {
            self.0.clear();
        }
        self.0.entry(object).or_default()
    }

    fn applied(&self, object: ObjectId) -> Option<&Applied> {
        self.0.get(&object)?.applied.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use tidewatch_api::object::{Gvk, ObjectRef};

    use super::*;
    use crate::conflict::TIMES;

    fn id(name: &str) -> ObjectId {
        let gvk = Gvk::of("v1", "ConfigMap");
        ObjectId::from(&ObjectRef { gvk, namespace: "n".into(), name: name.into() })
    }

    #[test]
    fn a_schema_is_fresh_for_a_while() {
        let (mut history, now) = (ApplyHistory::default(), Timestamp::UNIX_EPOCH);
        assert!(!history.is_schema_fresh(id("a"), now));
        history.record_schema(id("a"), now);
        assert!(history.is_schema_fresh(id("a"), now) && !history.is_schema_fresh(id("b"), now));
        assert!(!history.is_schema_fresh(id("a"), now + SCHEMA_CACHED));
    }

    #[test]
    fn repeated_applies_of_one_content_are_a_conflict_and_an_upgrade_is_none() {
        let (mut history, now, a) = (ApplyHistory::default(), Timestamp::UNIX_EPOCH, id("a"));
        assert!(!history.is_settled(a, 1, 10));
        history.record_apply(a, 1, 10, now);
        assert!(history.is_settled(a, 1, 10), "the API server's version of it");
        assert!(!history.is_settled(a, 1, 11) && !history.is_settled(a, 2, 10));
        for _ in 0..TIMES {
            assert_eq!(history.verdict(a, 1, now), RevertDecision::Go);
            history.record_apply(a, 1, 10, now);
        }
        assert!(matches!(history.verdict(a, 1, now), RevertDecision::Suspended(_)));
        assert_eq!(history.verdict(a, 2, now), RevertDecision::Go, "an upgrade");
        assert_eq!(history.verdict(id("b"), 1, now), RevertDecision::Go, "another object");
        history.forget(a);
        assert_eq!(history.verdict(a, 1, now), RevertDecision::Go, "a removed object begins anew");
    }

    #[test]
    fn a_recorded_end_of_a_job_stays() {
        let (mut history, job) = (ApplyHistory::default(), id("job"));
        history.record_run(job, 1, JobRun::Created);
        history.record_run(job, 1, JobRun::Ended(JobResult::Complete));
        history.record_run(job, 1, JobRun::Created);
        assert_eq!(history.run(job, 1), Some(JobRun::Ended(JobResult::Complete)));
        assert_eq!(history.run(job, 2), None, "another spec");
        history.retain(|object| object == job);
        history.forget_run(job);
        assert_eq!(history.run(job, 1), None);
    }
}
