//! Jobs with `ttlSecondsAfterFinished`: each runs once per wanted spec, and is removed after its end.
//!
//! The time between end and removal may be milliseconds. So a missing Job counts as ended, unless a deletion before its end was observed.

use serde_json::Value;
use tidewatch_api::object::{ObjectId, ObjectRef, content_hash};
use tidewatch_deployer::{
    drift,
    history::{ApplyHistory, JobRun},
    readiness::{self, Cause, JobResult, ObjectReadiness},
};

use super::{Installer, ObjectResult};
const FAILED: &str = "it failed, and its time to live has removed it: it runs again when the module's version changes its spec, or \
                      when the module is enabled anew";

/// Returns the keys and spec hashes of Jobs with a time to live.
pub(in crate::reconcile::manifest) fn among<'a>(
    objects: impl Iterator<Item = &'a Value>,
) -> Vec<(ObjectId, u64)> {
    let jobs = objects.filter(|object| readiness::is_deleted_when_finished(object));
    jobs.filter_map(|job| Some(((&ObjectRef::of(job)?).into(), content_hash(&job["spec"])))).collect()
}

/// Whether such Jobs exist and all have completed.
pub(in crate::reconcile::manifest) fn have_completed(
    history: &ApplyHistory,
    jobs: &[(ObjectId, u64)],
) -> bool {
    let completed =
        |(job, spec): &(ObjectId, u64)| history.run(*job, *spec) == Some(JobRun::Ended(JobResult::Complete));
    !jobs.is_empty() && jobs.iter().all(completed)
}

/// The spec hash of a Job with a time to live.
fn spec_of(wanted: &Value) -> Option<u64> {
    readiness::is_deleted_when_finished(wanted).then(|| content_hash(&wanted["spec"]))
}

fn record(installer: &Installer<'_>, id: &ObjectRef, spec: u64, run: JobRun) {
    installer.change_history(|history| history.record_run(id.into(), spec, run));
}

pub(super) fn made(installer: &Installer<'_>, id: &ObjectRef, wanted: &Value) {
    if let Some(spec) = spec_of(wanted) {
        record(installer, id, spec, JobRun::Created);
    }
}

/// Returns the result for a missing, previously installed Job; `None`: create it.
pub(super) fn gone(installer: &Installer<'_>, id: &ObjectRef, wanted: &Value) -> Option<ObjectResult> {
    let spec = spec_of(wanted)?;
    let end = match installer.history(|history| history.run(id.into(), spec)) {
        Some(JobRun::Ended(end)) => end,
        Some(JobRun::Created) => JobResult::Complete,
        None if installer.jobs_completed => JobResult::Complete,
        None => return None,
    };
    record(installer, id, spec, JobRun::Ended(end));
    Some(ended(id, end))
}

/// Records an existing Job. `Some`: it ended and is being deleted, so do not wait.
pub(super) fn observe(
    installer: &Installer<'_>,
    id: &ObjectRef,
    wanted: &Value,
    live: &Value,
) -> Option<ObjectResult> {
    let spec = spec_of(wanted)?;
    if !drift::has(&live["spec"], &wanted["spec"]) {
        // It belongs to another version.
        return None;
    }
    let leaves = live["metadata"]["deletionTimestamp"].is_string();
    match readiness::job_result(live) {
        Some(end) => {
            record(installer, id, spec, JobRun::Ended(end));
            leaves.then(|| ended(id, end))
        }
        None if leaves => {
            installer.change_history(|history| history.forget_run(id.into()));
            None
        }
        None => {
            record(installer, id, spec, JobRun::Created);
            None
        }
    }
}

fn ended(id: &ObjectRef, end: JobResult) -> ObjectResult {
    let judged = match end {
        JobResult::Complete => ObjectReadiness::Ready,
        JobResult::Failed => {
            ObjectReadiness::Error { cause: Cause { object: id.clone(), text: FAILED.to_owned() } }
        }
    };
    ObjectResult::JobEnded(id.clone(), judged)
}
