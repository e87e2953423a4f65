//! Jobs with `ttlSecondsAfterFinished`: each runs once per wanted spec, and is removed after its end.
//!
//! The time between end and removal may be milliseconds. So a missing Job counts as ended, unless a deletion before its end was observed.

use serde_json::Value;
use tidewatch_api::object::{ObjectRef, content_hash};
use tidewatch_deployer::{
    drift,
    readiness::{self, Cause, End, ObjectReadiness},
};

use super::{Installer, Settled};
use crate::{
    key::WorkKey,
    reconcile::standing::{Run, Standing},
};

const FAILED: &str = "it failed, and its time to live has removed it: it runs again when the module's version changes its spec, or \
                      when the module is enabled anew";

/// Returns the keys and spec hashes of Jobs with a time to live.
pub(in crate::reconcile::manifest) fn among<'a>(
    work: &WorkKey,
    objects: impl Iterator<Item = &'a Value>,
) -> Vec<(u64, u64)> {
    let jobs = objects.filter(|object| readiness::goes_when_finished(object));
    jobs.filter_map(|job| Some((Standing::key(work, &ObjectRef::of(job)?), content_hash(&job["spec"]))))
        .collect()
}

/// Whether such Jobs exist and all have completed.
pub(in crate::reconcile::manifest) fn have_completed(standing: &Standing, jobs: &[(u64, u64)]) -> bool {
    let completed = |(key, spec): &(u64, u64)| standing.run(*key, *spec) == Some(Run::Ended(End::Complete));
    !jobs.is_empty() && jobs.iter().all(completed)
}

fn run_of(installer: &Installer<'_>, id: &ObjectRef, wanted: &Value) -> Option<(u64, u64)> {
    readiness::goes_when_finished(wanted)
        .then(|| (Standing::key(installer.key, id), content_hash(&wanted["spec"])))
}

pub(super) fn made(installer: &Installer<'_>, id: &ObjectRef, wanted: &Value) {
    if let Some((key, spec)) = run_of(installer, id, wanted) {
        installer.standing.ran(key, spec, Run::Made);
    }
}

/// Returns the result for a missing, previously installed Job; `None`: create it.
pub(super) fn gone(installer: &Installer<'_>, id: &ObjectRef, wanted: &Value) -> Option<Settled> {
    let (key, spec) = run_of(installer, id, wanted)?;
    let end = match installer.standing.run(key, spec) {
        Some(Run::Ended(end)) => end,
        Some(Run::Made) => End::Complete,
        None if installer.jobs_completed => End::Complete,
        None => return None,
    };
    installer.standing.ran(key, spec, Run::Ended(end));
    Some(ended(id, end))
}

/// Records an existing Job. `Some`: it ended and is being deleted, so do not wait.
pub(super) fn seen(
    installer: &Installer<'_>,
    id: &ObjectRef,
    wanted: &Value,
    live: &Value,
) -> Option<Settled> {
    let (key, spec) = run_of(installer, id, wanted)?;
    if !drift::has(&live["spec"], &wanted["spec"]) {
        // It belongs to another version.
        return None;
    }
    let leaves = live["metadata"]["deletionTimestamp"].is_string();
    match readiness::end_of(live) {
        Some(end) => {
            installer.standing.ran(key, spec, Run::Ended(end));
            leaves.then(|| ended(id, end))
        }
        None if leaves => {
            installer.standing.interrupted(key);
            None
        }
        None => {
            installer.standing.ran(key, spec, Run::Made);
            None
        }
    }
}

fn ended(id: &ObjectRef, end: End) -> Settled {
    let judged = match end {
        End::Complete => ObjectReadiness::Ready,
        End::Failed => {
            ObjectReadiness::Error { cause: Cause { object: id.clone(), text: FAILED.to_owned() } }
        }
    };
    Settled::Ended(id.clone(), judged)
}
