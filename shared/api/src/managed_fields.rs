//! Field sets of `metadata.managedFields` (`FieldsV1`).

use serde_json::{Map, Value, json};

/// Adds the fields of `from` to `into`.
pub fn union(into: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (key, value) in from {
        match (into.entry(key.clone()).or_insert_with(|| json!({})), value) {
            (Value::Object(into), Value::Object(from)) => union(into, from),
            (into, from) => *into = from.clone(),
        }
    }
}
