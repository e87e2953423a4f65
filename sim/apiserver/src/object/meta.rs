//! Reading and writing the metadata of an object that is a JSON value.

use serde_json::{Map, Value};

/// An object of these fields. `json!` would copy each value, however large.
pub(crate) fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    Value::Object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// `metadata`, made where it is missing.
pub(crate) fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    child_mut(object, "metadata")
}

/// A child that is an object, made where it is missing or something else.
pub(crate) fn child_mut<'a>(object: &'a mut Value, name: &str) -> &'a mut Map<String, Value> {
    let child = entry_mut(object, name);
    as_object(child)
}

fn entry_mut<'a>(object: &'a mut Value, name: &str) -> &'a mut Value {
    as_object(object).entry(name).or_insert_with(|| Value::Object(Map::new()))
}

pub(crate) fn as_object(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        // Just made one above.
        _ => unreachable!("the value was made an object"),
    }
}

/// A string in `metadata`; empty counts as missing.
pub(crate) fn text<'a>(object: &'a Value, field: &str) -> Option<&'a str> {
    object.get("metadata")?.get(field)?.as_str().filter(|text| !text.is_empty())
}

pub(crate) fn name(object: &Value) -> &str {
    text(object, "name").unwrap_or_default()
}

/// The strings of a list in `metadata`.
pub(crate) fn strings<'a>(object: &'a Value, field: &str) -> Vec<&'a str> {
    let list = object.get("metadata").and_then(|metadata| metadata.get(field)).and_then(Value::as_array);
    list.map(|list| list.iter().filter_map(Value::as_str).collect()).unwrap_or_default()
}

pub(crate) fn finalizers(object: &Value) -> Vec<&str> {
    strings(object, "finalizers")
}

/// A label's value.
pub(crate) fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.get("metadata")?.get("labels")?.get(key)?.as_str()
}

/// Sets or removes a field.
pub(crate) fn put(map: &mut Map<String, Value>, field: &str, value: Option<Value>) {
    match value {
        Some(value) => {
            map.insert(field.to_owned(), value);
        }
        None => {
            map.remove(field);
        }
    }
}
