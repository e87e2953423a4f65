//! What few seeds show, or one has shown, step by step.

use tidewatch_sim::{Counts, Do, Do::*, Failure, Mistake, follow};

fn holds(script: &[Do]) -> Counts {
    match follow(script, None).unwrap() {
        Ok(report) => report.counts,
        Err(failure) => panic!("{failure}"),
    }
}

fn fails(script: &[Do], mistake: Mistake) -> Failure {
    follow(script, Some(mistake)).unwrap().unwrap_err()
}

#[test]
fn a_failure_that_a_restored_control_plane_has_forgotten_is_found_by_the_mark() {
    // The backup is from the session that goes on after it. Until the restore, its mark has risen and the agent knows.
    let script =
        [Rest, Put(1), Rest, Wait(90), BackUp, Fail(true), Put(1), Wait(150), Fail(false), Restore, Rest];
    assert_eq!(holds(&script).beyond, 3, "all agents have heard of it");
    let failure = fails(&script, Mistake::MarksAreIgnored);
    assert!(failure.what.contains("(0, 1): 2 changes, Manifest/m1 has seen 1"), "{failure}");
}

#[test]
fn a_failure_is_tried_again_by_the_next_receiver() {
    // The number is let go when the failure is persisted: nobody else knows of it.
    let script = [Rest, Put(1), Rest, Fail(true), Put(1), Wait(5), KillReceivers, Fail(false), Rest];
    holds(&script);
    let failure = fails(&script, Mistake::FailuresAreForgotten);
    assert!(failure.what.contains("(0, 1): 2 changes, Manifest/m1 has seen 1"), "{failure}");
}

#[test]
fn a_name_is_stored_before_the_other_manager_is_told() {
    let script = [Rest, Put(7), Wait(5), KillAgent, Delete(7), Rest];
    holds(&script);
    let failure = fails(&script, Mistake::NamesAreStoredLate);
    assert!(failure.what.contains("(0, 7): 2 changes, its manager was told of 1"), "{failure}");
}

#[test]
fn the_end_of_what_was_not_seen_to_come_is_told() {
    let script =
        [Rest, Swallow(true), Put(1), Wait(1), Swallow(false), Reconcile(1), Wait(3), Delete(1), Rest];
    assert_eq!(holds(&script).unnoticed, 0);
}

#[test]
fn what_nobody_was_told_of_is_not_asked_for_until_the_next_list() {
    let swallowed = [Rest, Swallow(true), Put(1), Wait(1), Reconcile(1), Wait(3), Delete(1), Wait(1)];
    let then = |more: &[Do]| holds(&[&swallowed, more].concat()).unnoticed;
    assert_eq!(then(&[Swallow(false), Rest]), 1, "a reconcile for another cause has seen it");
    assert_eq!(then(&[Swallow(false), Put(1), Wait(1), Delete(1), Rest]), 0, "this was told");
    assert_eq!(then(&[Swallow(false), Reconcile(1), Rest]), 0);
}

#[test]
fn a_swallowed_end_is_found_by_a_list_beside_the_watch() {
    let script = [Rest, Put(1), Rest, Swallow(true), Delete(1), Wait(1), Swallow(false), Rest];
    assert_eq!(holds(&script).unnoticed, 0);
    let failure = fails(&script, Mistake::WatchesAreTrusted);
    assert!(failure.what.contains("(0, 1): 2 changes, Manifest/m1 has seen 1"), "{failure}");
}
