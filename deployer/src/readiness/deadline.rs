use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tidewatch_api::ModuleTerms;

use super::{Facts, Judgement};

/// Default deadline of an object, equal to a Deployment's.
pub const DEADLINE: Duration = Duration::from_mins(10);

/// Returns the deadline of a module's objects.
#[must_use]
pub fn deadline_of(terms: &ModuleTerms) -> Duration {
    let own = terms.progress_deadline_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    own.filter(|seconds| *seconds > 0).map_or(DEADLINE, Duration::from_secs)
}

/// Failing retries become a warning after this time.
const WARNED_AFTER: SignedDuration = SignedDuration::from_mins(1);

/// Past the deadline, progress is an error with its cause.
pub(super) fn judge(judgement: Judgement, object: &Value, facts: &Facts<'_>, now: Timestamp) -> Judgement {
    match judgement {
        Judgement::Processing(cause) | Judgement::Blocked(cause) if now >= due(object, facts, now) => {
            Judgement::Error(format!("{}: {cause}", not_within(limit(object, facts))))
        }
        Judgement::Blocked(cause) if now.duration_since(since(object, facts, now)) >= WARNED_AFTER => {
            Judgement::Warning(cause)
        }
        Judgement::Blocked(cause) => Judgement::Processing(cause),
        judgement => judgement,
    }
}

/// Returns the end of an unready object's deadline, as no event may precede it. `None` if past.
#[must_use]
pub fn deadline_end(object: &Value, facts: &Facts<'_>, now: Timestamp) -> Option<Timestamp> {
    Some(due(object, facts, now)).filter(|due| *due > now)
}

/// Latest of first observation as not ready, creation, and last apply of the engine. Upgrades restart the deadline;
/// other controllers' writes do not.
fn since(object: &Value, facts: &Facts<'_>, now: Timestamp) -> Timestamp {
    let metadata = &object["metadata"];
    let last_apply = engine_applies(object, facts).filter_map(|entry| time(&entry["time"])).max();
    let unready_since = facts.not_ready_since.unwrap_or(now);
    [time(&metadata["creationTimestamp"]), last_apply]
        .into_iter()
        .flatten()
        .fold(unready_since, Timestamp::max)
}

fn due(object: &Value, facts: &Facts<'_>, now: Timestamp) -> Timestamp {
    let since = since(object, facts, now);
    let limit = SignedDuration::try_from(limit(object, facts)).unwrap_or(SignedDuration::MAX);
    since.saturating_add(limit).unwrap_or(Timestamp::MAX)
}

/// Deployments and Jobs may extend it. Every Deployment has a deadline, but only one from the module counts.
fn limit(object: &Value, facts: &Facts<'_>) -> Duration {
    let own = match object["kind"].as_str() {
        Some("Deployment") if sets_own_deadline(object, facts) => &object["spec"]["progressDeadlineSeconds"],
        Some("Job") => &object["spec"]["activeDeadlineSeconds"],
        _ => &Value::Null,
    };
    own.as_u64().map_or(facts.deadline, |own| facts.deadline.max(Duration::from_secs(own)))
}

/// Whether the module, not the API server, set a Deployment's deadline.
pub(super) fn sets_own_deadline(object: &Value, facts: &Facts<'_>) -> bool {
    engine_applies(object, facts)
        .any(|entry| entry["fieldsV1"]["f:spec"]["f:progressDeadlineSeconds"].is_object())
}

fn engine_applies<'a>(object: &'a Value, facts: &'a Facts<'_>) -> impl Iterator<Item = &'a Value> {
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    entries.filter(|entry| {
        entry["manager"].as_str() == Some(facts.installer)
            && entry["operation"].as_str() == Some("Apply")
            && entry["subresource"].as_str().unwrap_or_default().is_empty()
    })
}

/// Message about a missed deadline.
#[must_use]
pub fn not_within(limit: Duration) -> String {
    format!("not ready within {}", duration_text(limit))
}

fn time(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

/// `10 minutes`, `90 s`.
fn duration_text(limit: Duration) -> String {
    match limit.as_secs() {
        60 => "1 minute".into(),
        seconds if seconds > 0 && seconds % 60 == 0 => format!("{} minutes", seconds / 60),
        seconds => format!("{seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn waits(object: &Value, facts: &Facts<'_>, now: i64) -> bool {
        matches!(judge(Judgement::Processing("c".into()), object, facts, at(now)), Judgement::Processing(_))
    }

    #[test]
    fn the_deadline_counts_from_the_latest_change() {
        let new = json!({"metadata": {"creationTimestamp": "1970-01-01T00:16:40Z"}}); // 1000
        let seen = |since| Facts { not_ready_since: Some(at(since)), ..Facts::default() };
        assert!(waits(&new, &seen(0), 1_599) && !waits(&new, &seen(0), 1_600), "created");
        assert!(waits(&new, &seen(1_500), 2_099) && !waits(&new, &seen(1_500), 2_100), "first seen");
        assert!(waits(&new, &Facts::default(), 1_000_000), "an old object that is seen for the first time");

        let entry = |manager: &str, operation: &str, subresource: &str| {
            json!({"metadata": {"managedFields": [
                {"manager": Facts::default().installer, "operation": "Apply", "time": "1970-01-01T00:00:10Z"},
                {"manager": manager, "operation": operation, "subresource": subresource, "time": "1970-01-01T00:16:40Z"}]}})
        };
        let engine_owned = Facts::default().installer;
        assert!(waits(&entry(engine_owned, "Apply", ""), &seen(0), 1_599), "an upgrade starts it anew");
        for object in [
            entry(engine_owned, "Apply", "status"),
            entry("other", "Apply", ""),
            entry(engine_owned, "Update", ""),
        ] {
            assert!(!waits(&object, &seen(0), 610), "{object}");
        }
    }

    #[test]
    fn only_processing_objects_exceed_the_deadline() {
        let facts =
            Facts { not_ready_since: Some(at(0)), deadline: Duration::from_secs(90), ..Facts::default() };
        let judged = |reported| judge(reported, &Value::Null, &facts, at(90));
        for reported in [Judgement::Ready, Judgement::Unknown, Judgement::Error("e".into())] {
            assert_eq!(judged(reported.clone()), reported);
        }
        assert_eq!(
            judged(Judgement::Processing("c".into())),
            Judgement::Error("not ready within 90 s: c".into())
        );
        assert_eq!(duration_text(DEADLINE), "10 minutes");
        assert_eq!(duration_text(Duration::from_mins(1)), "1 minute");
    }

    #[test]
    fn a_blocked_object_is_a_warning_after_a_minute() {
        let facts = Facts { not_ready_since: Some(at(0)), ..Facts::default() };
        let judged = |now| judge(Judgement::Blocked("c".into()), &Value::Null, &facts, at(now));
        assert_eq!(
            (judged(0), judged(59)),
            (Judgement::Processing("c".into()), Judgement::Processing("c".into()))
        );
        assert_eq!(
            (judged(60), judged(599)),
            (Judgement::Warning("c".into()), Judgement::Warning("c".into()))
        );
        assert_eq!(judged(600), Judgement::Error("not ready within 10 minutes: c".into()));
        let new = json!({"metadata": {"creationTimestamp": "1970-01-01T00:16:40Z"}}); // 1000
        let message = judge(Judgement::Blocked("c".into()), &new, &facts, at(1_059));
        assert_eq!(message, Judgement::Processing("c".into()), "an upgrade has its minute anew");
    }

    #[test]
    fn a_workload_may_extend_but_not_shorten_its_deadline() {
        let facts = Facts { not_ready_since: Some(at(0)), ..Facts::default() };
        let engine_owned = json!([{"manager": facts.installer, "operation": "Apply", "fieldsV1": {"f:spec": {"f:progressDeadlineSeconds": {}}}}]);
        let ends_at = |object: &Value, facts: &Facts<'_>, ends| {
            assert!(waits(object, facts, ends - 1) && !waits(object, facts, ends), "{object}");
        };
        for (kind, field) in [("Deployment", "progressDeadlineSeconds"), ("Job", "activeDeadlineSeconds")] {
            for (own, ends) in [(json!(1_800), 1_800), (json!(60), 600), (json!(-1), 600), (json!("9"), 600)]
            {
                let object =
                    json!({"kind": kind, "spec": {field: own}, "metadata": {"managedFields": engine_owned}});
                ends_at(&object, &facts, ends);
            }
        }
        let plain = json!({"kind": "Deployment", "spec": {"progressDeadlineSeconds": 600}});
        for seconds in [60, 1_800] {
            let facts = Facts { deadline: Duration::from_secs(seconds), ..facts };
            ends_at(&plain, &facts, i64::try_from(seconds).unwrap());
        }
    }

    #[test]
    fn a_module_may_set_its_deadline() {
        let of = |seconds| {
            deadline_of(&ModuleTerms { progress_deadline_seconds: seconds, ..ModuleTerms::default() })
        };
        assert_eq!((of(None), of(Some(90)), of(Some(-1))), (DEADLINE, Duration::from_secs(90), DEADLINE));
    }

    #[test]
    fn the_next_recheck_is_at_the_deadline() {
        let facts = Facts { not_ready_since: Some(at(100)), ..Facts::default() };
        assert_eq!(deadline_end(&Value::Null, &facts, at(100)), Some(at(700)));
        assert_eq!(deadline_end(&Value::Null, &facts, at(700)), None);
        let forever = Facts { deadline: Duration::MAX, ..facts };
        assert_eq!(deadline_end(&Value::Null, &forever, at(100)), Some(Timestamp::MAX));
    }
}
