//! Values that an API server drops from built-in kinds.

use serde_json::Value;

/// Null, `false`, `0`, `""`, `[]`, `{}`, or a map of these.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(value) => value.as_f64() == Some(0.0),
        Value::String(value) => value.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.values().all(is_empty),
    }
}

/// Lists without items, and maps of these, have no entry in `managedFields`.
pub(super) fn owns_nothing(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => !members.is_empty() && members.values().all(owns_nothing),
        _ => false,
    }
}
