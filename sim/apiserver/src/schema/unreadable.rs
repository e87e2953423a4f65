//! Undecodable values: invalid base64 or quantities, too large numbers.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::Value;

use super::{View, times};
use crate::{
    json::DEEPEST,
    kinds::validation::quantity::{self, Quantity},
};

pub(crate) fn find(value: &Value, schema: View<'_>) -> Option<String> {
    at(value, schema, "", 0)
}

fn at(value: &Value, schema: View<'_>, path: &str, depth: usize) -> Option<String> {
    if depth > DEEPEST || schema.is_unknown() {
        return None;
    }
    let format = schema.get("format").and_then(Value::as_str);
    match value {
        Value::String(text) if format == Some("byte") => base64(text),
        Value::String(text) if schema.is_time() && !times::holds(text, schema) => Some(no_time(text)),
        Value::String(_) | Value::Number(_) if schema.is_quantity() => {
            Quantity::of(value).is_none().then(|| quantity::MALFORMED.to_owned())
        }
        Value::Number(number) if format == Some("int32") && !is_int32(value) => {
            Some(format!("json: cannot unmarshal number {number} into Go struct field x{path} of type int32"))
        }
        Value::Object(map) => map.iter().find_map(|(name, child)| {
            at(child, schema.field_or_unknown(name), &format!("{path}.{name}"), depth + 1)
        }),
        Value::Array(items) => items.iter().find_map(|item| at(item, schema.items(), path, depth + 1)),
        _ => None,
    }
}

fn is_int32(value: &Value) -> bool {
    value.as_i64().is_some_and(|number| i32::try_from(number).is_ok())
}

/// Unlike Go, quotes the whole text.
fn no_time(text: &str) -> String {
    let quoted = Value::from(text);
    format!("parsing time {quoted} as \"2006-01-02T15:04:05Z07:00\": cannot parse {quoted} as \"2006\"")
}

/// Go ignores line ends.
fn base64(text: &str) -> Option<String> {
    let text: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    let at = match BASE64_STANDARD.decode(text).err()? {
        base64::DecodeError::InvalidByte(at, _)
        | base64::DecodeError::InvalidLength(at)
        | base64::DecodeError::InvalidLastSymbol(at, _) => at,
        base64::DecodeError::InvalidPadding => 0,
    };
    Some(format!("illegal base64 data at input byte {at}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn invalid_base64_data_is_unreadable() {
        let secret = super::super::builtin::view("io.k8s.api.core.v1.Secret");
        assert_eq!(find(&json!({"data": {"a": "YQ==", "b": "YW\nJj\r\n"}}), secret), None);
        let found = find(&json!({"data": {"a": "YQ==", "b": "a b"}}), secret);
        assert_eq!(found.as_deref(), Some("illegal base64 data at input byte 1"));
    }
}
