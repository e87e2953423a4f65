//! JSON patch, merge patch and strategic merge patch. Server-side apply is in [`crate::fields::apply`].

mod strategic;

use json_patch::{AddOperation, CopyOperation, MoveOperation, PatchOperation};
use serde_json::{Map, Value};

use crate::json::{DEEPEST, is_deeper};
pub(crate) use strategic::strategic;

/// Most operations of a JSON patch.
const MOST_OPERATIONS: usize = 10_000;
/// Most bytes, as JSON, that all copies of a JSON patch add: each could double the object.
const MOST_COPIED: usize = 3 * 1024 * 1024;

/// Why a patch cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PatchError {
    /// It is not of its kind.
    #[error("the patch cannot be read: {0}")]
    Malformed(String),
    /// It cannot be done to this object.
    #[error("the server rejected our request due to an error in our request")]
    Inapplicable,
    /// A directive that nobody knows, and the map in which it is.
    #[error("unknown patch type: {0} in map: {1}")]
    Directive(String, String),
    /// Too many operations.
    #[error("The allowed maximum operations in a JSON patch is {MOST_OPERATIONS}, got {0}")]
    TooLarge(usize),
    /// An object that nests so deep is none that can be read back.
    #[error("the patched object would nest deeper than {DEEPEST} levels")]
    TooDeep,
}

/// RFC 6902.
pub(crate) fn json(object: &Value, patch: &Value) -> Result<Value, PatchError> {
    let nothing = Value::Array(Vec::new());
    let patch = if patch.is_null() { &nothing } else { patch };
    let operations = patch.as_array().filter(|all| all.iter().all(Value::is_object));
    let operations =
        operations.ok_or_else(|| PatchError::Malformed("a JSON patch is a list of objects".to_owned()))?;
    if operations.len() > MOST_OPERATIONS {
        return Err(PatchError::TooLarge(operations.len()));
    }
    let (mut patched, mut copied) = (object.clone(), 0);
    for operation in operations {
        // What an operation lacks is found when it is done, not when the patch is read.
        let operation = serde_json::from_value(operation.clone()).map_err(|_| PatchError::Inapplicable)?;
        let operation = as_go(operation, &patched);
        if !is_possible(&operation) {
            return Err(PatchError::Inapplicable);
        }
        if let Some(value) = placed(&operation, &patched) {
            if matches!(operation, PatchOperation::Copy(_)) {
                copied += value.to_string().len();
            }
            if copied > MOST_COPIED {
                return Err(PatchError::Inapplicable);
            }
            // Checked at each step: what is deeper could not even be dropped.
            if is_deeper(value, DEEPEST.saturating_sub(operation.path().count())) {
                return Err(PatchError::TooDeep);
            }
        }
        json_patch::patch(&mut patched, &[operation]).map_err(|_| PatchError::Inapplicable)?;
    }
    Ok(patched)
}

/// The library of real API servers can but replace an object as a whole, and not by nothing.
fn is_possible(operation: &PatchOperation) -> bool {
    match operation {
        PatchOperation::Replace(replace) => !replace.path.is_root() || !replace.value.is_null(),
        PatchOperation::Copy(CopyOperation { from, path })
        | PatchOperation::Move(MoveOperation { from, path }) => !from.is_root() && !path.is_root(),
        other => !other.path().is_root(),
    }
}

/// What an operation puts at its place.
fn placed<'a>(operation: &'a PatchOperation, object: &'a Value) -> Option<&'a Value> {
    match operation {
        PatchOperation::Add(add) => Some(&add.value),
        PatchOperation::Replace(replace) => Some(&replace.value),
        PatchOperation::Copy(copy) => object.pointer(copy.from.as_str()),
        PatchOperation::Move(from) => object.pointer(from.from.as_str()),
        PatchOperation::Remove(_) | PatchOperation::Test(_) => None,
    }
}

/// The library of real API servers replaces a field that is not there, too.
fn as_go(operation: PatchOperation, object: &Value) -> PatchOperation {
    match operation {
        PatchOperation::Replace(replace) => {
            let path = replace.path.to_string();
            let parent = path.rsplit_once('/').and_then(|(parent, _)| object.pointer(parent));
            if parent.is_some_and(Value::is_object) && object.pointer(&path).is_none() {
                PatchOperation::Add(AddOperation { path: replace.path, value: replace.value })
            } else {
                PatchOperation::Replace(replace)
            }
        }
        other => other,
    }
}

/// RFC 7386.
pub(crate) fn merge(object: &Value, patch: &Value) -> Value {
    let Value::Object(changes) = patch else { return patch.clone() };
    let mut merged = object.as_object().cloned().unwrap_or_default();
    for (name, change) in changes {
        if change.is_null() {
            merged.remove(name);
        } else {
            let before = merged.get(name).cloned().unwrap_or(Value::Object(Map::new()));
            merged.insert(name.clone(), merge(&before, change));
        }
    }
    Value::Object(merged)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_merge_patch_sets_and_removes() {
        let merged = merge(
            &json!({"a": {"b": 1, "c": 2}, "l": [1]}),
            &json!({"a": {"b": null, "d": {"e": null}}, "l": [2]}),
        );
        assert_eq!(merged, json!({"a": {"c": 2, "d": {}}, "l": [2]}));
    }

    #[test]
    fn a_json_patch_is_all_or_nothing() {
        let object = json!({"a": 1});
        let patch = json!([{"op": "add", "path": "/b", "value": 2}, {"op": "remove", "path": "/none"}]);
        assert!(matches!(json(&object, &patch), Err(PatchError::Inapplicable)));
        assert!(matches!(json(&object, &json!({"a": 1})), Err(PatchError::Malformed(_))));
    }
}
