//! Mistakes that the model must find; otherwise it would prove nothing.

use super::{
    checked::{HOLDS, RESTS, SAFE, check},
    rules::Mutation::{self, *},
    scenarios::*,
};

const LETS_GO_TOO_EARLY: &[&str] = &[SAFE];
const NEVER_LETS_GO: &[&str] = &[RESTS];

/// Mistake, checked property, and a world that breaks it. `RESTS` looks ahead and would catch most early releases, but
/// `SAFE` observes them.
pub(crate) const FOUND: &[(Mutation, &[&str], &Scenario)] = &[
    (AcknowledgeByMaximum, LETS_GO_TOO_EARLY, &PARKED),
    (NoEpochCheck, LETS_GO_TOO_EARLY, &AGENT_CRASHES_AND_A_FAULT),
    (EpochsShareOneAccount, LETS_GO_TOO_EARLY, &AGENT_CRASHES_AND_A_FAULT),
    (AcknowledgeOnReceipt, LETS_GO_TOO_EARLY, &REORDERED),
    (AcknowledgeAtTheStart, LETS_GO_TOO_EARLY, &REORDERED),
    (AcknowledgedByTheAnswer, LETS_GO_TOO_EARLY, &REORDERED),
    (DroppedGuardAcknowledges, LETS_GO_TOO_EARLY, &ONE_FAULT),
    (FailedWorkAcknowledges, LETS_GO_TOO_EARLY, &ONE_FAULT),
    (SameNumberAfterAChange, LETS_GO_TOO_EARLY, &REORDERED),
    (OneRouteReleasesAll, LETS_GO_TOO_EARLY, &TWO_ROUTES),
    (UnknownIsDone, LETS_GO_TOO_EARLY, &RECEIVER_CRASHES),
    (EventJoinsRunningWork, LETS_GO_TOO_EARLY, &REORDERED),
    (EventOfRunningWorkIsDone, LETS_GO_TOO_EARLY, &REORDERED),
    (StaleRead, LETS_GO_TOO_EARLY, &REORDERED),
    (FirstListIsNotReported, LETS_GO_TOO_EARLY, &AGENT_CRASHES),
    (DroppedGuardIsSilent, NEVER_LETS_GO, &ONE_FAULT),
    (FailedWorkForgetsItsGuards, NEVER_LETS_GO, &ONE_FAULT),
    (MergedWorkLosesItsGuard, NEVER_LETS_GO, &REORDERED),
    (UnknownIsIgnored, NEVER_LETS_GO, &RECEIVER_CRASHES),
    (NothingIsSentAgain, NEVER_LETS_GO, &RECEIVER_CRASHES),
    (FailedRequestIsForgotten, NEVER_LETS_GO, &ONE_FAULT),
    (LedgerSurvivesItsQueue, NEVER_LETS_GO, &RECEIVER_CRASHES),
    (LedgerSurvivesInANewSession, NEVER_LETS_GO, &RECEIVER_CRASHES),
    (StopAndWait, NEVER_LETS_GO, &PARKED),
    (PollNamesTheHighest, NEVER_LETS_GO, &PARKED),
    (InOrderAcknowledgements, NEVER_LETS_GO, &PARKED),
    (AllRoutesOrNone, NEVER_LETS_GO, &PARKED),
];

#[test]
fn every_mistake_is_found() {
    for (mutation, asked, scenario) in FOUND {
        let found = check(scenario.bounds, Some(*mutation), asked);
        let (property, way) = found.violation.unwrap_or_else(|| {
            panic!("{mutation:?} keeps {asked:?} in all {} states of {}", found.states, scenario.name)
        });
        println!("{mutation:?}, {}: {} steps, {} states", scenario.name, way.len(), found.states);
        assert_eq!(&[property], asked, "{mutation:?}");
    }
}

/// Mistakes caught by a second safeguard: each poll asks about every sent number, and the receiver reports unknown
/// ones.
///
/// This covers an unnoticed session and a failed request that is not returned. Handling them saves only a round trip.
const TOLERATED: &[(Mutation, &Scenario)] = &[
    (SessionIsIgnored, &TWO_RECEIVERS),
    (SessionIsIgnored, &RECEIVER_CRASHES),
    (CrashKeepsTheSession, &RECEIVER_CRASHES),
    (FailedRequestIsNotPutBack, &TWO_FAULTS),
    (FailedRequestIsNotPutBack, &AGENT_CRASHES_AND_A_FAULT),
];

#[test]
fn a_second_safeguard_catches_the_rest() {
    for (mutation, scenario) in TOLERATED {
        let found = check(scenario.bounds, Some(*mutation), HOLDS);
        println!("{mutation:?}, {}: all {} states", scenario.name, found.states);
        assert_eq!(found.violation, None, "{mutation:?}, {}", scenario.name);
        assert!(found.complete, "{mutation:?}, {}", scenario.name);
        assert!(found.never.is_empty(), "{mutation:?}, {}: never {:?}", scenario.name, found.never);
    }
}
