//! Access to JSON metadata.

use serde_json::{Map, Value};

/// Avoids the copies that `json!` makes.
pub(crate) fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    Value::Object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

pub(crate) fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    child_mut(object, "metadata")
}

/// Replaces a missing or non-object child by an empty one.
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
        _ => unreachable!("the value was made an object"),
    }
}

/// An empty string counts as missing.
pub(crate) fn text<'a>(object: &'a Value, field: &str) -> Option<&'a str> {
    object.get("metadata")?.get(field)?.as_str().filter(|text| !text.is_empty())
}

pub(crate) fn name(object: &Value) -> &str {
    text(object, "name").unwrap_or_default()
}

pub(crate) fn strings<'a>(object: &'a Value, field: &str) -> Vec<&'a str> {
    let list = object.get("metadata").and_then(|metadata| metadata.get(field)).and_then(Value::as_array);
    list.map(|list| list.iter().filter_map(Value::as_str).collect()).unwrap_or_default()
}

pub(crate) fn finalizers(object: &Value) -> Vec<&str> {
    strings(object, "finalizers")
}

pub(crate) fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.get("metadata")?.get("labels")?.get(key)?.as_str()
}

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
