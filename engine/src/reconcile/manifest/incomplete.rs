//! Ends passes that wait for a missing object or for a removal.

use jiff::Timestamp;
use tidewatch_api::{Manifest, ManifestStatus, State, readiness::Readiness};
use tidewatch_deployer::readiness;
use tidewatch_planner::{manifest, manifest_status::Progress};

use super::{apply::Applied, hold::said_in_time, inside::deadline};
use crate::{
    clusters::Gated,
    error::Error,
    outcome::Outcome,
    pace::{RECHECK_RARELY, RECHECK_SOON},
    reconcile::manifest::ManifestReconciler,
    stages::{Stage, stage},
};

/// Returns the progress to report. `found`: the cause was found by reading more than the objects themselves.
fn says(readiness: Readiness, found: bool, what: &str, overdue: Option<String>) -> Progress {
    match readiness {
        // The failing workload may be the one that serves the missing kind.
        Readiness::Error(message) => Progress::Applied(Readiness::Error(format!("{message}; {what}"))),
        _ if let Some(overdue) = overdue => {
            Progress::Failed { state: State::Error, message: format!("{overdue}: {what}") }
        }
        Readiness::Warning(cause) => Progress::Applied(Readiness::Warning(format!("{cause}; {what}"))),
        Readiness::Processing(cause) if found => Progress::Waiting(format!("{what}; {cause}")),
        Readiness::Processing(_) | Readiness::Ready => Progress::Waiting(what.to_owned()),
    }
}

impl ManifestReconciler {
    /// Reports the object that a pass waits for, beside the failures of existing objects.
    ///
    /// After the module's deadline it reports an error, but keeps waiting.
    pub(super) async fn incomplete(
        &self,
        manifest: &Manifest,
        runtime: &Gated,
        mut applied: Applied,
        (what, finish): (String, Outcome),
        write: impl Fn(Progress) -> ManifestStatus,
    ) -> Result<Outcome, Error> {
        let looked = stage(Stage::ReadRuntime, self.causes(manifest, runtime, &mut applied)).await;
        let readiness = readiness::of_module(manifest.spec.manager.as_ref(), &applied.judged);
        let (now, deadline) = (self.kcp.now(), deadline(manifest));
        let late = readiness::not_within(deadline);
        let due = since(manifest, &what, &late, now).saturating_add(deadline).unwrap_or(Timestamp::MAX);
        let overdue = due <= now;
        let status = write(says(readiness, looked.found, &what, overdue.then_some(late)));
        let held = self.write_status(manifest, &status, looked.found).await?;
        let said = held.filter(|_| finish.has_pace(RECHECK_RARELY)).map(|left| now + left);
        let again = [looked.again, said, Some(due).filter(|_| !overdue)].into_iter().flatten().min();
        // The deadline has passed, so a quick recheck is not expected to help.
        let finish = if overdue && finish.has_pace(RECHECK_SOON) {
            Outcome::recheck_rarely(finish.message().to_owned())
        } else {
            finish
        };
        Ok(said_in_time(held, finish).if_waiting_due_by(again))
    }
}

/// Returns when the Manifest began to wait for `what`, according to its status.
///
/// Returns `now` if the status names another reason: each new version or step gets its full deadline. Returns the minimum if the status
/// already says `late`.
fn since(manifest: &Manifest, what: &str, late: &str, now: Timestamp) -> Timestamp {
    let said = manifest.status.as_ref().and_then(|status| status.last_operation.as_ref());
    let Some(said) = said.filter(|said| said.operation.contains(what)) else { return now };
    if said.operation.starts_with(late) {
        return Timestamp::MIN;
    }
    let at = said.last_update_time.as_ref().map_or(now, |at| at.0);
    // Never later than now, even if the status is forged.
    manifest::not_ready_since(manifest).map_or(at, |since| since.max(at)).min(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_that_of_what_is_waited_for_now() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let since_when = |operation: &str| {
            let manifest = serde_json::from_value(serde_json::json!({"metadata": {"name": "m"}, "spec": {}, "status": {
                "state": "Error", "synced": [], "lastOperation": {"operation": operation, "lastUpdateTime": "1970-01-01T00:01:00Z"},
                "conditions": [{"type": "Installation", "status": "False", "reason": "Ready", "message": "",
                                "lastTransitionTime": "1970-01-01T00:00:10Z"}]}}))
            .unwrap();
            since(&manifest, "waiting for a", "not ready within 60 s", at(500))
        };
        assert_eq!(
            since_when("the registry does not answer"),
            at(500),
            "it was in trouble for another reason"
        );
        assert_eq!(since_when("waiting for b"), at(500), "it gets on");
        assert_eq!(since_when("waiting for a; Deployment a/b: its image cannot be pulled"), at(60));
        assert_eq!(since_when("not ready within 60 s: waiting for a"), Timestamp::MIN, "it stays so");
        let mut forged: Manifest =
            serde_json::from_value(serde_json::json!({"metadata": {"name": "m"}, "spec": {}, "status": {
            "state": "Processing", "lastOperation": {"operation": "waiting for a"}}}))
            .unwrap();
        for last in [Timestamp::MAX, at(501)] {
            let operation = forged.status.as_mut().unwrap().last_operation.as_mut().unwrap();
            operation.last_update_time = Some(last.into());
            assert_eq!(since(&forged, "waiting for a", "not ready within 60 s", at(500)), at(500));
        }
    }

    #[test]
    fn what_cannot_start_is_said_beside_what_it_would_serve() {
        let waits = "the kind of the default CR is not served yet";
        let said = |readiness, found, overdue: Option<&str>| match says(
            readiness,
            found,
            waits,
            overdue.map(str::to_owned),
        ) {
            Progress::Failed { state, message } => (state, message),
            Progress::Waiting(what) => (State::Processing, what),
            Progress::Applied(Readiness::Error(message)) => (State::Error, message),
            other => panic!("{other:?}"),
        };
        let processing = || Readiness::Processing("Deployment a/b: its replica is not available".into());
        let pull = || Readiness::Processing("Deployment a/b: its image cannot be pulled".into());
        assert_eq!(said(processing(), false, None), (State::Processing, waits.to_owned()));
        let beside = format!("{waits}; Deployment a/b: its image cannot be pulled");
        assert_eq!(said(pull(), true, None), (State::Processing, beside));
        let failed =
            said(Readiness::Error("it makes no progress".into()), false, Some("not ready within 60 s"));
        assert_eq!(failed, (State::Error, format!("it makes no progress; {waits}")));
        for readiness in [Readiness::Ready, processing(), pull()] {
            let late = said(readiness, true, Some("not ready within 60 s"));
            assert_eq!(late, (State::Error, format!("not ready within 60 s: {waits}")));
        }
    }
}
