//! JSON patch, merge patch and strategic merge patch. Server-side apply is in [`crate::fields::apply`].

mod json;
mod strategic;

use json::MOST_OPERATIONS;
use serde_json::{Map, Value};

use crate::json::DEEPEST;
pub(crate) use json::json;
pub(crate) use strategic::strategic;

/// Why a patch cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PatchError {
    /// It is not of its kind.
    #[error("the patch cannot be read: {0}")]
    Malformed(String),
    /// It cannot be done to this object.
    #[error("the server rejected our request due to an error in our request")]
    Inapplicable,
    /// A directive that nobody knows, and the map in which it is.
    #[error("unknown patch type: {0} in map: {1}")]
    Directive(String, String),
    /// An item of a list that is merged by a key does not say it: the item, and the key.
    #[error("map: {0} does not contain declared merge key: {1}")]
    Keyless(String, String),
    /// Too many operations.
    #[error(
        "Request entity too large: The allowed maximum operations in a JSON patch is {MOST_OPERATIONS}, got {0}"
    )]
    TooLarge(usize),
    /// An object that nests so deep is none that can be read back.
    #[error("the patched object would nest deeper than {DEEPEST} levels")]
    TooDeep,
}

/// RFC 7386, and as API servers do it: without nulls in what is within a list, too.
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

/// A list keeps those that are its items.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let there = map.iter().filter(|(_, value)| !value.is_null());
            there.map(|(name, value)| (name.clone(), without_nulls(value))).collect()
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
    fn lists_lose_the_nulls_within_their_items() {
        let merged = merge(&json!({}), &json!({"l": [null, {"a": null, "b": [{"c": null}]}]}));
        assert_eq!(merged, json!({"l": [null, {"b": [{}]}]}));
    }
}
