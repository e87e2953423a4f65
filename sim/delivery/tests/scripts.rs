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
fn a_failure_that_a_restored_control_plane_has_forgotten_is_found_by_the_mark() {
    // The agents know a later mark of the same session.
    let script =
        [Rest, Put(1), Rest, Wait(90), BackUp, Fail(true), Put(1), Wait(150), Fail(false), Restore, Rest];
    assert_eq!(played(&script, None).unwrap().unwrap().beyond, 3, "all agents know the later mark");
    let failure = played(&script, Some(Mistake::MarksAreIgnored)).unwrap().unwrap_err();
    assert!(failure.0.violation.contains("(0, 1): 2 changes, Manifest/m1 has seen 1"), "{failure:?}");
}

#[test]
fn a_failure_is_tried_again_by_the_next_receiver() {
    // The event is acknowledged: only the persisted failure remains.
    let script = [Rest, Put(1), Rest, Fail(true), Put(1), Wait(5), KillReceivers, Fail(false), Rest];
    played(&script, None).unwrap().unwrap();
    let failure = played(&script, Some(Mistake::FailuresAreForgotten)).unwrap().unwrap_err();
    assert!(failure.0.violation.contains("(0, 1): 2 changes, Manifest/m1 has seen 1"), "{failure:?}");
}

#[test]
fn a_name_is_stored_before_the_other_manager_is_told() {
    let script = [Rest, Put(7), Wait(5), KillAgent, Delete(7), Rest];
    played(&script, None).unwrap().unwrap();
    let failure = played(&script, Some(Mistake::NamesAreStoredLate)).unwrap().unwrap_err();
    assert!(failure.0.violation.contains("(0, 7): 2 changes, its manager was notified of 1"), "{failure:?}");
}

#[test]
fn the_end_of_what_was_not_seen_to_come_is_told() {
    let script =
        [Rest, Swallow(true), Put(1), Wait(1), Swallow(false), Reconcile(1), Wait(3), Delete(1), Rest];
    assert_eq!(played(&script, None).unwrap().unwrap().unnoticed, 0);
}

#[test]
fn what_nobody_was_told_of_is_not_asked_for_until_the_next_list() {
    let swallowed = [Rest, Swallow(true), Put(1), Wait(1), Reconcile(1), Wait(3), Delete(1), Wait(1)];
    let then = |more: &[Do]| played(&[&swallowed, more].concat(), None).unwrap().unwrap().unnoticed;
    assert_eq!(then(&[Swallow(false), Rest]), 1, "a reconcile for another cause has seen it");
    assert_eq!(then(&[Swallow(false), Put(1), Wait(1), Delete(1), Rest]), 0, "this was reported");
    assert_eq!(then(&[Swallow(false), Reconcile(1), Rest]), 0);
}

#[test]
fn a_swallowed_end_is_found_by_a_list_beside_the_watch() {
    let script = [Rest, Put(1), Rest, Swallow(true), Delete(1), Wait(1), Swallow(false), Rest];
    assert_eq!(played(&script, None).unwrap().unwrap().unnoticed, 0);
    let failure = played(&script, Some(Mistake::WatchesAreTrusted)).unwrap().unwrap_err();
    assert!(failure.0.violation.contains("(0, 1): 2 changes, Manifest/m1 has seen 1"), "{failure:?}");
}
