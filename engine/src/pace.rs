//! Delays of retries and rechecks.

use std::time::Duration;

use jiff::Timestamp;

/// Delays that double from the first to the longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    pub(crate) first: Duration,
    pub(crate) longest: Duration,
}

/// Retry: 1 s doubling to 5 min.
pub(crate) const RETRY: Pace = Pace { first: Duration::from_secs(1), longest: Duration::from_mins(5) };
/// Recheck without an event: 200 ms doubling to 30 s.
pub(crate) const RECHECK_SOON: Pace =
    Pace { first: Duration::from_millis(200), longest: Duration::from_secs(30) };
/// Recheck of a condition that a user must end: 200 ms doubling to 5 min.
pub(crate) const RECHECK_RARELY: Pace =
    Pace { first: Duration::from_millis(200), longest: Duration::from_mins(5) };
/// Retry after the limit of waiting reconciles was reached: 1 s doubling to 15 s.
pub(crate) const CROWDED: Pace = Pace { first: Duration::from_secs(1), longest: Duration::from_secs(15) };
/// Delay after the end of a runtime's suspension.
pub(crate) const SUSPENDED: Pace = Pace { first: Duration::from_secs(1), longest: Duration::from_secs(1) };
/// The next try in messages: the longest retry delay.
pub(crate) const NEXT_TRY: &str = "next try within 5 min";

/// Longest wait for a due time; afterwards, a changed clock is noticed.
pub(crate) const MAX_WAIT: Duration = Duration::from_hours(24);
/// Spread of a time that is due for many keys, such as the end of a version.
pub(crate) const SPREAD: Duration = tidewatch_planner::windows::SPREAD;
/// Longest delay accepted from a server.
const MAX_RETRY_AFTER: Duration = Duration::from_hours(1);

/// A share from 0 to 1, differing per key, so that keys do not stay in step.
pub(crate) fn share(spread: u64) -> f64 {
    f64::from(u32::try_from(spread % 1000).unwrap_or(0)) / 1000.0
}

/// A delay that doubles with each attempt; up to a fifth less.
pub(crate) fn backoff(pace: Pace, attempt: u32, spread: u64) -> Duration {
    let full = pace.first.saturating_mul(1 << attempt.min(16)).min(pace.longest);
    full.mul_f64(1.0 - share(spread) / 5.0)
}

/// Time until `at`, plus up to a tenth. At least a second, so that a reconcile never comes a fraction early.
pub(crate) fn until(now: Timestamp, at: Timestamp, spread: u64) -> Duration {
    let wait = Duration::try_from(at.duration_since(now)).unwrap_or_default();
    let wait = wait.clamp(Duration::from_secs(1), MAX_WAIT);
    wait + (wait / 10).min(SPREAD).mul_f64(share(spread))
}

/// The wait that a server asks for, up to an hour, plus up to a tenth so that callers do not return together. Zero without a request.
pub(crate) fn requested(retry_after: Option<Duration>, spread: u64) -> Duration {
    let wait = retry_after.unwrap_or_default().min(MAX_RETRY_AFTER);
    wait + (wait / 10).mul_f64(share(spread))
}

/// The next try in messages, given the wait that a server asks for.
pub(crate) fn next_try(now: Timestamp, retry_after: Option<Duration>) -> String {
    match retry_after.map(|wait| wait.min(MAX_RETRY_AFTER)) {
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
    fn a_due_time_is_kept_within_a_day() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(until(at(100), at(160), 0), Duration::from_mins(1));
        assert_eq!(until(at(100), at(40), 0), Duration::from_secs(1), "the time is past");
        assert_eq!(until(at(0), at(1_000_000), 0), MAX_WAIT);
        assert_eq!(
            until(at(100), at(160), 500),
            Duration::from_secs(63),
            "other keys are due a moment later"
        );
        let last = until(at(0), at(1_000_000), 999);
        assert!(last > MAX_WAIT + SPREAD / 2 && last < MAX_WAIT + SPREAD);
    }

    #[test]
    fn retry_backoff_grows_and_is_jittered() {
        assert_eq!(backoff(RETRY, 0, 0), Duration::from_secs(1));
        assert_eq!(backoff(RETRY, 40, 0), Duration::from_mins(5));
        assert_ne!(backoff(RETRY, 5, 1), backoff(RETRY, 5, 999));
        assert!(backoff(RETRY, 5, 999) > backoff(RETRY, 5, 0).mul_f64(0.79));
    }

    #[test]
    fn a_retry_after_is_honoured_up_to_an_hour() {
        let (second, minute) = (Duration::from_secs(1), Duration::from_mins(1));
        assert_eq!(requested(None, 7), Duration::ZERO);
        assert_eq!(requested(Some(minute), 0), minute);
        let spread = requested(Some(minute), 999);
        assert!(spread > minute + 5 * second && spread <= minute + 6 * second);
        assert_eq!(requested(Some(Duration::from_hours(48)), 0), Duration::from_hours(1));
        let now = Timestamp::from_second(0).unwrap();
        assert_eq!(next_try(now, Some(4 * minute)), NEXT_TRY);
        assert_eq!(next_try(now, Some(10 * minute)), "next try after 1970-01-01T00:10Z");
    }
}
