//! Values that an API server does not keep: its own kinds leave them out where they are written.

use serde_json::Value;

/// Whether a value is null, `false`, `0`, `""`, `[]`, `{}`, or a map of nothing but such values.
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

/// Whether no entry of `managedFields` names a value or anything in it: a list without items, or a map of nothing but such lists.
pub(super) fn owns_nothing(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => !members.is_empty() && members.values().all(owns_nothing),
        _ => false,
    }
}
