//! Times in built-in kinds.

use jiff::Timestamp;
use serde_json::Value;

use super::{View, patterns};
use crate::json::DEEPEST;

const SECONDS: &str = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d([.]\d+)?(Z|[-+]\d\d:\d\d)$";
const MICROSECONDS: &str = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.]\d{6}(Z|[-+]\d\d:\d\d)$";

pub(crate) fn holds(text: &str, schema: View<'_>) -> bool {
    let pattern = if schema.is_micro_time() { MICROSECONDS } else { SECONDS };
    patterns::compiled(pattern).is_none_or(|regex| regex.is_match(text)) && kept(text, schema).is_some()
}

/// Normalizes times to UTC, in seconds or microseconds.
pub(crate) fn settle(value: &mut Value, schema: View<'_>) {
    at(value, schema, 0);
}

fn at(value: &mut Value, schema: View<'_>, depth: usize) {
    if depth > DEEPEST || schema.is_unknown() {
        return;
    }
    match value {
        Value::String(text) if schema.is_time() => {
            if let Some(kept) = kept(text, schema) {
                *text = kept;
            }
        }
        Value::Object(map) => {
            map.iter_mut().for_each(|(name, child)| at(child, schema.field_or_unknown(name), depth + 1));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| at(item, schema.items(), depth + 1)),
        _ => {}
    }
}

fn kept(text: &str, schema: View<'_>) -> Option<String> {
    let form = if schema.is_micro_time() { "%Y-%m-%dT%H:%M:%S.%6fZ" } else { "%Y-%m-%dT%H:%M:%SZ" };
    let time = text.parse::<Timestamp>().ok()?;
    Some(time.strftime(form).to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::builtin, *};

    #[test]
    fn times_are_kept_in_utc() {
        let event = builtin::view("io.k8s.api.core.v1.Event");
        let mut object = json!({
            "firstTimestamp": "2020-01-01T01:00:00.9+01:00", "eventTime": "2020-01-01T01:00:00.123456+01:00", "reason": "x",
        });
        settle(&mut object, event);
        assert_eq!(
            object,
            json!({"firstTimestamp": "2020-01-01T00:00:00Z", "eventTime": "2020-01-01T00:00:00.123456Z", "reason": "x"})
        );
        let [seconds, micro] = ["firstTimestamp", "eventTime"].map(|field| event.property(field).unwrap());
        for (text, first, second) in [
            ("2020-01-01T00:00:00Z", true, false),
            ("2020-01-01T00:00:00.000001Z", true, true),
            ("2020-01-01t00:00:00z", false, false),
            ("2020-13-01T00:00:00Z", false, false),
            ("", false, false),
        ] {
            assert_eq!((holds(text, seconds), holds(text, micro)), (first, second), "{text}");
        }
    }
}
