//! Merge patches (RFC 7386).

use serde_json::{Map, Value};

/// RFC 7386; also drops nulls inside lists, like API servers.
pub(crate) fn merge(object: &Value, patch: &Value) -> Value {
    let Value::Object(changes) = patch else { return without_nulls(patch) };
    let mut merged = object.as_object().cloned().unwrap_or_default();
    for (name, change) in changes {
        if change.is_null() {
            merged.remove(name);
        } else {
            let before = merged.get(name).cloned().unwrap_or(Value::Object(Map::new()));
            merged.insert(name.clone(), merge(&before, change));
        }
    }
    Value::Object(merged)
}

/// Null list items stay.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let present = map.iter().filter(|(_, value)| !value.is_null());
            present.map(|(name, value)| (name.clone(), without_nulls(value))).collect()
        }
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_merge_patch_sets_and_removes() {
        let merged = merge(
            &json!({"a": {"b": 1, "c": 2}, "l": [1]}),
            &json!({"a": {"b": null, "d": {"e": null}}, "l": [2]}),
        );
        assert_eq!(merged, json!({"a": {"c": 2, "d": {}}, "l": [2]}));
    }

    #[test]
    fn nulls_within_list_items_are_removed() {
        let merged = merge(&json!({}), &json!({"l": [null, {"a": null, "b": [{"c": null}]}]}));
        assert_eq!(merged, json!({"l": [null, {"b": [{}]}]}));
    }
}
