//! Delay of a peer's demands.
//!
//! The first is served immediately. Each repetition waits longer, up to a limit, so a peer cannot cause a loop.
//! Progress or quiet resets the delay.

use crate::{Tick, backoff::Backoff};

/// Quiet time that resets the delay, in longest pauses.
const QUIET: u32 = 2;

/// Demands of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    times: u32,
    until: Tick,
}

impl Pace {
    /// Records a demand; returns the number of earlier ones. Demands during a pause do not prolong it, so a peer cannot
    /// postpone its own demand forever.
    pub fn demanded(&mut self, backoff: &Backoff, jitter: f64, now: Tick) -> u32 {
        let before = self.before(backoff, now);
        if now >= self.until {
            let pause = before.checked_sub(1).map(|retry| backoff.delay(retry, jitter));
            *self = Self { times: before.saturating_add(1), until: now + pause.unwrap_or_default() };
        }
        before
    }

    /// Records a request without result, made at `asked`. Its own duration counts as pause.
    pub fn fruitless(&mut self, backoff: &Backoff, jitter: f64, asked: Tick, now: Tick) {
        let before = self.before(backoff, now);
        let until = asked + backoff.delay(before, jitter);
        let times = if until <= now { 0 } else { before.saturating_add(1) };
        *self = Self { times, until };
    }

    /// Records progress: the next demand is free.
    pub fn progress(&mut self) {
        *self = Self::default();
    }

    /// End of the pause.
    #[must_use]
    pub fn until(&self) -> Tick {
        self.until
    }

    fn before(&self, backoff: &Backoff, now: Tick) -> u32 {
        let quiet = now.saturating_sub(self.until) > backoff.max * QUIET;
        if quiet { 0 } else { self.times }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff { base: Tick::from_secs(1), max: Tick::from_secs(8) };

    fn second(n: u64) -> Tick {
        Tick::from_secs(n)
    }

    #[test]
    fn the_first_demand_is_free_later_ones_back_off() {
        let (mut pace, mut now, mut waits) = (Pace::default(), second(0), Vec::new());
        for _ in 0..6 {
            pace.demanded(&BACKOFF, 1.0, now);
            waits.push(pace.until().saturating_sub(now).as_secs());
            now = pace.until();
        }
        assert_eq!(waits, [0, 1, 2, 4, 8, 8]);
    }

    #[test]
    fn repeated_demands_do_not_prolong_a_pause() {
        let mut pace = Pace::default();
        pace.demanded(&BACKOFF, 1.0, second(0));
        pace.demanded(&BACKOFF, 1.0, second(0));
        let until = pace.until();
        for ms in 0..1_000 {
            pace.demanded(&BACKOFF, 1.0, Tick::from_millis(ms));
        }
        assert_eq!((until, pace.until()), (second(1), second(1)));
    }

    #[test]
    fn progress_or_quiet_makes_the_next_demand_free() {
        let strained = || {
            let mut pace = Pace::default();
            (0..6).for_each(|_| {
                pace.demanded(&BACKOFF, 1.0, pace.until());
            });
            pace
        };
        let now = strained().until();
        let (mut helped, mut quiet, mut strained) = (strained(), strained(), strained());
        helped.progress();
        assert_eq!(helped.demanded(&BACKOFF, 1.0, now), 0);
        assert_eq!(quiet.demanded(&BACKOFF, 1.0, now + second(17)), 0);
        assert_eq!(strained.demanded(&BACKOFF, 1.0, now + second(16)), 6);
        assert!(helped.until() <= now && quiet.until() <= now + second(17));
    }

    #[test]
    fn a_fruitless_answer_backs_off_unless_a_long_poll() {
        let (mut pace, mut asked, mut waits) = (Pace::default(), second(0), Vec::new());
        for _ in 0..5 {
            pace.fruitless(&BACKOFF, 1.0, asked, asked);
            waits.push(pace.until().saturating_sub(asked).as_secs());
            asked = pace.until();
        }
        assert_eq!(waits, [1, 2, 4, 8, 8]);
        let answered = asked + second(25);
        pace.fruitless(&BACKOFF, 1.0, asked, answered);
        assert!(pace.until() <= answered, "a long poll is asked again at once");
        pace.fruitless(&BACKOFF, 1.0, answered, answered);
        assert_eq!(pace.until(), answered + second(1), "and counts as none");
    }
}
