//! Looks at pods for causes that workloads do not report.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

/// Seconds of unreadiness at each look. At the first, pods usually pull their images. After a minute, failing retries
/// are warnings.
const CHECKS: [i64; 8] = [5, 10, 20, 40, 60, 120, 300, 640];

/// Returns the next look, as no event reports pods. `None` after the last.
#[must_use]
pub fn next_pod_check(not_ready_since: Timestamp, now: Timestamp) -> Option<Timestamp> {
    CHECKS.iter().find_map(|after| {
        let at = not_ready_since.checked_add(SignedDuration::from_secs(*after)).ok()?;
        (at > now).then_some(at)
    })
}

/// Whether the first look is due.
#[must_use]
pub fn is_first_check_due(not_ready_since: Timestamp, now: Timestamp) -> bool {
    now.duration_since(not_ready_since) >= SignedDuration::from_secs(CHECKS[0])
}

/// Returns the label selector of a workload. `None` if empty, because it would select all pods.
#[must_use]
pub fn selector(workload: &Value) -> Option<String> {
    let selector = &workload["spec"]["selector"];
    let mut terms = Vec::new();
    for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
        terms.push(format!("{}={}", plain(key)?, plain(value.as_str()?)?));
    }
    for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = plain(expression["key"].as_str()?)?;
        let values = || {
            let values = expression["values"].as_array()?.iter().map(|value| plain(value.as_str()?));
            values.collect::<Option<Vec<_>>>().map(|values| values.join(","))
        };
        terms.push(match expression["operator"].as_str()? {
            "In" => format!("{key} in ({})", values()?),
            "NotIn" => format!("{key} notin ({})", values()?),
            "Exists" => key.to_owned(),
            "DoesNotExist" => format!("!{key}"),
            _ => return None,
        });
    }
    (!terms.is_empty()).then(|| terms.join(","))
}

/// Rejects text that would become another term.
fn plain(text: &str) -> Option<&str> {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./".contains(&b)).then_some(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rechecks_back_off_and_end() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let (mut now, mut checks) = (at(1_000), Vec::new());
        while let Some(next) = next_pod_check(at(1_000), now) {
            assert!(is_first_check_due(at(1_000), next) && !is_first_check_due(at(1_000), at(1_004)));
            checks.push(next.as_second() - 1_000);
            now = next;
        }
        assert_eq!(checks, CHECKS);
        assert_eq!(next_pod_check(at(1_000), at(10_000)), None);
        assert_eq!(next_pod_check(Timestamp::MAX, at(0)), None);
    }

    #[test]
    fn label_selectors_are_written_as_queries() {
        let of = |selector: Value| selector_of(&selector);
        assert_eq!(
            of(json!({"matchLabels": {"app": "web", "x.dev/part": "a"}})).as_deref(),
            Some("app=web,x.dev/part=a")
        );
        let expressions = json!({"matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["a", "b"]}, {"key": "old", "operator": "NotIn", "values": ["c"]},
            {"key": "is", "operator": "Exists"}, {"key": "not", "operator": "DoesNotExist"}]});
        assert_eq!(of(expressions).as_deref(), Some("tier in (a,b),old notin (c),is,!not"));
        for none in [
            json!(null),
            json!({}),
            json!({"matchLabels": {}}),
            json!({"matchLabels": {"app": "a,b"}}),
            json!({"matchLabels": {"app": 1}}),
            json!({"matchExpressions": [{"key": "a", "operator": "Like"}]}),
        ] {
            assert_eq!(of(none.clone()), None, "{none}");
        }
    }

    fn selector_of(value: &Value) -> Option<String> {
        selector(&json!({"spec": {"selector": value}}))
    }
}
