//! Merges and prunes applied configurations; compares objects.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::set::{Set, field, is_leaf, item};
use crate::schema::{Relation, View};

pub(crate) fn merge(live: &Value, config: &Value, schema: View<'_>) -> Value {
    match (live, config) {
        (Value::Object(current), Value::Object(sent)) if !schema.map_is_atomic() => {
            let mut merged = current.clone();
            for (name, value) in sent {
                let below = schema.field_or_unknown(name);
                let value = current.get(name).map_or_else(|| value.clone(), |live| merge(live, value, below));
                merged.insert(name.clone(), value);
            }
            Value::Object(merged)
        }
        (Value::Array(current), Value::Array(sent)) if schema.list() != Relation::Atomic => {
            Value::Array(merge_lists(current, sent, schema))
        }
        // Null only requests existence.
        (Value::Object(_), Value::Null) if !schema.map_is_atomic() => live.clone(),
        (Value::Array(_), Value::Null) if schema.list() != Relation::Atomic => live.clone(),
        _ => config.clone(),
    }
}

/// Uses the configuration's order around items that it lacks.
fn merge_lists(current: &[Value], sent: &[Value], schema: View<'_>) -> Vec<Value> {
    let list = schema.list();
    let identity = |value: &Value| item(value, &list, schema).unwrap_or_default();
    let current: Vec<(String, &Value)> = current.iter().map(|value| (identity(value), value)).collect();
    let sent: Vec<(String, &Value)> = sent.iter().map(|value| (identity(value), value)).collect();
    let in_sent: BTreeSet<&str> = sent.iter().map(|(id, _)| id.as_str()).collect();
    // The first duplicate wins.
    let in_current: BTreeMap<&str, &Value> =
        current.iter().rev().map(|(id, value)| (id.as_str(), *value)).collect();
    let mut shared =
        sent.iter().map(|(id, _)| id.as_str()).filter(|id| in_current.contains_key(id)).peekable();
    let combined = |id: &str, value: &Value| match in_current.get(id) {
        Some(live) => merge(live, value, schema.items()),
        None => value.clone(),
    };
    let mut merged = Vec::with_capacity(current.len() + sent.len());
    let (mut left, mut right) = (current.iter().peekable(), sent.iter().peekable());
    loop {
        match (left.peek(), right.peek()) {
            (Some((l, _)), Some((r, value))) if l == r => {
                merged.push(combined(r, value));
                left.next();
                right.next();
                shared.next_if(|next| *next == r.as_str());
            }
            (Some((l, _)), Some(_))
                if in_sent.contains(l.as_str()) && shared.peek().is_some_and(|next| *next != l.as_str()) =>
            {
                left.next();
            }
            (Some((l, value)), _) if !in_sent.contains(l.as_str()) => {
                merged.push((*value).clone());
                left.next();
            }
            (_, Some((r, value))) => {
                merged.push(combined(r, value));
                right.next();
                shared.next_if(|next| *next == r.as_str());
            }
            (Some(_), None) => _ = left.next(),
            (None, None) => return merged,
        }
    }
}

/// Removes fields in `before` but not in `keep`.
pub(crate) fn prune(object: &mut Value, before: &Set, keep: &Set, schema: View<'_>) {
    match object {
        Value::Object(map) => {
            let gone: Vec<String> = map
                .keys()
                .filter(|name| {
                    let element = field(name);
                    // Struct fields exist for their children; map entries do not.
                    let named = schema.property(name).is_some();
                    let in_set = |set: &Set| set.is_member(&element) || named && set.has(&element);
                    in_set(before) && !in_set(keep)
                })
                .cloned()
                .collect();
            for name in gone {
                map.remove(&name);
            }
            for (name, child) in map.iter_mut() {
                let element = field(name);
                let below = schema.field_or_unknown(name);
                let Some(before) = before.below(&element).filter(|set| !set.is_empty()) else { continue };
                if is_leaf(child, below) {
                    continue;
                }
                let keep = keep.below(&element).cloned().unwrap_or_default();
                prune(child, before, &keep, below);
                // Kubernetes also leaves null; validation may refuse it.
                if child.as_object().is_some_and(Map::is_empty) || child.as_array().is_some_and(Vec::is_empty)
                {
                    *child = Value::Null;
                }
            }
        }
        Value::Array(items) => {
            let list = schema.list();
            items.retain(|value| {
                item(value, &list, schema)
                    .is_none_or(|element| !before.is_member(&element) || keep.is_member(&element))
            });
            for value in items {
                let Some(element) = item(value, &list, schema) else { continue };
                let Some(mut before) = before.below(&element).cloned() else { continue };
                if let Relation::Keyed(keys) = &list {
                    for key in keys {
                        before.remove(&[&field(key)]);
                    }
                }
                let keep = keep.below(&element).cloned().unwrap_or_default();
                prune(value, &before, &keep, schema.items());
            }
        }
        _ => {}
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) added: Set,
    pub(crate) modified: Set,
    pub(crate) removed: Set,
}

impl Difference {
    pub(crate) fn between(before: &Value, after: &Value, schema: View<'_>) -> Self {
        let old = Set::of_with_containers(before, schema);
        let new = Set::of_with_containers(after, schema);
        let mut modified = Set::default();
        changed(before, after, schema, &mut modified);
        modified.tidy();
        Self { added: new.without(&old), removed: old.without(&new), modified }
    }

    pub(crate) fn written(&self) -> Set {
        self.added.union(&self.modified)
    }
}

fn changed(before: &Value, after: &Value, schema: View<'_>, set: &mut Set) {
    match (before, after) {
        (Value::Object(old), Value::Object(new)) => {
            for (name, value) in new {
                let Some(previous) = old.get(name) else { continue };
                step(previous, value, schema.field_or_unknown(name), &field(name), set);
            }
        }
        (Value::Array(old), Value::Array(new)) => {
            let list = schema.list();
            let old: Map<String, Value> =
                old.iter().filter_map(|value| Some((item(value, &list, schema)?, value.clone()))).collect();
            for value in new {
                let Some(element) = item(value, &list, schema) else { continue };
                let Some(previous) = old.get(&element) else { continue };
                step(previous, value, schema.items(), &element, set);
            }
        }
        _ => {}
    }
}

fn step(before: &Value, after: &Value, schema: View<'_>, element: &str, set: &mut Set) {
    if before == after {
        return;
    }
    let container = |value: &Value| value.is_object() || value.is_array();
    let leaves = schema.map_is_atomic()
        || after.is_array() && schema.list() == Relation::Atomic
        || !(container(after) || before.is_null() || after.is_null())
        || container(after) && container(before) && before.is_object() != after.is_object();
    if leaves {
        set.insert(element);
    } else {
        changed(before, after, schema, set.below_mut(element));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({"type": "object", "properties": {
            "l": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n"],
                "items": {"type": "object", "properties": {"n": {"type": "string"}, "v": {"type": "string"}}}},
            "m": {"type": "object", "additionalProperties": {"type": "string"}},
            "s": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}},
        }})
    }

    #[test]
    fn lists_are_merged_in_the_order_of_the_configuration() {
        let schema = schema();
        let view = View::new(&schema, None);
        let live = json!({"l": [{"n": "a", "v": "1"}, {"n": "x"}, {"n": "b"}], "m": {"k": "v"}});
        let config = json!({"l": [{"n": "b", "v": "2"}, {"n": "a"}, {"n": "c"}]});
        let merged = merge(&live, &config, view);
        assert_eq!(merged["m"], json!({"k": "v"}));
        let order: Vec<&str> =
            merged["l"].as_array().unwrap().iter().map(|i| i["n"].as_str().unwrap()).collect();
        assert_eq!(order, ["x", "b", "a", "c"]);
        assert_eq!(merged["l"][2], json!({"n": "a", "v": "1"}));
    }

    #[test]
    fn fields_no_longer_applied_are_pruned() {
        let schema = schema();
        let view = View::new(&schema, None);
        let mut object = json!({"l": [{"n": "a", "v": "1"}, {"n": "b"}], "m": {"k": "v", "q": "w"}, "s": {"a": "1", "b": "2"}});
        let last = Set::of(&json!({"l": [{"n": "a"}, {"n": "b"}], "m": {"k": "v"}, "s": {"a": "1"}}), view);
        let keep = Set::of(&json!({"l": [{"n": "b"}]}), view);
        prune(&mut object, &last, &keep, view);
        // Both existed only for applied fields.
        assert_eq!(object, json!({"l": [{"n": "b"}]}));
    }

    #[test]
    fn differences_are_computed_per_field() {
        let schema = schema();
        let view = View::new(&schema, None);
        let before = json!({"l": [{"n": "a", "v": "1"}], "m": {"k": "v"}});
        let after = json!({"l": [{"n": "a", "v": "2"}, {"n": "b"}], "s": {"a": "1"}});
        let difference = Difference::between(&before, &after, view);
        assert_eq!(difference.modified.to_json(), json!({"f:l": {"k:{\"n\":\"a\"}": {"f:v": {}}}}));
        assert_eq!(
            difference.added.to_json(),
            json!({
                "f:l": {"k:{\"n\":\"b\"}": {".": {}, "f:n": {}}}, "f:s": {".": {}, "f:a": {}},
            })
        );
        assert_eq!(difference.removed.to_json(), json!({"f:m": {".": {}, "f:k": {}}}));
    }
}
