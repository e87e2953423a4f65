//! Types of values.

use serde_json::Value;

use super::View;
use crate::json::{DEEPEST, join};

/// First wrong field, its type, allowed types.
pub(crate) fn first_type_error(value: &Value, schema: View<'_>) -> Option<(String, &'static str, String)> {
    types_at(value, schema, "", 0)
}

fn types_at(
    value: &Value,
    schema: View<'_>,
    path: &str,
    depth: usize,
) -> Option<(String, &'static str, String)> {
    if depth > DEEPEST || value.is_null() || schema.is_unknown() {
        return None;
    }
    if let Some(expected) = wrong_type(value, schema) {
        return Some((path.to_owned(), type_name(value), expected.to_owned()));
    }
    match value {
        Value::Object(map) => map.iter().find_map(|(name, child)| {
            types_at(child, schema.field_or_unknown(name), &join(path, name), depth + 1)
        }),
        // Go omits list indices.
        Value::Array(items) => items.iter().find_map(|item| types_at(item, schema.items(), path, depth + 1)),
        _ => None,
    }
}

pub(super) fn wrong_type<'a>(value: &Value, schema: View<'a>) -> Option<&'a str> {
    if schema.int_or_string() {
        let fits = value.is_string() || value.is_i64() || value.is_u64();
        return (!fits).then_some("integer,string");
    }
    if schema.is_quantity() {
        return (!(value.is_string() || value.is_number())).then_some("quantity");
    }
    let kind = schema.kind()?;
    let fits = match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => {
            value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
        }
        "number" => value.is_number(),
        _ => true,
    };
    (!fits).then_some(kind)
}

pub(super) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
