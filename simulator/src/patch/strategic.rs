//! Strategic merge patch: a merge patch that knows which lists are merged by which key.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::PatchError;
use crate::schema::View;

const DIRECTIVE: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder/";
const DELETE_PRIMITIVES: &str = "$deleteFromPrimitiveList/";

/// The object with the patch in it.
pub(crate) fn strategic(object: &Value, patch: &Value, schema: View<'_>) -> Result<Value, PatchError> {
    let Value::Object(changes) = patch else {
        return Err(PatchError::Malformed("a strategic merge patch is an object".to_owned()));
    };
    match changes.get(DIRECTIVE).and_then(Value::as_str) {
        Some("replace") => {
            let mut whole = changes.clone();
            whole.remove(DIRECTIVE);
            return Ok(Value::Object(whole));
        }
        Some("delete") => return Ok(Value::Object(Map::new())),
        Some("merge") | None => {}
        Some(other) => return Err(PatchError::Malformed(format!("Unknown patch type found: {other}"))),
    }
    let mut merged = object.as_object().cloned().unwrap_or_default();
    if let Some(keep) = changes.get(RETAIN).and_then(Value::as_array) {
        merged.retain(|name, _| keep.iter().any(|kept| kept == name.as_str()));
    }
    for (name, gone) in changes {
        let Some(field) = name.strip_prefix(DELETE_PRIMITIVES) else { continue };
        let gone = gone.as_array().cloned().unwrap_or_default();
        if let Some(list) = merged.get_mut(field).and_then(Value::as_array_mut) {
            list.retain(|item| !gone.contains(item));
        }
    }
    for (name, change) in changes.iter().filter(|(name, _)| !name.starts_with('$')) {
        let below = schema.field_or_unknown(name);
        let order = changes.get(&format!("{ORDER}{name}")).and_then(Value::as_array);
        match change {
            Value::Null => _ = merged.remove(name),
            Value::Object(_) => {
                let before = merged.get(name).cloned().unwrap_or(Value::Null);
                merged.insert(name.clone(), strategic(&before, change, below)?);
            }
            Value::Array(items) if below.patch_strategy("merge") => {
                let before = merged.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
                merged.insert(name.clone(), Value::Array(lists(before, items, order, below)?));
            }
            _ => _ = merged.insert(name.clone(), change.clone()),
        }
    }
    // An order may be given for a list of which nothing else changes.
    for (name, order) in changes {
        let Some(field) = name.strip_prefix(ORDER).filter(|field| !changes.contains_key(*field)) else {
            continue;
        };
        if let (Some(Value::Array(list)), Some(order)) = (merged.get_mut(field), order.as_array()) {
            let below = schema.field_or_unknown(field);
            *list = ordered(std::mem::take(list), order, below.patch_key());
        }
    }
    Ok(Value::Object(merged))
}

fn lists(
    mut before: Vec<Value>,
    items: &[Value],
    order: Option<&Vec<Value>>,
    schema: View<'_>,
) -> Result<Vec<Value>, PatchError> {
    let Some(key) = schema.patch_key() else {
        // Scalars: a set.
        for item in items {
            if !before.contains(item) {
                before.push(item.clone());
            }
        }
        return Ok(order.map_or(before.clone(), |order| ordered(before, order, None)));
    };
    let directive = |item: &Value, what: &str| item.get(DIRECTIVE).and_then(Value::as_str) == Some(what);
    if items.iter().any(|item| directive(item, "replace")) {
        return Ok(items.iter().filter(|item| !directive(item, "replace")).cloned().collect());
    }
    for item in items {
        let Some(identity) = item.get(key) else {
            return Err(PatchError::Malformed(format!(
                "map: {item} does not contain declared merge key: {key}"
            )));
        };
        let position = before.iter().position(|have| have.get(key) == Some(identity));
        match (position, directive(item, "delete")) {
            (Some(_), true) => before.retain(|have| have.get(key) != Some(identity)),
            (None, true) => {}
            (Some(position), false) => {
                if let Some(have) = before.get_mut(position) {
                    *have = strategic(have, item, schema.items())?;
                }
            }
            (None, false) => before.push(strategic(&Value::Null, item, schema.items())?),
        }
    }
    Ok(ordered(before, order.map_or(items, Vec::as_slice), Some(key)))
}

/// In the given order; items that it does not name stay behind the one they followed.
fn ordered(list: Vec<Value>, order: &[Value], key: Option<&str>) -> Vec<Value> {
    let identity = |item: &Value| match key {
        Some(key) => item.get(key).map(Value::to_string).unwrap_or_default(),
        None => item.to_string(),
    };
    let wanted: Vec<String> = order.iter().map(identity).collect();
    let named: BTreeSet<&String> = wanted.iter().collect();
    let mut result: Vec<Value> = Vec::with_capacity(list.len());
    let (mut in_order, mut pending): (Vec<Value>, Vec<(Option<String>, Value)>) = (Vec::new(), Vec::new());
    let mut previous = None;
    for item in list {
        let id = identity(&item);
        if named.contains(&id) {
            in_order.push(item);
        } else {
            pending.push((previous.clone(), item));
        }
        previous = Some(id);
    }
    in_order.sort_by_key(|item| wanted.iter().position(|id| *id == identity(item)));
    result.append(&mut in_order);
    for (after, item) in pending {
        let at = after.and_then(|after| result.iter().position(|have| identity(have) == after));
        result.insert(at.map_or(0, |at| at + 1).min(result.len()), item);
    }
    result
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::builtin;

    fn patched(object: &Value, patch: &Value) -> Value {
        strategic(object, patch, builtin::view("io.k8s.api.core.v1.PodSpec")).unwrap()
    }

    #[test]
    fn lists_are_merged_by_key() {
        let pod = json!({"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}], "tolerations": [{"key": "x"}]});
        let patch = json!({"containers": [{"name": "b", "image": "2"}, {"name": "c"}], "tolerations": [{"key": "y"}]});
        assert_eq!(
            patched(&pod, &patch),
            json!({
                "containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}, {"name": "c"}],
                "tolerations": [{"key": "y"}],
            })
        );
    }

    #[test]
    fn directives() {
        let pod =
            json!({"containers": [{"name": "a"}, {"name": "b"}], "volumes": [{"name": "v", "emptyDir": {}}]});
        let patch = json!({
            "$setElementOrder/containers": [{"name": "c"}, {"name": "b"}],
            "containers": [{"name": "a", "$patch": "delete"}, {"name": "c"}],
            "volumes": [{"name": "v", "$retainKeys": ["name", "secret"], "secret": {"secretName": "s"}}],
        });
        assert_eq!(
            patched(&pod, &patch),
            json!({
                "containers": [{"name": "c"}, {"name": "b"}],
                "volumes": [{"name": "v", "secret": {"secretName": "s"}}],
            })
        );
        let object = json!({"metadata": {"finalizers": ["a", "b"]}});
        let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c"]}});
        let schema = builtin::view("io.k8s.api.core.v1.ConfigMap");
        assert_eq!(
            strategic(&object, &patch, schema).unwrap(),
            json!({"metadata": {"finalizers": ["b", "c"]}})
        );
    }
}
