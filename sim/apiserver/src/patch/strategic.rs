//! Strategic merge patch: merges lists by key.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::error::PatchError;
use crate::schema::View;

const DIRECTIVE: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder/";
const DELETE_PRIMITIVES: &str = "$deleteFromPrimitiveList/";

pub(crate) fn strategic(object: &Value, patch: &Value, schema: View<'_>) -> Result<Value, PatchError> {
    let nothing = Map::new();
    let changes = match patch {
        Value::Object(changes) => changes,
        Value::Null => &nothing,
        _ => return Err(PatchError::Malformed("a strategic merge patch is an object".to_owned())),
    };
    match changes.get(DIRECTIVE) {
        Some(Value::String(word)) if word == "replace" => {
            let mut whole = changes.clone();
            whole.remove(DIRECTIVE);
            return Ok(Value::Object(whole));
        }
        Some(Value::String(word)) if word == "delete" => return Ok(Value::Object(Map::new())),
        Some(other) => return Err(PatchError::Directive(shown(other), shown(patch))),
        None => {}
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
            // Directives do not create missing fields.
            Value::Object(map) if map.contains_key(DIRECTIVE) && !merged.contains_key(name) => {}
            Value::Object(_) => {
                let before = merged.get(name).cloned().unwrap_or(Value::Null);
                merged.insert(name.clone(), strategic(&before, change, below)?);
            }
            Value::Array(items) if below.patch_strategy("merge") => {
                let before = merged.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
                merged.insert(name.clone(), Value::Array(lists(&before, items, order, below)?));
            }
            _ => _ = merged.insert(name.clone(), change.clone()),
        }
    }
    // An unchanged list may be reordered.
    for (name, order) in changes {
        let Some(field) = name.strip_prefix(ORDER).filter(|field| !changes.contains_key(*field)) else {
            continue;
        };
        if let (Some(Value::Array(list)), Some(order)) = (merged.get_mut(field), order.as_array()) {
            let below = schema.field_or_unknown(field);
            let server = std::mem::take(list);
            *list = ordered(server.clone(), order, &server, below.patch_key());
        }
    }
    Ok(Value::Object(merged))
}

fn lists(
    server: &[Value],
    items: &[Value],
    order: Option<&Vec<Value>>,
    schema: View<'_>,
) -> Result<Vec<Value>, PatchError> {
    let mut before = server.to_vec();
    let Some(key) = schema.patch_key() else {
        for item in items {
            if !before.contains(item) {
                before.push(item.clone());
            }
        }
        return Ok(ordered(before, order.map_or(items, Vec::as_slice), server, None));
    };
    let directive = |item: &Value, word: &str| item.get(DIRECTIVE).and_then(Value::as_str) == Some(word);
    if items.iter().any(|item| directive(item, "replace")) {
        return Ok(items.iter().filter(|item| !directive(item, "replace")).cloned().collect());
    }
    if server.is_empty() {
        // Unmerged items need no checks.
        let made = items.iter().filter(|item| item.get(DIRECTIVE).is_none());
        let made = made.map(|item| match item {
            Value::Object(_) => strategic(&Value::Null, item, schema.items()),
            other => Ok(other.clone()),
        });
        let made: Vec<Value> = made.collect::<Result<_, _>>()?;
        return Ok(ordered(made, order.map_or(items, Vec::as_slice), server, Some(key)));
    }
    for item in items {
        if let Some(other) = item.get(DIRECTIVE).filter(|word| *word != "delete") {
            return Err(PatchError::Directive(shown(other), shown(item)));
        }
        let Some(identity) = item.get(key) else {
            return Err(PatchError::Keyless(shown(item), key.to_owned()));
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
    Ok(ordered(before, order.map_or(items, Vec::as_slice), server, Some(key)))
}

/// Go's format.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(shown).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let fields: Vec<String> =
                map.iter().map(|(name, value)| format!("{name}:{}", shown(value))).collect();
            format!("map[{}]", fields.join(" "))
        }
        other => other.to_string(),
    }
}

/// Sorts by `order`, unlisted items by `server`. An unlisted item comes first only if it preceded the next
/// listed one.
fn ordered(list: Vec<Value>, order: &[Value], server: &[Value], key: Option<&str>) -> Vec<Value> {
    let identity = |item: &Value| match key {
        Some(key) => item.get(key).map(Value::to_string).unwrap_or_default(),
        None => item.to_string(),
    };
    let positions = |items: &[Value]| -> BTreeMap<String, usize> {
        items.iter().map(identity).enumerate().map(|(position, id)| (id, position)).collect()
    };
    let (wanted, before) = (positions(order), positions(server));
    let (mut named, mut others): (Vec<Value>, Vec<Value>) =
        list.into_iter().partition(|item| wanted.contains_key(&identity(item)));
    named.sort_by_key(|item| wanted.get(&identity(item)).copied());
    others.sort_by_key(|item| before.get(&identity(item)).copied());
    let position = |item: Option<&Value>| before.get(&identity(item?)).copied();
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    let mut result = Vec::new();
    loop {
        let was_before = match (position(others.peek()), position(named.peek())) {
            (Some(other), Some(next)) => other < next,
            _ => named.peek().is_none(),
        };
        match if was_before { others.next() } else { named.next() } {
            Some(item) => result.push(item),
            None => return result,
        }
    }
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
    fn strategic_merge_directives_are_applied() {
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
            json!({"metadata": {"finalizers": ["c", "b"]}})
        );
    }

    #[test]
    fn new_list_items_keep_the_patchs_order() {
        let pod = json!({"containers": [{"name": "a"}, {"name": "b"}]});
        let names = |patch: Value| -> Vec<Value> {
            let containers = patched(&pod, &json!({"containers": patch}))["containers"].take();
            containers.as_array().unwrap().iter().map(|one| one["name"].clone()).collect()
        };
        assert_eq!(names(json!([{"name": "new"}])), ["new", "a", "b"]);
        assert_eq!(names(json!([{"name": "b"}, {"name": "new"}])), ["a", "b", "new"]);
        assert_eq!(names(json!([{"name": "a"}, {"name": "new"}])), ["a", "new", "b"]);
    }
}
