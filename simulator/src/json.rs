//! Small questions to JSON values.

use serde_json::Value;

/// How deep objects may nest; deeper ones are refused. `serde_json` reads 127 levels, and who manages the fields of an object
/// nests three levels deeper than the object.
pub(crate) const DEEPEST: usize = 100;

/// Whether a value nests deeper than so many levels; walks no deeper itself.
pub(crate) fn is_deeper(value: &Value, levels: usize) -> bool {
    let below = |child: &Value| levels == 0 || is_deeper(child, levels - 1);
    match value {
        Value::Array(items) => levels == 0 || items.iter().any(below),
        Value::Object(map) => levels == 0 || map.values().any(below),
        _ => false,
    }
}

/// The text of a field; empty without one.
pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// The items of a list; none of what is no list.
pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The place of a field below a place.
pub(crate) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn levels_are_those_of_maps_and_lists() {
        assert!(!is_deeper(&json!("x"), 0));
        assert!(is_deeper(&json!({}), 0) && !is_deeper(&json!({"a": 1}), 1));
        assert!(is_deeper(&json!({"a": [[]]}), 2) && !is_deeper(&json!({"a": [[]]}), 3));
    }
}
