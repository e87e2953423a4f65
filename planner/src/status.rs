//! Conditions and operations with stable times.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use tidewatch_api::LastOperation;

/// Message for an unreachable runtime.
pub const UNREACHABLE: &str = "the cluster cannot be reached; check its address, certificate and network";
/// Message for a timeout.
pub const TIMED_OUT: &str = "the cluster did not answer in time";

/// Returns whether a message is only about the connection, so objects are unknown.
#[must_use]
pub fn is_unreachable(message: &str) -> bool {
    let cause = |text: &str| message.contains(text.split(';').next().unwrap_or_default());
    cause(UNREACHABLE) || cause(TIMED_OUT)
}

/// Condition content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionValue<'a> {
    /// Type.
    pub type_: &'a str,
    /// True or False.
    pub holds: bool,
    /// One word.
    pub reason: &'a str,
    /// Message.
    pub message: String,
}

/// Builds a condition; an unchanged status keeps its time.
#[must_use]
pub fn condition(
    before: &[Condition],
    value: ConditionValue<'_>,
    generation: Option<i64>,
    now: Timestamp,
) -> Condition {
    let status = if value.holds { "True" } else { "False" };
    let since = before
        .iter()
        .find(|c| c.type_ == value.type_ && c.status == status && !is_in_future(&c.last_transition_time, now))
        .map_or(Time(now), |c| c.last_transition_time.clone());
    Condition {
        last_transition_time: since,
        message: value.message,
        observed_generation: generation,
        reason: value.reason.to_owned(),
        status: status.to_owned(),
        type_: value.type_.to_owned(),
    }
}

/// Builds an operation; an unchanged text keeps its time.
#[must_use]
pub fn operation(before: Option<&LastOperation>, text: String, now: Timestamp) -> LastOperation {
    match before {
        Some(same)
            if same.operation == text
                && same.last_update_time.as_ref().is_some_and(|at| !is_in_future(at, now)) =>
        {
            same.clone()
        }
        _ => LastOperation { operation: text, last_update_time: Some(Time(whole_seconds(now))) },
    }
}

/// Tolerated clock skew.
const MAX_CLOCK_SKEW: SignedDuration = SignedDuration::from_hours(1);

/// Forged times lie in the future.
fn is_in_future(at: &Time, now: Timestamp) -> bool {
    at.0 > now.saturating_add(MAX_CLOCK_SKEW).unwrap_or(Timestamp::MAX)
}

/// Kubernetes stores whole seconds; comparisons need them.
#[must_use]
pub fn whole_seconds(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn reported(holds: bool, message: &str) -> ConditionValue<'static> {
        ConditionValue { type_: "Modules", holds, reason: "Ready", message: message.into() }
    }

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
        let first = condition(&[], reported(false, "a"), Some(1), at(10));
        let second = condition(std::slice::from_ref(&first), reported(false, "b"), Some(2), at(20));
        assert_eq!((second.last_transition_time.0, second.message.as_str()), (at(10), "b"));
        let third = condition(&[second], reported(true, "b"), Some(2), at(30));
        assert_eq!(third.last_transition_time.0, at(30));
    }

    #[test]
    fn an_operation_keeps_its_time() {
        let first = operation(None, "x".into(), at(10));
        assert_eq!(operation(Some(&first), "x".into(), at(20)), first);
        assert_ne!(operation(Some(&first), "y".into(), at(20)), first);
    }

    #[test]
    fn a_future_timestamp_is_replaced() {
        let soon = 10 + 3600;
        for (written, read) in [(5, 5), (soon, soon), (soon + 1, 10)] {
            let before = condition(&[], reported(true, "a"), None, at(written));
            let now = condition(&[before], reported(true, "a"), None, at(10));
            assert_eq!(now.last_transition_time.0, at(read));
            let before = operation(None, "a".into(), at(written));
            assert_eq!(operation(Some(&before), "a".into(), at(10)).last_update_time, Some(Time(at(read))));
        }
        let last = operation(None, "a".into(), Timestamp::MAX);
        assert_eq!(operation(Some(&last), "a".into(), Timestamp::MAX), last);
    }
}
