//! Differing fields' paths. Never values: an object may be a Secret.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// Reported paths per object, at most.
pub(super) const MAX_FIELDS: usize = 20;

/// Metadata set by the API server.
const SERVERS: [&str; 6] =
    ["managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink"];

/// Returns at most [`MAX_FIELDS`] + 1 paths, as `spec.containers[main].image`; of a Secret's data only that it differs.
pub(super) fn differing(before: &Value, after: &Value, is_secret: bool) -> BTreeSet<String> {
    let mut walk = Walk { is_secret, found: BTreeSet::new() };
    walk.value("", before, after);
    walk.found
}

struct Walk {
    is_secret: bool,
    found: BTreeSet<String>,
}

impl Walk {
    fn value(&mut self, at: &str, before: &Value, after: &Value) {
        if before == after || self.found.len() > MAX_FIELDS {
            return;
        }
        match (before, after) {
            _ if self.is_secret && matches!(at, "data" | "stringData") => self.found(at),
            (Value::Object(before), Value::Object(after)) => self.members(at, before, after),
            (Value::Array(before), Value::Array(after)) => self.items(at, before, after),
            _ => self.found(at),
        }
    }

    fn found(&mut self, at: &str) {
        self.found.insert(if at.is_empty() { "everything".to_owned() } else { at.to_owned() });
    }

    fn members(&mut self, at: &str, before: &Map<String, Value>, after: &Map<String, Value>) {
        let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        for name in names {
            if at == "metadata" && SERVERS.contains(&name.as_str()) {
                continue;
            }
            let path = match (at.is_empty(), name.contains(['.', '/'])) {
                (true, _) => name.clone(),
                (false, false) => format!("{at}.{name}"),
                (false, true) => format!("{at}[{name}]"),
            };
            self.value(
                &path,
                before.get(name).unwrap_or(&Value::Null),
                after.get(name).unwrap_or(&Value::Null),
            );
        }
    }

    /// By name or type, else by position.
    fn items(&mut self, at: &str, before: &[Value], after: &[Value]) {
        for key in ["name", "type"] {
            if let (Some(before), Some(after)) = (keyed(before, key), keyed(after, key)) {
                return self.keyed_items(at, &before, &after);
            }
        }
        if before.len() != after.len() {
            return self.found(at);
        }
        for (index, (before, after)) in before.iter().zip(after).enumerate() {
            self.value(&format!("{at}[{index}]"), before, after);
        }
    }

    fn keyed_items(&mut self, at: &str, before: &Map<String, Value>, after: &Map<String, Value>) {
        let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        for name in names {
            let path = format!("{at}[{name}]");
            self.value(
                &path,
                before.get(name).unwrap_or(&Value::Null),
                after.get(name).unwrap_or(&Value::Null),
            );
        }
    }
}

/// By a unique text member.
fn keyed(items: &[Value], key: &str) -> Option<Map<String, Value>> {
    let mut by_key = Map::new();
    for item in items {
        let name = item.get(key)?.as_str()?;
        if by_key.insert(name.to_owned(), item.clone()).is_some() {
            return None;
        }
    }
    Some(by_key)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn paths(before: Value, after: Value) -> Vec<String> {
        differing(&before, &after, false).into_iter().collect()
    }

    #[test]
    fn differing_fields_are_named_by_path() {
        let object = |image: &str, more: Value| {
            json!({"metadata": {"resourceVersion": image, "managedFields": [image], "labels": {"a.b/c": image}},
                   "spec": {"containers": [{"name": "main", "image": image}, {"name": "side"}], "args": [1, 2], "extra": more}})
        };
        assert_eq!(
            paths(object("a", json!([1])), object("b", json!([1, 2]))),
            ["metadata.labels[a.b/c]", "spec.containers[main].image", "spec.extra"]
        );
        assert!(paths(object("a", json!(1)), object("a", json!(1))).is_empty());
        let conditions = |types: &[&str]| {
            let all: Vec<Value> = types.iter().map(|t| json!({"type": t})).collect();
            json!({"status": {"conditions": all}})
        };
        assert_eq!(paths(conditions(&["A", "B"]), conditions(&["B"])), ["status.conditions[A]"]);
        assert_eq!(paths(Value::Null, json!({"a": 1})), ["everything"]);
    }

    #[test]
    fn the_number_of_named_fields_is_limited() {
        let many = |value: u64| -> Value {
            json!({"data": (0..100).map(|n| (format!("k{n}"), json!(value))).collect::<Map<_, _>>()})
        };
        assert_eq!(paths(many(1), many(2)).len(), MAX_FIELDS + 1);
    }

    #[test]
    fn differing_secret_values_are_not_shown() {
        let secret = |password: &str| json!({"data": {"password": password}, "stringData": {"x": password}, "type": "Opaque"});
        let found = differing(&secret("a"), &secret("b"), true);
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["data", "stringData"]);
    }
}
