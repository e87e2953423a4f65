//! Helpers for JSON values.

use serde_json::Value;

/// Maximum nesting of an object. `serde_json` reads 127 levels; `managedFields` adds three.
pub(crate) const DEEPEST: usize = 100;

/// Stops at `levels`.
pub(crate) fn is_deeper(value: &Value, levels: usize) -> bool {
    let below = |child: &Value| levels == 0 || is_deeper(child, levels - 1);
    match value {
        Value::Array(items) => levels == 0 || items.iter().any(below),
        Value::Object(map) => levels == 0 || map.values().any(below),
        _ => false,
    }
}

pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Turns `2.0` into `2`, like a read and write of untyped values.
pub(crate) fn whole_numbers(value: &mut Value) {
    const END: f64 = 9.2e18;
    match value {
        Value::Number(number) if number.is_f64() => {
            let whole = number.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < END);
            #[expect(clippy::cast_possible_truncation, reason = "it is whole and within the range")]
            if let Some(whole) = whole {
                *value = Value::from(whole as i64);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(whole_numbers),
        Value::Object(map) => map.values_mut().for_each(whole_numbers),
        _ => {}
    }
}

pub(crate) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whole_numbers_are_written_without_fraction() {
        let mut value = json!({"a": [2.0, 2.5, -3.0, 1e30, 7], "b": {"c": 1e3}});
        whole_numbers(&mut value);
        assert_eq!(value, json!({"a": [2, 2.5, -3, 1e30, 7], "b": {"c": 1000}}));
    }

    #[test]
    fn depth_counts_maps_and_lists() {
        assert!(!is_deeper(&json!("x"), 0));
        assert!(is_deeper(&json!({}), 0) && !is_deeper(&json!({"a": 1}), 1));
        assert!(is_deeper(&json!({"a": [[]]}), 2) && !is_deeper(&json!({"a": [[]]}), 3));
    }
}
