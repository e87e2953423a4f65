//! Access to JSON values.

use serde_json::Value;

use crate::json::list;

/// Whether a value is unset; numbers and booleans never are.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

pub(super) fn texts(value: &Value) -> impl Iterator<Item = &str> {
    list(value).iter().filter_map(Value::as_str)
}

pub(super) fn share(value: &Value) -> Option<u64> {
    value.as_str()?.strip_suffix('%')?.parse().ok()
}

/// Set fields of a union.
pub(super) fn present<'a>(value: &Value, of: &'a [&'a str]) -> Vec<&'a str> {
    of.iter().copied().filter(|field| value.get(field).is_some_and(|value| !value.is_null())).collect()
}
