use std::time::Duration;

use serde_json::json;
use tidewatch_api::{names::annotations, object::Gvk, readiness::CrState};

use super::*;
use crate::{
    outcome::Ending,
    reconcile::suspended::{OtherChange, Suspended},
};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

const NOW: i64 = 500;
const DEPLOYMENT: &str = "Deployment a/b";

fn manifest(state: &str, operation: &str) -> Manifest {
    serde_json::from_value(
        json!({"metadata": {"name": "m"}, "spec": {}, "status": {"state": state, "synced": [],
        "lastOperation": {"operation": operation, "lastUpdateTime": "1970-01-01T00:01:00Z"},
        "conditions": [{"type": "Installation", "status": "False", "reason": "Ready", "message": "",
                        "lastTransitionTime": "1970-01-01T00:00:10Z"}]}}),
    )
    .unwrap()
}

fn object(name: &str) -> ObjectRef {
    ObjectRef { gvk: Gvk::of("v1", "ConfigMap"), namespace: name.into(), name: name.into() }
}

fn suspended(change: OtherChange) -> Suspended {
    Suspended::of_module(&object("c"), change, at(900))
}

fn no_cr() -> DefaultCrReport {
    DefaultCrReport { id: None, exists: None, state: None, is_known: true, is_alone_missing: false }
}

fn status<'a>(manifest: &'a Manifest, cr: &'a DefaultCrReport) -> PassStatus<'a> {
    PassStatus { manifest, objects: &[], cr, jobs_completed: false, now: at(NOW) }
}

const NOT_SEARCHED: CauseSearch = CauseSearch { recheck_at: None, found: false };

fn written(verdict: &Verdict<'_>) -> (State, String) {
    let status = verdict.status.as_ref().expect("a status");
    (status.state, operation(status))
}

fn processing() -> Readiness {
    Readiness::Processing(format!("{DEPLOYMENT}: its replica is not available"))
}

#[test]
fn a_module_in_progress_waits_for_events_or_is_rechecked() {
    let short = {
        let mut manifest = manifest("Processing", "");
        let terms = json!({"progressDeadlineSeconds": 60}).to_string();
        manifest.metadata.annotations = Some([(annotations::MODULE_TERMS.to_owned(), terms)].into());
        manifest
    };
    let long = manifest("Processing", "");
    let default_deadline = at(NOW) + readiness::DEADLINE;
    // Manifest, others unready, has events → waits for an event, due, rechecked.
    for (manifest, others_unready, has_events, waits, due) in [
        (&long, false, false, true, None),
        (&long, true, true, true, Some(default_deadline)),
        (&long, true, false, false, None),
        (&short, false, true, true, Some(at(NOW + 60))),
        (&short, false, false, false, None),
    ] {
        let cr = no_cr();
        let status = status(manifest, &cr);
        let found = Findings {
            status: &status,
            readiness: processing(),
            suspended: &[],
            others_unready,
            has_events,
            searched: NOT_SEARCHED,
        };
        let Verdict { outcome, may_delay, conflict, .. } = conclude(&found);
        assert!(may_delay && conflict.is_none());
        assert_eq!((outcome.waits_for_event(), outcome.due), (waits, due), "{others_unready} {has_events}");
        assert_eq!(outcome.has_pace(RECHECK_SOON), !waits);
    }
}

#[test]
fn an_error_is_retried_unless_its_end_is_an_event() {
    let (manifest, cr) = (manifest("Processing", ""), no_cr());
    let status = status(&manifest, &cr);
    for (others_unready, has_events, retried) in
        [(false, false, false), (true, true, false), (true, false, true)]
    {
        let readiness = Readiness::Error("it makes no progress".into());
        let searched = CauseSearch { found: true, recheck_at: None };
        let found =
            Findings { status: &status, readiness, suspended: &[], others_unready, has_events, searched };
        let verdict = conclude(&found);
        assert!(!verdict.may_delay, "only this read could find the cause");
        assert_eq!(written(&verdict), (State::Error, "it makes no progress".to_owned()));
        assert_eq!(verdict.outcome.next != Next::OnEvent, retried);
        assert!(matches!(verdict.outcome.state, Ending::Failed(_)));
    }
}

#[test]
fn a_ready_module_is_done_unless_its_default_cr_is_not() {
    for (state, ends) in [(State::Ready, "done"), (State::Warning, "waiting")] {
        let mut manifest = manifest("Processing", "");
        let cr_object = json!({"apiVersion": "x.dev/v1", "kind": "Beacon", "metadata": {"name": "b"}});
        manifest.spec.resource = serde_json::from_value(cr_object).unwrap();
        let id = Some(object("b"));
        let cr_state = Some(CrState { state, message: String::new() });
        let cr = DefaultCrReport { id, exists: Some(true), state: cr_state, ..no_cr() };
        let status = status(&manifest, &cr);
        let found = Findings {
            status: &status,
            readiness: Readiness::Ready,
            suspended: &[],
            others_unready: false,
            has_events: false,
            searched: NOT_SEARCHED,
        };
        let outcome = conclude(&found).outcome;
        assert_eq!(outcome.kind().label(), ends);
        assert!(outcome.next == Next::OnEvent && outcome.due.is_none(), "each change is an event");
    }
}

#[test]
fn a_suspended_object_is_a_warning_even_during_its_trial() {
    let cr = no_cr();
    for (state, change, writes) in [
        ("Ready", OtherChange::Deletes, true),
        ("Warning", OtherChange::Deletes, true),
        ("Ready", OtherChange::Ended, true),
        ("Warning", OtherChange::Ended, false),
    ] {
        let (manifest, one) = (manifest(state, ""), suspended(change));
        let status = status(&manifest, &cr);
        let suspended = std::slice::from_ref(&one);
        let found = Findings {
            status: &status,
            readiness: Readiness::Ready,
            suspended,
            others_unready: false,
            has_events: false,
            searched: NOT_SEARCHED,
        };
        let verdict = conclude(&found);
        assert_eq!((verdict.status.is_some(), verdict.conflict.is_some()), (writes, writes), "{state}");
        assert!(!verdict.may_delay && verdict.outcome.due == Some(at(900)));
        if writes {
            assert_eq!(written(&verdict), (State::Warning, one.message()));
        }
    }
}

#[test]
fn an_unready_module_names_the_suspended_object() {
    let cr = no_cr();
    let message = format!("{DEPLOYMENT}: its replica is not available");
    let conflict = suspended(OtherChange::Deletes);
    let told = format!("{message}; {}", conflict.message());
    // The present message, the suspended object, the written message.
    for (present, change, expected) in [
        ("", OtherChange::Deletes, told.clone()),
        (told.as_str(), OtherChange::Ended, told.clone()),
        ("", OtherChange::Ended, message.clone()),
    ] {
        let (manifest, one) = (manifest("Processing", present), suspended(change));
        let status = status(&manifest, &cr);
        let found = Findings {
            status: &status,
            readiness: processing(),
            suspended: std::slice::from_ref(&one),
            others_unready: true,
            has_events: true,
            searched: NOT_SEARCHED,
        };
        let verdict = conclude(&found);
        assert_eq!(written(&verdict), (State::Processing, expected));
        assert_eq!(verdict.conflict.is_some(), !one.is_trial());
        assert_eq!(verdict.outcome.due, Some(at(900)), "then the object is reverted once more");
    }
}

#[test]
fn a_wait_reports_workloads_and_fails_at_its_deadline() {
    const KIND: &str = "the kind of the default CR is not served yet";
    let pull = || Readiness::Processing(format!("{DEPLOYMENT}: its image cannot be pulled"));
    let error = || Readiness::Error("it makes no progress".into());
    let (early, late) = (at(NOW), Timestamp::MIN);
    let overdue = format!("{}: {KIND}", readiness::not_within(readiness::DEADLINE));
    for (readiness, found, since, expected) in [
        (Readiness::Ready, false, early, (State::Processing, KIND.to_owned())),
        (processing(), false, early, (State::Processing, KIND.to_owned())),
        (
            pull(),
            true,
            early,
            (State::Processing, format!("{KIND}; {DEPLOYMENT}: its image cannot be pulled")),
        ),
        (error(), false, early, (State::Error, format!("it makes no progress; {KIND}"))),
        (error(), false, late, (State::Error, format!("it makes no progress; {KIND}"))),
        (Readiness::Ready, true, late, (State::Error, overdue.clone())),
        (pull(), true, late, (State::Error, overdue.clone())),
    ] {
        let present = if since == early { "" } else { overdue.as_str() };
        let (manifest, cr) = (manifest("Processing", present), no_cr());
        let searched = CauseSearch { found, recheck_at: None };
        let wait = Outcome::recheck_soon(KIND.into());
        let verdict = conclude_incomplete(&status(&manifest, &cr), readiness, searched, KIND, wait);
        assert_eq!(written(&verdict), expected);
        let deadline = (since == early).then(|| at(NOW) + readiness::DEADLINE);
        assert!(verdict.outcome.has_pace(if since == early { RECHECK_SOON } else { RECHECK_RARELY }));
        assert!(verdict.outcome.due.is_none() || verdict.outcome.due == deadline);
    }
}

#[test]
fn a_new_waiting_reason_starts_its_own_deadline() {
    const LATE: &str = "not ready within 60 s";
    let since = |operation| waiting_since(&manifest("Error", operation), "waiting for a", LATE, at(NOW));
    for (operation, expected, why) in [
        ("the registry does not answer", at(NOW), "another trouble"),
        ("waiting for b", at(NOW), "another step"),
        ("waiting for a; Deployment a/b: its image cannot be pulled", at(60), "the present step"),
        ("not ready within 60 s: waiting for a", Timestamp::MIN, "an error stays one"),
    ] {
        assert_eq!(since(operation), expected, "{why}");
    }
    let mut forged = manifest("Processing", "waiting for a");
    for last in [Timestamp::MAX, at(NOW + 1)] {
        let operation = forged.status.as_mut().unwrap().last_operation.as_mut().unwrap();
        operation.last_update_time = Some(last.into());
        assert_eq!(waiting_since(&forged, "waiting for a", LATE, at(NOW)), at(NOW));
    }
}

#[test]
fn a_terminating_namespace_delays_its_objects_alone() {
    let (manifest, cr) = (manifest("Processing", ""), no_cr());
    let status = status(&manifest, &cr);
    let skipped = [object("n"), object("n")];
    let namespace = |long_at: Option<i64>, is_read| NamespaceFound {
        name: "n".into(),
        terminating: long_at
            .map(|second| Terminating { message: "n ends".into(), overdue_at: Some(at(second)) }),
        is_read,
    };
    let waits = || Outcome::waiting(String::new());
    for (found, rest, has_events, state, ends) in [
        (namespace(Some(NOW + 9), true), waits(), true, State::Processing, "waits"),
        (namespace(Some(NOW - 9), true), waits(), true, State::Warning, "waits"),
        (namespace(None, true), waits(), true, State::Processing, "soon"),
        (namespace(Some(NOW + 9), true), waits(), false, State::Processing, "rarely"),
        (namespace(None, false), waits(), true, State::Processing, "rarely"),
        (namespace(None, true), Outcome::recheck_soon(String::new()), true, State::Processing, "rarely"),
    ] {
        let is_soon_long = found.terminating.as_ref().and_then(|t| t.overdue_at).is_some_and(|t| t > at(NOW));
        let verdict = conclude_terminating(&status, &skipped, &[found], &[], &rest, has_events);
        let (written_state, message) = written(&verdict);
        assert_eq!(written_state, state);
        assert!(
            message.ends_with("and 1 more objects wait for its end; everything else goes on"),
            "{message}"
        );
        assert_eq!(verdict.may_delay, state == State::Processing);
        let outcome = verdict.outcome;
        let ended = match outcome.next {
            Next::OnEvent => "waits",
            _ if outcome.has_pace(RECHECK_SOON) => "soon",
            _ => "rarely",
        };
        assert_eq!(ended, ends);
        assert_eq!(outcome.due, is_soon_long.then(|| at(NOW + 9)));
    }
}

#[test]
fn a_delayed_status_makes_the_manifest_due() {
    const LEFT: Duration = Duration::from_secs(5);
    let waits = || Outcome::waiting("for a kind".into());
    assert_eq!(due_with_status(waits(), LEFT, at(NOW)), Outcome::after(LEFT, "for a kind".into()));
    let soon = || Outcome::recheck_soon("w".into());
    assert_eq!(due_with_status(soon(), LEFT, at(NOW)), soon());
    let rarely = due_with_status(Outcome::recheck_rarely("w".into()), LEFT, at(NOW));
    assert_eq!(rarely.due, Some(at(NOW + 5)));
}
