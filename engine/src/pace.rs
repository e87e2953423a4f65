//! When something is tried, or looked at, again.

use std::time::Duration;

use jiff::Timestamp;

/// Pauses that double from the first one to the longest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    /// The pause before the second try.
    pub(crate) first: Duration,
    /// No pause is longer.
    pub(crate) longest: Duration,
}

/// The delay before a retry: 1 s doubling to 5 min.
pub(crate) const RETRY: Pace = Pace { first: Duration::from_secs(1), longest: Duration::from_mins(5) };
/// The delay before a look at something without an event: 200 ms doubling to 30 s.
pub(crate) const RECHECK_SOON: Pace =
    Pace { first: Duration::from_millis(200), longest: Duration::from_secs(30) };
/// The delay before a look at what somebody else has to end: 200 ms doubling to 5 min.
pub(crate) const RECHECK_RARELY: Pace =
    Pace { first: Duration::from_millis(200), longest: Duration::from_mins(5) };
/// The delay before another try of what found no place among those that wait: 1 s doubling to 15 s.
pub(crate) const CROWDED: Pace = Pace { first: Duration::from_secs(1), longest: Duration::from_secs(15) };
/// The delay before another look at a suspended runtime, after the end of its suspension.
pub(crate) const PARKED: Pace = Pace { first: Duration::from_secs(1), longest: Duration::from_secs(1) };
/// What messages promise about the next try; the longest delay of a retry.
pub(crate) const NEXT_TRY: &str = "next try within 5 min";

/// The longest wait for a time at which something is due; a clock that is set meanwhile is noticed after it.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_hours(24);
/// A look that is due for many at once, such as at the end of a version, is spread over this time.
pub(crate) const SPREAD: Duration = tidewatch_planner::windows::SPREAD;
/// The longest time for which a server that asks for it is left alone.
const LONGEST_REST: Duration = Duration::from_hours(1);

/// From 0 to 1, by a number that differs from key to key: no two stay in step.
pub(crate) fn share(spread: u64) -> f64 {
    f64::from(u32::try_from(spread % 1000).unwrap_or(0)) / 1000.0
}

/// A delay that doubles with each attempt; up to a fifth less.
pub(crate) fn backoff(pace: Pace, attempt: u32, spread: u64) -> Duration {
    let full = pace.first.saturating_mul(1 << attempt.min(16)).min(pace.longest);
    full.mul_f64(1.0 - share(spread) / 5.0)
}

/// How long from now until `at`: at least a second, so that a look never comes before its time by a fraction of one.
/// And up to a tenth more.
pub(crate) fn until(now: Timestamp, at: Timestamp, spread: u64) -> Duration {
    let wait = Duration::try_from(at.duration_since(now)).unwrap_or_default();
    let wait = wait.clamp(Duration::from_secs(1), LONGEST_WAIT);
    wait + (wait / 10).min(SPREAD).mul_f64(share(spread))
}

/// A delay that is not shorter than what a server asks for. That is believed up to an hour, and up to a tenth is added: who was
/// sent away together does not come back together.
pub(crate) fn at_least(delay: Duration, asked: Option<Duration>, spread: u64) -> Duration {
    let asked = asked.map(|wait| wait.min(LONGEST_REST));
    delay.max(asked.map_or(Duration::ZERO, |wait| wait + (wait / 10).mul_f64(share(spread))))
}

/// What a message promises, if a server asks to be left alone for so long.
pub(crate) fn next_try(now: Timestamp, asked: Option<Duration>) -> String {
    match asked.map(|wait| wait.min(LONGEST_REST)) {
        Some(wait) if wait + wait / 10 > RETRY.longest => {
            let at = now.saturating_add(wait).unwrap_or(now);
            format!("next try after {}", at.strftime("%Y-%m-%dT%H:%MZ"))
        }
        _ => NEXT_TRY.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use crate::pace::*;

    #[test]
    fn a_look_comes_at_its_time_and_within_a_day() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(until(at(100), at(160), 0), Duration::from_mins(1));
        assert_eq!(until(at(100), at(40), 0), Duration::from_secs(1), "it is past already");
        assert_eq!(until(at(0), at(1_000_000), 0), LONGEST_WAIT);
        assert_eq!(until(at(100), at(160), 500), Duration::from_secs(63), "others look a moment later");
        let last = until(at(0), at(1_000_000), 999);
        assert!(last > LONGEST_WAIT + SPREAD / 2 && last < LONGEST_WAIT + SPREAD);
    }

    #[test]
    fn retries_slow_down_and_do_not_stay_in_step() {
        assert_eq!(backoff(RETRY, 0, 0), Duration::from_secs(1));
        assert_eq!(backoff(RETRY, 40, 0), Duration::from_mins(5));
        assert_ne!(backoff(RETRY, 5, 1), backoff(RETRY, 5, 999));
        assert!(backoff(RETRY, 5, 999) > backoff(RETRY, 5, 0).mul_f64(0.79));
    }

    #[test]
    fn a_server_that_asks_for_a_pause_gets_it_up_to_an_hour() {
        let (second, minute) = (Duration::from_secs(1), Duration::from_mins(1));
        assert_eq!(at_least(second, None, 7), second);
        assert_eq!(at_least(2 * minute, Some(minute), 0), 2 * minute, "it has waited for longer by itself");
        assert_eq!(at_least(second, Some(minute), 0), minute);
        let spread = at_least(second, Some(minute), 999);
        assert!(spread > minute + 5 * second && spread <= minute + 6 * second);
        assert_eq!(at_least(second, Some(Duration::from_hours(48)), 0), Duration::from_hours(1));
        let now = Timestamp::from_second(0).unwrap();
        assert_eq!(next_try(now, Some(4 * minute)), NEXT_TRY);
        assert_eq!(next_try(now, Some(10 * minute)), "next try after 1970-01-01T00:10Z");
    }
}
