//! A field that somebody else keeps changing back. Both sides would write for ever; the engine stops first, and says who it is.

use std::time::Duration;

use jiff::Timestamp;

/// Times that an object is set back within [`WITHIN`] before it is left alone: many for people, seconds for a controller.
pub const TIMES: usize = 30;
/// The time in which they count. An object that is left alone is set back again when the oldest is older than this.
pub const WITHIN: Duration = Duration::from_mins(10);

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
    /// Whether it may be set back at this time. A clock that was set back does not park it for longer than [`WITHIN`].
    #[must_use]
    pub fn verdict(&self, now: Timestamp) -> Verdict {
        let oldest = self.0.iter().copied().min().flatten();
        match oldest.map(|at| at + WITHIN) {
            Some(until) if until > now && until <= now + WITHIN => Verdict::Parked(until),
            _ => Verdict::Go,
        }
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
    use super::*;

    #[test]
    fn so_many_times_in_ten_minutes_and_then_one_for_each_that_is_older() {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let at = |seconds: i64| start + Duration::from_secs(seconds.unsigned_abs());
        let mut fight = Fight::default();
        for second in 0..30 {
            assert_eq!(fight.verdict(at(second)), Verdict::Go);
            fight = fight.fought(at(second));
        }
        assert_eq!(fight.verdict(at(30)), Verdict::Parked(at(600)));
        assert_eq!(fight.verdict(at(600)), Verdict::Go);
        fight = fight.fought(at(600));
        assert_eq!(fight.verdict(at(600)), Verdict::Parked(at(601)));
        assert_eq!(fight.verdict(at(1300)), Verdict::Go);
        assert_eq!(fight.verdict(start - Duration::from_hours(1)), Verdict::Go, "a clock that was set back");
    }

    #[test]
    fn no_interleaving_sets_back_more_often() {
        use proptest::prelude::*;
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        proptest!(|(gaps in prop::collection::vec(0_u64..60, 1..400))| {
            let (mut now, mut fight, mut went) = (start, Fight::default(), Vec::new());
            for gap in gaps {
                now += Duration::from_secs(gap);
                if fight.verdict(now) == Verdict::Go {
                    fight = fight.fought(now);
                    went.push(now);
                }
            }
            for window in went.windows(TIMES + 1) {
                prop_assert!(window[TIMES] >= window[0] + WITHIN);
            }
        });
    }
}
