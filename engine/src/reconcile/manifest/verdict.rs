//! The verdict on a module after a pass: its status, and when its Manifest is due again. Pure.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use tidewatch_api::{Manifest, ManifestStatus, State, object::ObjectRef, readiness::Readiness};
use tidewatch_deployer::{namespace::Terminating, readiness};
use tidewatch_planner::{
    manifest,
    manifest_status::{self, Progress},
};

use super::{
    causes::CauseSearch,
    default_cr::{DefaultCrReport, cr_condition},
    related::{deadline, more_detailed},
    status::{operation, unread_status},
};
use crate::{
    key::Report,
    outcome::{Next, Outcome, found_report},
    pace::{RECHECK_RARELY, RECHECK_SOON},
    reconcile::suspended::Suspended,
};

/// What a status says besides its progress.
pub(super) struct PassStatus<'a> {
    pub(super) manifest: &'a Manifest,
    /// The inventory.
    pub(super) objects: &'a [ObjectRef],
    pub(super) cr: &'a DefaultCrReport,
    /// Whether all Jobs with a time to live have completed.
    pub(super) jobs_completed: bool,
    pub(super) now: Timestamp,
}

impl PassStatus<'_> {
    /// The Manifest's status with this progress.
    pub(super) fn of(&self, progress: &Progress) -> ManifestStatus {
        let Self { manifest, objects, cr, jobs_completed, now } = *self;
        if !cr.is_known {
            return unread_status(manifest, progress, objects, now);
        }
        let exists = cr_condition(manifest, Some(cr.exists == Some(true)));
        let status = manifest_status::manifest_status(manifest, progress, objects, exists, now);
        let status =
            if jobs_completed { manifest_status::with_jobs_completed(status, manifest, now) } else { status };
        manifest_status::with_cr_state(status, manifest, cr.id_and_state().as_ref(), now)
    }
}

/// What a pass found in the runtime.
pub(super) struct Findings<'a> {
    pub(super) status: &'a PassStatus<'a>,
    pub(super) readiness: Readiness,
    /// Objects that the engine has stopped reverting.
    pub(super) suspended: &'a [Suspended],
    /// Whether objects besides Deployments are not ready. Agents always report Deployments.
    pub(super) others_unready: bool,
    /// Whether each status change of the unready objects is an event.
    pub(super) has_events: bool,
    pub(super) searched: CauseSearch,
}

/// The status to write, and when the Manifest is due again.
pub(super) struct Verdict<'a> {
    /// `None`: the present status is still valid.
    pub(super) status: Option<ManifestStatus>,
    /// Whether the write may be delayed: a module in progress is usually Ready soon.
    pub(super) may_delay: bool,
    /// The conflict to notify.
    pub(super) conflict: Option<&'a Suspended>,
    pub(super) outcome: Outcome,
}

/// The verdict on a module whose objects are all applied.
pub(super) fn conclude<'a>(found: &Findings<'a>) -> Verdict<'a> {
    let suspended = found.suspended.iter().find(|one| !one.is_trial()).or(found.suspended.first());
    match (&found.readiness, suspended) {
        (Readiness::Ready, Some(one)) => ready_but_suspended(found.status, one),
        (Readiness::Ready, None) => ready(found),
        (readiness, suspended) => unready(found, readiness, suspended),
    }
}

fn ready_but_suspended<'a>(status: &PassStatus<'_>, one: &'a Suspended) -> Verdict<'a> {
    let report = found_report(State::Warning, one.message());
    let is_warning = status.manifest.status.as_ref().is_some_and(|status| status.state == State::Warning);
    let progress = Progress::Failed { state: report.state, message: report.message.clone() };
    // During a trial, the present warning is still valid.
    let status = (!one.is_trial() || !is_warning).then(|| status.of(&progress));
    let outcome = Outcome::failed(report).due_at(Some(one.until));
    Verdict { conflict: status.is_some().then_some(one), status, may_delay: false, outcome }
}

fn ready<'a>(found: &Findings<'_>) -> Verdict<'a> {
    let status = found.status.of(&Progress::Applied(Readiness::Ready));
    let outcome = match status.state {
        State::Ready => Outcome::done(),
        // The state comes from the default CR. Each change of it is an event.
        _ => Outcome::waiting(operation(&status)),
    };
    Verdict { status: Some(status), may_delay: !found.searched.found, conflict: None, outcome }
}

fn unready<'a>(found: &Findings<'_>, readiness: &Readiness, suspended: Option<&'a Suspended>) -> Verdict<'a> {
    // A suspended object may be the reason.
    let conflict = suspended.filter(|one| !one.is_trial());
    let present = found.status.manifest.status.as_ref().map(operation).unwrap_or_default();
    let explained = |message: &str| match (conflict, suspended) {
        (Some(one), _) => format!("{message}; {}", one.message()),
        // During a trial, the present explanation stays.
        (None, Some(_)) if let Some(at) = present.find(&format!("{message}; ")) => present[at..].to_owned(),
        _ => more_detailed(&present, message).to_owned(),
    };
    let progress = Progress::Applied(match readiness {
        Readiness::Ready => Readiness::Ready,
        Readiness::Processing(message) => Readiness::Processing(explained(message)),
        Readiness::Warning(message) => Readiness::Warning(explained(message)),
        Readiness::Error(message) => Readiness::Error(explained(message)),
    });
    // When a suspension ends, the object is reverted one more time.
    let outcome = unready_outcome(found, readiness)
        .if_waiting_due_by(found.searched.recheck_at)
        .due_by(suspended.map(|one| one.until));
    let status = Some(found.status.of(&progress));
    Verdict { status, may_delay: !found.searched.found, conflict, outcome }
}

fn unready_outcome(found: &Findings<'_>, readiness: &Readiness) -> Outcome {
    let deadline = deadline(found.status.manifest);
    match readiness {
        Readiness::Ready => Outcome::done(),
        Readiness::Processing(message) | Readiness::Warning(message) => {
            let message = message.clone();
            if !found.others_unready && deadline == readiness::DEADLINE {
                // The Deployment's own deadline is an event.
                Outcome::waiting(message)
            } else if found.has_events {
                // The agent reports changes, but not that a change failed to come before the deadline.
                let at = found.status.now.saturating_add(deadline).unwrap_or(Timestamp::MAX);
                Outcome::waiting(message).due_at(Some(at))
            } else {
                Outcome::recheck_soon(message)
            }
        }
        Readiness::Error(message) => {
            let report = found_report(State::Error, message.clone());
            if !found.others_unready || found.has_events {
                Outcome::failed(report)
            } else {
                Outcome::retried(report, "unready", None)
            }
        }
    }
}

/// The verdict on a module that waits for an object: a kind, or the end of a previous object.
///
/// After the module's deadline it is an error, and keeps waiting. `wait` is the outcome of the wait alone.
pub(super) fn conclude_incomplete<'a>(
    status: &PassStatus<'_>,
    readiness: Readiness,
    searched: CauseSearch,
    awaited: &str,
    wait: Outcome,
) -> Verdict<'a> {
    let (now, deadline) = (status.now, deadline(status.manifest));
    let late = readiness::not_within(deadline);
    let since = waiting_since(status.manifest, awaited, &late, now);
    let due = since.saturating_add(deadline).unwrap_or(Timestamp::MAX);
    let is_overdue = due <= now;
    let progress = incomplete_progress(readiness, searched.found, awaited, is_overdue.then_some(late));
    let recheck_at = searched.recheck_at.into_iter().chain((!is_overdue).then_some(due)).min();
    // The deadline has passed, so a quick recheck is not expected to help.
    let outcome = if is_overdue && wait.has_pace(RECHECK_SOON) {
        Outcome::recheck_rarely(wait.message().to_owned())
    } else {
        wait
    };
    let outcome = outcome.if_waiting_due_by(recheck_at);
    Verdict { status: Some(status.of(&progress)), may_delay: !searched.found, conflict: None, outcome }
}

/// The progress to report. `found`: the cause was found by reading more than the objects themselves.
fn incomplete_progress(
    readiness: Readiness,
    found: bool,
    awaited: &str,
    overdue: Option<String>,
) -> Progress {
    match readiness {
        // The failing workload may be the one that serves the missing kind.
        Readiness::Error(message) => Progress::Applied(Readiness::Error(format!("{message}; {awaited}"))),
        _ if let Some(overdue) = overdue => {
            Progress::Failed { state: State::Error, message: format!("{overdue}: {awaited}") }
        }
        Readiness::Warning(cause) => Progress::Applied(Readiness::Warning(format!("{cause}; {awaited}"))),
        Readiness::Processing(cause) if found => Progress::Waiting(format!("{awaited}; {cause}")),
        Readiness::Processing(_) | Readiness::Ready => Progress::Waiting(awaited.to_owned()),
    }
}

/// When the Manifest began to wait for `awaited`, according to its status.
///
/// Returns `now` if the status names another reason: each new version or step gets its full deadline. Returns the minimum if the
/// status already says `late`.
fn waiting_since(manifest: &Manifest, awaited: &str, late: &str, now: Timestamp) -> Timestamp {
    let last = manifest.status.as_ref().and_then(|status| status.last_operation.as_ref());
    let Some(last) = last.filter(|last| last.operation.contains(awaited)) else { return now };
    if last.operation.starts_with(late) {
        return Timestamp::MIN;
    }
    let at = last.last_update_time.as_ref().map_or(now, |at| at.0);
    // Never later than now, even if the status is forged.
    manifest::not_ready_since(manifest).map_or(at, |since| since.max(at)).min(now)
}

/// A namespace that was being deleted when an object was applied to it.
pub(super) struct NamespaceFound {
    pub(super) name: String,
    /// The description; `None`: it is gone, or was created again.
    pub(super) terminating: Option<Terminating>,
    /// Whether it could be read.
    pub(super) is_read: bool,
}

/// The verdict on a module with objects in terminating namespaces. `rest` is its outcome without them.
///
/// `has_events`: whether each change of a namespace is an event.
pub(super) fn conclude_terminating<'a>(
    status: &PassStatus<'_>,
    skipped: &[ObjectRef],
    namespaces: &[NamespaceFound],
    suspended: &[Suspended],
    rest: &Outcome,
    has_events: bool,
) -> Verdict<'a> {
    let now = status.now;
    let long_at =
        |found: &NamespaceFound| found.terminating.as_ref().map(|terminating| terminating.overdue_at);
    let soon = |found: &NamespaceFound| long_at(found).flatten().filter(|at| *at > now);
    let is_long = namespaces.iter().any(|found| long_at(found).is_some() && soon(found).is_none());
    let message = terminating_message(skipped, namespaces);
    let recheck_at = suspended
        .iter()
        .map(|one| one.until)
        .chain(namespaces.iter().filter_map(soon))
        .chain(rest.due.filter(|_| rest.waits_for_event()))
        .min();
    let outcome = if !has_events || !rest.waits_for_event() || namespaces.iter().any(|found| !found.is_read) {
        Outcome::recheck_rarely(message.clone()).due_at(recheck_at)
    } else if namespaces.iter().any(|found| found.terminating.is_none()) {
        // The namespace's end may have been reported before this Manifest waited for it.
        Outcome::recheck_soon(message.clone())
    } else {
        Outcome::waiting(message.clone()).due_at(recheck_at)
    };
    let progress = if is_long {
        let Report { state, message, .. } = found_report(State::Warning, message);
        Progress::Failed { state, message }
    } else {
        Progress::Waiting(message)
    };
    Verdict { status: Some(status.of(&progress)), may_delay: !is_long, conflict: None, outcome }
}

fn terminating_message(skipped: &[ObjectRef], namespaces: &[NamespaceFound]) -> String {
    let described = namespaces.iter().map(|NamespaceFound { name, terminating, .. }| {
        terminating
            .as_ref()
            .map_or_else(|| format!("namespace {name} was being deleted"), |found| found.message.clone())
    });
    let described: Vec<String> = described.collect();
    let objects = match skipped {
        [one] => format!("{one} waits for its end"),
        [first, ..] => format!("{first} and {} more objects wait for its end", skipped.len() - 1),
        [] => String::new(),
    };
    format!("{}; {objects}; everything else goes on", described.join("; "))
}

/// The namespaces of objects, in order and without repetition.
pub(super) fn namespaces_of(objects: &[ObjectRef]) -> BTreeSet<&str> {
    objects.iter().map(|object| object.namespace.as_str()).collect()
}

/// The outcome of a verdict whose status is delayed for `left`: the Manifest is due when the status is.
pub(super) fn due_with_status(outcome: Outcome, left: Duration, now: Timestamp) -> Outcome {
    if outcome.waits_for_event() {
        Outcome { next: Next::After(left), ..outcome }
    } else if outcome.has_pace(RECHECK_RARELY) {
        outcome.due_at(now.checked_add(left).ok())
    } else {
        outcome
    }
}

#[cfg(test)]
mod tests;
