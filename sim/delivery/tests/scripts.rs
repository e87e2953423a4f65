//! Scripts for rare bugs and regressions.

use std::fmt;

use tidewatch_delivery_sim::{
    Counts,
    Do::{self, *},
    Failure, Mistake, follow,
};

struct Broken(Failure);

impl fmt::Debug for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

fn played(script: &[Do], mistake: Option<Mistake>) -> anyhow::Result<Result<Counts, Broken>> {
    Ok(follow(script, mistake)?.map(|report| report.counts).map_err(Broken))
}

#[test]
fn the_mark_finds_a_failure_forgotten_by_a_restore() {
    // The agents know a later mark of the same session.
    let script =
        [Rest, Put(1), Rest, Wait(90), BackUp, Fail(true), Put(1), Wait(150), Fail(false), Restore, Rest];
    assert_eq!(played(&script, None).unwrap().unwrap().beyond, 3, "all agents know the later mark");
    let failure = played(&script, Some(Mistake::MarksAreIgnored)).unwrap().unwrap_err();
    assert!(failure.0.violation.contains("(0, 1): 2 changes, Manifest/m1 has seen 1"), "{failure:?}");
}

#[test]
fn a_failure_is_retried_by_the_next_receiver() {
    // The event is acknowledged: only the persisted failure remains.
    let script = [Rest, Put(1), Rest, Fail(true), Put(1), Wait(5), KillReceivers, Fail(false), Rest];
    played(&script, None).unwrap().unwrap();
    let failure = played(&script, Some(Mistake::FailuresAreForgotten)).unwrap().unwrap_err();
    assert!(failure.0.violation.contains("(0, 1): 2 changes, Manifest/m1 has seen 1"), "{failure:?}");
}

#[test]
fn names_are_stored_before_notifying_other_managers() {
    let script = [Rest, Put(7), Wait(5), KillAgent, Delete(7), Rest];
    played(&script, None).unwrap().unwrap();
    let failure = played(&script, Some(Mistake::NamesAreStoredLate)).unwrap().unwrap_err();
    assert!(failure.0.violation.contains("(0, 7): 2 changes, its manager was notified of 1"), "{failure:?}");
}

#[test]
fn a_deletion_after_a_lost_creation_is_reported() {
    let script =
        [Rest, Swallow(true), Put(1), Wait(1), Swallow(false), Reconcile(1), Wait(3), Delete(1), Rest];
    assert_eq!(played(&script, None).unwrap().unwrap().unnoticed, 0);
}

#[test]
fn a_lost_creation_and_deletion_awaits_the_next_list() {
    let swallowed = [Rest, Swallow(true), Put(1), Wait(1), Reconcile(1), Wait(3), Delete(1), Wait(1)];
    let then = |more: &[Do]| played(&[&swallowed, more].concat(), None).unwrap().unwrap().unnoticed;
    assert_eq!(then(&[Swallow(false), Rest]), 1, "a reconcile for another cause has seen it");
    assert_eq!(then(&[Swallow(false), Put(1), Wait(1), Delete(1), Rest]), 0, "this was reported");
    assert_eq!(then(&[Swallow(false), Reconcile(1), Rest]), 0);
}

#[test]
fn a_lost_deletion_is_found_by_the_check_list() {
    let script = [Rest, Put(1), Rest, Swallow(true), Delete(1), Wait(1), Swallow(false), Rest];
    assert_eq!(played(&script, None).unwrap().unwrap().unnoticed, 0);
    let failure = played(&script, Some(Mistake::WatchesAreTrusted)).unwrap().unwrap_err();
    assert!(failure.0.violation.contains("(0, 1): 2 changes, Manifest/m1 has seen 1"), "{failure:?}");
}
