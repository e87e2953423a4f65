//! Prunes unknown fields and sets defaults.

use serde_json::{Map, Value};

use super::{View, builtin};
use crate::json::{DEEPEST, join};

/// Removes unknown fields and returns their paths.
pub(crate) fn prune(object: &mut Value, schema: View<'_>) -> Vec<String> {
    let mut removed = Vec::new();
    walk(object, schema, "", true, &mut removed, 0);
    removed
}

/// As [`prune`], for a field's value.
pub(crate) fn prune_field(value: &mut Value, schema: View<'_>) -> Vec<String> {
    let mut removed = Vec::new();
    walk(value, schema, "", false, &mut removed, 0);
    removed
}

fn walk(value: &mut Value, schema: View<'_>, path: &str, top: bool, removed: &mut Vec<String>, depth: usize) {
    if depth > DEEPEST || schema.is_unknown() {
        return;
    }
    match value {
        Value::Object(map) => {
            let resource = top || schema.is_embedded();
            let open = schema.keeps_unknown()
                || schema.get("additionalProperties").and_then(Value::as_bool).unwrap_or_default()
                || schema.kind() != Some("object");
            let unknown: Vec<String> = map
                .keys()
                .filter(|name| !(open || schema.field(name).is_some() || resource && is_envelope(name)))
                .cloned()
                .collect();
            for name in unknown {
                map.remove(&name);
                removed.push(join(path, &name));
            }
            for (name, child) in map.iter_mut() {
                let meta = resource && name == "metadata";
                let below = if meta { builtin::object_meta() } else { schema.field_or_unknown(name) };
                walk(child, below, &join(path, name), false, removed, depth + 1);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                walk(item, schema.items(), &format!("{path}[{index}]"), false, removed, depth + 1);
            }
        }
        _ => {}
    }
}

fn is_envelope(name: &str) -> bool {
    matches!(name, "apiVersion" | "kind" | "metadata")
}

pub(crate) fn default(object: &mut Value, schema: View<'_>) {
    default_at(object, schema, 0);
}

fn default_at(value: &mut Value, schema: View<'_>, depth: usize) {
    if depth > DEEPEST {
        return;
    }
    match value {
        Value::Object(map) => {
            for (name, _) in schema.properties().into_iter().flatten() {
                let Some(below) = schema.property(name) else { continue };
                let Some(default) = below.default() else { continue };
                let nullable = below.flag("nullable");
                let missing = map.get(name).is_none_or(|value| value.is_null() && !nullable);
                if missing && !default.is_null() {
                    map.insert(name.clone(), default.clone());
                }
            }
            for (name, child) in map.iter_mut() {
                default_at(child, schema.field_or_unknown(name), depth + 1);
            }
        }
        Value::Array(items) => {
            for item in items {
                default_at(item, schema.items(), depth + 1);
            }
        }
        _ => {}
    }
}

/// Removes forbidden nulls: they mean "not set".
pub(crate) fn drop_nulls(value: &mut Value, schema: View<'_>) {
    match value {
        Value::Object(map) => {
            // In string maps null means empty text.
            let words = schema.properties().is_none_or(Map::is_empty)
                && schema.additional().is_some_and(|below| below.kind() == Some("string"));
            if words {
                map.values_mut()
                    .filter(|value| value.is_null())
                    .for_each(|value| *value = Value::String(String::new()));
            }
            map.retain(|name, value| {
                !value.is_null() || schema.field(name).is_none_or(|below| below.flag("nullable"))
            });
            for (name, child) in map.iter_mut() {
                drop_nulls(child, schema.field_or_unknown(name));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| drop_nulls(item, schema.items())),
        _ => {}
    }
}

/// Removes empty optional maps and lists, which Go treats as missing.
pub(crate) fn drop_empty(value: &mut Value, schema: View<'_>) {
    match value {
        Value::Object(map) => {
            let named = schema.properties();
            map.retain(|name, child| {
                drop_empty(child, schema.field_or_unknown(name));
                let Some(below) = named.and_then(|_| schema.property(name)) else { return true };
                let empty = match &*child {
                    Value::Array(items) => items.is_empty() && below.kind() == Some("array"),
                    Value::Object(fields) => fields.is_empty() && below.additional().is_some(),
                    _ => false,
                };
                !empty || schema.required().any(|required| required == name)
            });
        }
        Value::Array(items) => items.iter_mut().for_each(|item| drop_empty(item, schema.items())),
        _ => {}
    }
}

/// Fields that the API always writes for a built-in kind.
pub(crate) fn zero(schema: View<'_>) -> Value {
    let mut map = Map::new();
    for (name, _) in schema.properties().into_iter().flatten() {
        let Some(below) = schema.property(name) else { continue };
        match below.default() {
            Some(Value::Object(_)) => _ = map.insert(name.clone(), zero(below)),
            Some(plain) if *plain == "" || *plain == 0 || *plain == false => {
                _ = map.insert(name.clone(), plain.clone());
            }
            _ if below.kind() == Some("array") && schema.required().any(|required| required == name) => {
                map.insert(name.clone(), Value::Null);
            }
            _ => {}
        }
    }
    Value::Object(map)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {
                "n": {"type": "integer", "default": 3},
                "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    "properties": {"typed": {"type": "object", "properties": {"a": {"type": "string"}}}}},
                "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"k": {"type": "string"}}}},
                "empty": {"type": "object"},
                "list": {"type": "array", "items": {"type": "object", "properties": {"d": {"type": "string", "default": "x"}}}},
            }},
        }})
    }

    #[test]
    fn unknown_fields_are_pruned_and_defaults_are_set() {
        let mut object = json!({
            "apiVersion": "t/v1", "kind": "T", "metadata": {"name": "n", "zip": 1}, "zap": 1,
            "spec": {
                "x": 1, "any": {"free": 1, "typed": {"a": "b", "c": 1}}, "map": {"q": {"k": "v", "w": 1}},
                "empty": {"gone": 1}, "list": [{"y": 1}],
            },
        });
        let schema = schema();
        let view = View::new(&schema, None);
        let mut removed = prune(&mut object, view);
        removed.sort();
        let expected = [
            "metadata.zip",
            "spec.any.typed.c",
            "spec.empty.gone",
            "spec.list[0].y",
            "spec.map.q.w",
            "spec.x",
            "zap",
        ];
        assert_eq!(removed, expected);
        default(&mut object, view);
        assert_eq!(object["spec"]["n"], 3);
        assert_eq!(object["spec"]["list"], json!([{"d": "x"}]));
        assert_eq!(object["spec"]["any"]["free"], 1);
    }
}
