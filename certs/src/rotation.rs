//! Rotation of the CA without a failed handshake. Pure.
//!
//! 1. *Publishing*: the next CA is published beside the present one. The present CA signs, until all agents have proven that they trust
//!    the next one, or the patience ends: an absent runtime does not block the rotation.
//! 2. *Retiring*: the next CA is the CA. The replaced CA is trusted as long as a certificate that it signed may be valid. Agents renew
//!    theirs meanwhile.
//!
//! Each step is one write, so a crash repeats or keeps a step.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::Validity;

/// The step of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// One CA.
    Stable,
    /// The next CA is trusted, but does not sign yet.
    Publishing,
    /// The replaced CA is trusted, but does not sign any more.
    Retiring,
}

impl Step {
    /// All steps.
    pub const ALL: [Self; 3] = [Self::Stable, Self::Publishing, Self::Retiring];

    /// One lower-case word for pages and metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::Publishing => "publishing",
            Self::Retiring => "retiring",
        }
    }
}

/// State of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// The step.
    pub step: Step,
    /// Start of the step.
    pub since: Timestamp,
    /// Validity of the CA that signs.
    pub ca: Validity,
    /// Whether an operator has requested a rotation.
    pub requested: bool,
}

/// Limits of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest time in [`Step::Publishing`].
    pub patience: SignedDuration,
    /// Lifetime of the certificates that the CA signs for agents, the longest of all that are renewed during [`Step::Retiring`].
    pub agents: SignedDuration,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing until this time at the latest.
    Wait(Timestamp),
    /// Create and publish the next CA.
    Publish,
    /// Sign by the next CA.
    Switch,
    /// Drop the replaced CA.
    Retire,
    /// Begin with a new CA: the present one has ended, so no certificate is valid any more.
    Replace,
}

impl Limits {
    /// Shortest lifetime of a CA: in each third of it, a rotation comes to its end. So the next one neither begins during it, nor comes too
    /// late.
    #[must_use]
    pub fn shortest_ca(self) -> SignedDuration {
        (self.patience + self.agents) * 3
    }
}

impl Rotation {
    /// Decides the next action. `trusted`: all agents trust the published CA.
    #[must_use]
    pub fn next(&self, trusted: bool, limits: Limits, now: Timestamp) -> Action {
        match self.step {
            Step::Stable | Step::Retiring if now >= self.ca.not_after => Action::Replace,
            Step::Stable => {
                let due = renewal(self.ca);
                if self.requested || now >= due { Action::Publish } else { Action::Wait(due) }
            }
            Step::Publishing => {
                let end = later(self.since, limits.patience).min(self.ca.not_after);
                if trusted || now >= end { Action::Switch } else { Action::Wait(end) }
            }
            Step::Retiring => {
                // A request that is signed at the moment of the switch.
                let margin = limits.agents.as_secs() / 10;
                let end = later(self.since, limits.agents + SignedDuration::from_secs(margin));
                if now >= end { Action::Retire } else { Action::Wait(end) }
            }
        }
    }

    /// End of the step, if none of its conditions is met before.
    #[must_use]
    pub fn deadline(&self, limits: Limits) -> Option<Timestamp> {
        match self.next(false, limits, Timestamp::MIN) {
            Action::Wait(until) => Some(until),
            Action::Publish | Action::Switch | Action::Retire | Action::Replace => None,
        }
    }
}

/// Two thirds of the lifetime: the time to renew a certificate.
#[must_use]
pub fn renewal(Validity { not_before, not_after }: Validity) -> Timestamp {
    let lifetime = not_after.duration_since(not_before).as_secs();
    later(not_before, SignedDuration::from_secs(lifetime / 3 * 2)).min(not_after)
}

fn later(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// The time until a later one; zero if it has passed.
#[must_use]
pub fn until(later: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(later.duration_since(now)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: SignedDuration = SignedDuration::from_hours(24);
    const LIMITS: Limits = Limits { patience: DAY, agents: DAY.checked_mul(7).unwrap() };

    fn start() -> Timestamp {
        "2026-11-21T10:00:00Z".parse().unwrap()
    }

    fn rotation(step: Step) -> Rotation {
        let ca = Validity { not_before: start(), not_after: start() + DAY * 900 };
        Rotation { step, since: start(), ca, requested: false }
    }

    #[test]
    fn a_ca_is_rotated_at_two_thirds_of_its_lifetime_or_on_request() {
        let stable = rotation(Step::Stable);
        assert_eq!(stable.next(false, LIMITS, start()), Action::Wait(start() + DAY * 600));
        assert_eq!(stable.next(false, LIMITS, start() + DAY * 600), Action::Publish);
        let requested = Rotation { requested: true, ..stable };
        assert_eq!(requested.next(false, LIMITS, start()), Action::Publish);
    }

    #[test]
    fn the_next_ca_signs_once_all_agents_trust_it_or_the_patience_ends() {
        let publishing = rotation(Step::Publishing);
        assert_eq!(publishing.next(false, LIMITS, start()), Action::Wait(start() + DAY));
        assert_eq!(publishing.next(true, LIMITS, start()), Action::Switch);
        assert_eq!(publishing.next(false, LIMITS, start() + DAY), Action::Switch, "an absent runtime");
        let ending = Rotation { ca: Validity { not_before: start(), not_after: start() }, ..publishing };
        assert_eq!(ending.next(false, LIMITS, start()), Action::Switch, "a CA at its end signs nothing");
    }

    #[test]
    fn a_ca_that_has_ended_is_replaced_at_once() {
        for step in [Step::Stable, Step::Retiring] {
            let rotation = rotation(step);
            let end = rotation.ca.not_after;
            assert_ne!(rotation.next(false, LIMITS, end - DAY), Action::Replace);
            assert_eq!(rotation.next(false, LIMITS, end), Action::Replace, "{step:?}");
        }
    }

    #[test]
    fn rotations_of_the_shortest_allowed_ca_do_not_overlap() {
        let (mut now, mut rotation) = (start(), rotation(Step::Stable));
        let valid = |from| Validity { not_before: from, not_after: from + LIMITS.shortest_ca() };
        let (mut next, mut rotations) = (valid(now), 0);
        rotation.ca = valid(now);
        while rotations < 3 {
            match rotation.next(false, LIMITS, now) {
                Action::Wait(until) => now = until,
                Action::Publish => {
                    next = valid(now);
                    rotation = Rotation { step: Step::Publishing, since: now, ..rotation };
                }
                Action::Switch => {
                    assert!(now < rotation.ca.not_after, "the replaced CA is valid at the switch");
                    rotation = Rotation { step: Step::Retiring, since: now, ca: next, requested: false };
                }
                Action::Retire => {
                    assert!(now <= renewal(rotation.ca), "the next rotation is not due yet");
                    rotation = Rotation { step: Step::Stable, since: now, ..rotation };
                    rotations += 1;
                }
                Action::Replace => panic!("a CA has ended"),
            }
        }
    }

    #[test]
    fn a_replaced_ca_is_trusted_as_long_as_its_certificates_live() {
        let retiring = Rotation { requested: true, ..rotation(Step::Retiring) };
        let end = start() + LIMITS.agents + LIMITS.agents / 10;
        assert_eq!(retiring.next(true, LIMITS, start() + DAY * 7), Action::Wait(end));
        assert_eq!(
            retiring.next(false, LIMITS, end),
            Action::Retire,
            "a request waits for the next rotation"
        );
        assert_eq!(retiring.deadline(LIMITS), Some(end));
    }
}
