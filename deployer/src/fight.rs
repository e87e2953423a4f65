//! A field that somebody else keeps changing back. Both sides would write for ever; the engine stops first, and says who it is.

use std::time::Duration;

use jiff::Timestamp;

/// Times that an object is set back within [`WITHIN`] before it is left alone: more than people do, and few enough for a controller
/// that looks at it every few minutes to be noticed within the hour.
pub const TIMES: usize = 30;
/// The time in which they count: who comes every half an hour is noticed on the same day.
pub const WITHIN: Duration = Duration::from_hours(24);
/// For how long an object is left alone before it is set back once more.
pub const PAUSE: Duration = Duration::from_mins(10);
/// For how long an object has to stay as it was set back, for the other one to count as gone.
pub const TRIAL: Duration = Duration::from_mins(1);

/// When an object was last set back to the same content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fight([Option<Timestamp>; TIMES]);

impl Default for Fight {
    fn default() -> Self {
        Self([None; TIMES])
    }
}

/// Whether an object is set back now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Yes.
    Go,
    /// Not before then.
    Parked(Timestamp),
}

impl Fight {
    /// Whether it may be set back at this time. A clock that was set back does not park it for longer than [`PAUSE`].
    #[must_use]
    pub fn verdict(&self, now: Timestamp) -> Verdict {
        match self.last(now).map(|at| at + PAUSE) {
            Some(until) if until > now && until <= now + PAUSE => Verdict::Parked(until),
            _ => Verdict::Go,
        }
    }

    /// Until when it has to stay as it is, if it was set back after it had been left alone.
    #[must_use]
    pub fn on_trial(&self, now: Timestamp) -> Option<Timestamp> {
        let until = self.last(now)? + TRIAL;
        (until > now && until <= now + TRIAL).then_some(until)
    }

    /// When it was last set back, if that was too often.
    fn last(&self, now: Timestamp) -> Option<Timestamp> {
        let [Some(oldest), .., Some(newest)] = self.0 else { return None };
        (now < oldest + WITHIN).then_some(newest)
    }

    /// It was set back.
    #[must_use]
    pub fn fought(mut self, now: Timestamp) -> Self {
        self.0.rotate_left(1);
        self.0[TIMES - 1] = Some(now);
        self
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
    fn so_many_times_and_then_once_after_each_pause() {
        let mut fight = Fight::default();
        for second in 0..30 {
            assert_eq!((fight.verdict(at(second)), fight.on_trial(at(second))), (Verdict::Go, None));
            fight = fight.fought(at(second));
        }
        assert_eq!(fight.verdict(at(30)), Verdict::Parked(at(629)));
        assert_eq!(fight.verdict(at(629)), Verdict::Go);
        fight = fight.fought(at(629));
        assert_eq!(fight.on_trial(at(640)), Some(at(689)));
        assert_eq!(fight.verdict(at(640)), Verdict::Parked(at(1229)), "the other one is still there");
        assert_eq!(fight.on_trial(at(689)), None, "it has stayed so");
        let hours = |hours: u64| at(hours * 3600);
        assert_eq!(fight.verdict(hours(25)), Verdict::Go);
        assert_eq!(fight.fought(hours(25)).verdict(hours(25)), Verdict::Go, "it begins anew");
        assert_eq!(fight.verdict(at(0)), Verdict::Go, "a clock that was set back");
    }

    #[test]
    fn who_comes_every_few_minutes_is_noticed_and_who_edits_now_and_then_is_not() {
        for (minutes, noticed) in [(3, true), (10, true), (45, true), (60, false)] {
            let mut fight = Fight::default();
            let parked = (0..200).any(|round| {
                let now = at(round * minutes * 60);
                let verdict = fight.verdict(now);
                fight = fight.fought(now);
                // At the very end of the pause it is tried again; that it is on trial then shows the same.
                verdict != Verdict::Go || fight.on_trial(now).is_some()
            });
            assert_eq!(parked, noticed, "every {minutes} min");
        }
    }

    proptest! {
        #[test]
        fn no_interleaving_sets_back_more_often(gaps in prop::collection::vec(0_u64..900, 1..400)) {
            let (mut now, mut fight, mut went) = (at(0), Fight::default(), Vec::new());
            for gap in gaps {
                now += Duration::from_secs(gap);
                if fight.verdict(now) == Verdict::Go {
                    fight = fight.fought(now);
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
