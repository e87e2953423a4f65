//! Mistakes that the model must find; otherwise it would prove nothing.

use super::{
    checked::{HOLDS, RESTS, SAFE, check},
    rules::Mutation::{self, *},
    scenarios::*,
};

const ACKNOWLEDGES_TOO_EARLY: &[&str] = &[SAFE];
const NEVER_ACKNOWLEDGES: &[&str] = &[RESTS];

/// Mistake, checked property, and a world that breaks it. `RESTS` looks ahead and would catch most early releases, but
/// `SAFE` observes them.
pub(crate) const FOUND: &[(Mutation, &[&str], &Scenario)] = &[
    (AcknowledgeByMaximum, ACKNOWLEDGES_TOO_EARLY, &SUSPENDED),
    (NoEpochCheck, ACKNOWLEDGES_TOO_EARLY, &AGENT_CRASHES_AND_A_FAULT),
    (EpochsShareOneAccount, ACKNOWLEDGES_TOO_EARLY, &AGENT_CRASHES_AND_A_FAULT),
    (AcknowledgeOnReceipt, ACKNOWLEDGES_TOO_EARLY, &REORDERED),
    (AcknowledgeAtTheStart, ACKNOWLEDGES_TOO_EARLY, &REORDERED),
    (AcknowledgedByTheAnswer, ACKNOWLEDGES_TOO_EARLY, &REORDERED),
    (DroppedGuardAcknowledges, ACKNOWLEDGES_TOO_EARLY, &ONE_FAULT),
    (FailedWorkAcknowledges, ACKNOWLEDGES_TOO_EARLY, &ONE_FAULT),
    (SameNumberAfterAChange, ACKNOWLEDGES_TOO_EARLY, &REORDERED),
    (OneRouteReleasesAll, ACKNOWLEDGES_TOO_EARLY, &TWO_ROUTES),
    (UnknownIsDone, ACKNOWLEDGES_TOO_EARLY, &RECEIVER_CRASHES),
    (EventJoinsRunningWork, ACKNOWLEDGES_TOO_EARLY, &REORDERED),
    (EventOfRunningWorkIsDone, ACKNOWLEDGES_TOO_EARLY, &REORDERED),
    (StaleRead, ACKNOWLEDGES_TOO_EARLY, &REORDERED),
    (FirstListIsNotReported, ACKNOWLEDGES_TOO_EARLY, &AGENT_CRASHES),
    (DroppedGuardIsSilent, NEVER_ACKNOWLEDGES, &ONE_FAULT),
    (FailedWorkForgetsItsGuards, NEVER_ACKNOWLEDGES, &ONE_FAULT),
    (MergedWorkLosesItsGuard, NEVER_ACKNOWLEDGES, &REORDERED),
    (UnknownIsIgnored, NEVER_ACKNOWLEDGES, &RECEIVER_CRASHES),
    (NothingIsSentAgain, NEVER_ACKNOWLEDGES, &RECEIVER_CRASHES),
    (FailedRequestIsForgotten, NEVER_ACKNOWLEDGES, &ONE_FAULT),
    (LedgerSurvivesItsQueue, NEVER_ACKNOWLEDGES, &RECEIVER_CRASHES),
    (LedgerSurvivesInANewSession, NEVER_ACKNOWLEDGES, &RECEIVER_CRASHES),
    (StopAndWait, NEVER_ACKNOWLEDGES, &SUSPENDED),
    (PollNamesTheHighest, NEVER_ACKNOWLEDGES, &SUSPENDED),
    (InOrderAcknowledgements, NEVER_ACKNOWLEDGES, &SUSPENDED),
    (AllRoutesOrNone, NEVER_ACKNOWLEDGES, &SUSPENDED),
];

#[test]
fn every_mistake_is_found() {
    for (mutation, asked, scenario) in FOUND {
        let found = check(scenario.bounds, Some(*mutation), asked);
        let (property, path) = found.violation.unwrap_or_else(|| {
            panic!("{mutation:?} keeps {asked:?} in all {} states of {}", found.states, scenario.name)
        });
        println!("{mutation:?}, {}: {} steps, {} states", scenario.name, path.len(), found.states);
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
fn a_second_safeguard_tolerates_the_other_mistakes() {
    for (mutation, scenario) in TOLERATED {
        let found = check(scenario.bounds, Some(*mutation), HOLDS);
        println!("{mutation:?}, {}: all {} states", scenario.name, found.states);
        assert_eq!(found.violation, None, "{mutation:?}, {}", scenario.name);
        assert!(found.complete, "{mutation:?}, {}", scenario.name);
        assert!(found.never.is_empty(), "{mutation:?}, {}: never {:?}", scenario.name, found.never);
    }
}
