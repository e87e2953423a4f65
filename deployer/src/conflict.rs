//! Conflicts with other field managers. Endless writes end by suspending the object and reporting the manager.

use std::time::Duration;

use jiff::Timestamp;

/// Reverts that suspend an object. Users cause fewer; a controller writing every two minutes reaches it in an hour.
pub const TIMES: usize = 30;
/// Window of [`TIMES`]. Changes every half an hour reach it.
pub const WITHIN: Duration = Duration::from_hours(24);
/// Time between suspension and next revert.
pub const PAUSE: Duration = Duration::from_mins(10);
/// Time without change that ends a conflict.
pub const TRIAL: Duration = Duration::from_mins(1);

/// Last reverts to one content, at most [`TIMES`], the newest last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conflict(Vec<Timestamp>);

/// Decision about a revert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevertDecision {
    /// Revert.
    Go,
    /// Wait until this time.
    Suspended(Timestamp),
}

impl Conflict {
    /// Decides about a revert. A suspension lasts [`PAUSE`] at most, even if the clock was set back.
    #[must_use]
    pub fn verdict(&self, now: Timestamp) -> RevertDecision {
        match self.last(now).map(|at| at + PAUSE) {
            Some(until) if until > now && until <= now + PAUSE => RevertDecision::Suspended(until),
            _ => RevertDecision::Go,
        }
    }

    /// Returns the trial's end after a suspension.
    #[must_use]
    pub fn on_trial(&self, now: Timestamp) -> Option<Timestamp> {
        let until = self.last(now)? + TRIAL;
        (until > now && until <= now + TRIAL).then_some(until)
    }

    /// `None` with fewer than [`TIMES`] reverts in the window.
    fn last(&self, now: Timestamp) -> Option<Timestamp> {
        let [oldest, .., newest] = self.0.as_slice() else { return None };
        (self.0.len() == TIMES && now < *oldest + WITHIN).then_some(*newest)
    }

    /// Records a revert.
    #[must_use]
    pub fn reverted(&self, now: Timestamp) -> Self {
        let oldest = (self.0.len() + 1).saturating_sub(TIMES);
        Self(self.0.iter().skip(oldest).copied().chain([now]).collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64) -> Timestamp {
        "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + Duration::from_secs(seconds)
    }

    #[test]
    fn reverts_are_limited_and_then_tried_once_per_pause() {
        let mut conflict = Conflict::default();
        for second in 0..30 {
            assert_eq!(
                (conflict.verdict(at(second)), conflict.on_trial(at(second))),
                (RevertDecision::Go, None)
            );
            conflict = conflict.reverted(at(second));
        }
        assert_eq!(conflict.verdict(at(30)), RevertDecision::Suspended(at(629)));
        assert_eq!(conflict.verdict(at(629)), RevertDecision::Go);
        conflict = conflict.reverted(at(629));
        assert_eq!(conflict.on_trial(at(640)), Some(at(689)));
        assert_eq!(
            conflict.verdict(at(640)),
            RevertDecision::Suspended(at(1229)),
            "the other one is still there"
        );
        assert_eq!(conflict.on_trial(at(689)), None, "it has stayed so");
        let hours = |hours: u64| at(hours * 3600);
        assert_eq!(conflict.verdict(hours(25)), RevertDecision::Go);
        assert_eq!(conflict.reverted(hours(25)).verdict(hours(25)), RevertDecision::Go, "it begins anew");
        assert_eq!(conflict.verdict(at(0)), RevertDecision::Go, "a clock that was set back");
    }

    #[test]
    fn frequent_conflicts_are_suspended_and_rare_edits_are_not() {
        for (minutes, noticed) in [(3, true), (10, true), (45, true), (60, false)] {
            let mut conflict = Conflict::default();
            let suspended = (0..200).any(|round| {
                let now = at(round * minutes * 60);
                let verdict = conflict.verdict(now);
                conflict = conflict.reverted(now);
                // On trial at the exact end.
                verdict != RevertDecision::Go || conflict.on_trial(now).is_some()
            });
            assert_eq!(suspended, noticed, "every {minutes} min");
        }
    }

    proptest! {
        #[test]
        fn no_sequence_exceeds_the_revert_rate(gaps in prop::collection::vec(0_u64..900, 1..400)) {
            let (mut now, mut conflict, mut went) = (at(0), Conflict::default(), Vec::new());
            for gap in gaps {
                now += Duration::from_secs(gap);
                if conflict.verdict(now) == RevertDecision::Go {
                    conflict = conflict.reverted(now);
                    went.push(now);
                }
            }
            for window in went.windows(TIMES + 1) {
                let (oldest, last, next) = (window[0], window[TIMES - 1], window[TIMES]);
                prop_assert!(next >= oldest + WITHIN || next >= last + PAUSE);
            }
        }
    }
}
