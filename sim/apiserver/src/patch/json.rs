//! JSON patch (RFC 6902) as in Kubernetes' library. Negative indices count from a list's end. Missing values
//! equal null. Text before the path's first slash is ignored. The whole object can only be replaced.

use serde_json::Value;

use super::error::{MAX_OPERATIONS, PatchError};
use crate::json::{DEEPEST, is_deeper};

/// Limits copied JSON: each copy could double the object.
const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;

#[derive(Default)]
struct Operation<'a> {
    op: &'a str,
    path: &'a str,
    from: &'a str,
    value: Value,
}

pub(crate) fn json(object: &Value, patch: &Value) -> Result<Value, PatchError> {
    let malformed = || PatchError::Malformed("a JSON patch is a list of objects".to_owned());
    let operations = match patch {
        Value::Null => &[],
        Value::Array(operations) => operations.as_slice(),
        _ => return Err(malformed()),
    };
    let operations: Vec<Operation<'_>> =
        operations.iter().map(Operation::read).collect::<Option<_>>().ok_or_else(malformed)?;
    if operations.len() > MAX_OPERATIONS {
        return Err(PatchError::TooLarge(operations.len()));
    }
    let (mut patched, mut copied) = (object.clone(), 0);
    for operation in operations {
        operation.run(&mut patched, &mut copied)?;
    }
    Ok(patched)
}

impl<'a> Operation<'a> {
    fn read(operation: &'a Value) -> Option<Self> {
        if operation.is_null() {
            return Some(Self::default());
        }
        let fields = operation.as_object()?;
        let text = |name: &str| match fields.get(name) {
            None | Some(Value::Null) => Some(""),
            Some(other) => other.as_str(),
        };
        let value = fields.get("value").cloned().unwrap_or_default();
        Some(Self { op: text("op")?, path: text("path")?, from: text("from")?, value })
    }

    /// Adds copied bytes to `copied`.
    fn run(self, object: &mut Value, copied: &mut usize) -> Result<(), PatchError> {
        let Self { op, path, from, value } = self;
        let done = match op {
            "add" => insert(object, path, shallow(path, value)?),
            "replace" if path.is_empty() && !value.is_null() => {
                *object = shallow(path, value)?;
                Some(())
            }
            "replace" => replace(object, path, shallow(path, value)?),
            "remove" => remove(object, path).map(|_| ()),
            "move" => match remove(object, from) {
                Some(value) => insert(object, path, shallow(path, value)?),
                None => None,
            },
            "copy" => match get(object, from) {
                Some(value) => {
                    *copied += value.to_string().len();
                    if *copied > MAX_COPIED_BYTES {
                        return Err(PatchError::Inapplicable);
                    }
                    insert(object, path, shallow(path, value)?)
                }
                None => None,
            },
            "test" => get(object, path).filter(|have| *have == value).map(|_| ()),
            _ => None,
        };
        done.ok_or(PatchError::Inapplicable)
    }
}

/// Dropping a too deep value could overflow the stack.
fn shallow(path: &str, value: Value) -> Result<Value, PatchError> {
    let above = path.split('/').skip(1).count();
    if is_deeper(&value, DEEPEST.saturating_sub(above)) { Err(PatchError::TooDeep) } else { Ok(value) }
}

/// Returns the parent and the last step.
fn locate<'a>(object: &'a mut Value, path: &str) -> Option<(&'a mut Value, String)> {
    let steps = path.split('/').skip(1).map(|step| step.replace("~1", "/").replace("~0", "~"));
    let mut steps: Vec<String> = steps.collect();
    let last = steps.pop()?;
    let mut here = object;
    for step in steps {
        here = match here {
            Value::Object(map) => map.get_mut(&step)?,
            Value::Array(items) => {
                let index = index(&step, items.len())?;
                items.get_mut(index)?
            }
            _ => return None,
        };
    }
    Some((here, last))
}

/// Negative indices count from the end.
fn index(text: &str, many: usize) -> Option<usize> {
    let many = i64::try_from(many).ok()?;
    let index: i64 = text.parse().ok()?;
    let index = if index < 0 { index.checked_add(many)? } else { index };
    usize::try_from(index).ok().filter(|_| index < many)
}

/// A map's missing value is null.
fn get(object: &mut Value, path: &str) -> Option<Value> {
    match locate(object, path)? {
        (Value::Object(map), name) => Some(map.get(&name).cloned().unwrap_or_default()),
        (Value::Array(items), at) => items.get(index(&at, items.len())?).cloned(),
        _ => None,
    }
}

fn insert(object: &mut Value, path: &str, value: Value) -> Option<()> {
    match locate(object, path)? {
        (Value::Object(map), name) => _ = map.insert(name, value),
        (Value::Array(items), at) if at == "-" => items.push(value),
        (Value::Array(items), at) => items.insert(index(&at, items.len() + 1)?, value),
        _ => return None,
    }
    Some(())
}

fn replace(object: &mut Value, path: &str, value: Value) -> Option<()> {
    match locate(object, path)? {
        (Value::Object(map), name) => _ = map.insert(name, value),
        (Value::Array(items), at) => {
            let index = index(&at, items.len())?;
            *items.get_mut(index)? = value;
        }
        _ => return None,
    }
    Some(())
}

fn remove(object: &mut Value, path: &str) -> Option<Value> {
    match locate(object, path)? {
        (Value::Object(map), name) => map.remove(&name),
        (Value::Array(items), at) => index(&at, items.len()).map(|index| items.remove(index)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_json_patch_is_all_or_nothing() {
        let object = json!({"a": 1});
        let patch = json!([{"op": "add", "path": "/b", "value": 2}, {"op": "remove", "path": "/none"}]);
        assert!(matches!(json(&object, &patch), Err(PatchError::Inapplicable)));
        assert!(matches!(json(&object, &json!({"a": 1})), Err(PatchError::Malformed(_))));
        assert!(matches!(json(&object, &json!([{"op": 1}])), Err(PatchError::Malformed(_))));
        assert!(matches!(json(&object, &json!([null])), Err(PatchError::Inapplicable)));
    }

    #[test]
    fn json_patch_list_indexes_work_as_in_kubernetes() {
        let list = json!({"l": [1, 2, 3], "a/b": {"~": 4}});
        let of = |op: Value| json(&list, &json!([op])).map(|object| object["l"].clone()).ok();
        let add = |at: &str| of(json!({"op": "add", "path": format!("/l/{at}"), "value": 0}));
        assert_eq!(add("-"), Some(json!([1, 2, 3, 0])));
        assert_eq!(add("-1"), Some(json!([1, 2, 3, 0])));
        assert_eq!(add("-4"), Some(json!([0, 1, 2, 3])));
        assert_eq!(add("01"), Some(json!([1, 0, 2, 3])));
        assert_eq!(
            [add("4"), add("-5"), add("x"), add(""), add("-9223372036854775808")],
            [const { None }; 5]
        );
        assert_eq!(of(json!({"op": "remove", "path": "/l/-1"})), Some(json!([1, 2])));
        assert_eq!(of(json!({"op": "replace", "path": "/l/-3", "value": 0})), Some(json!([0, 2, 3])));
        assert_eq!(of(json!({"op": "move", "from": "/a~1b/~0", "path": "/l/0"})), Some(json!([4, 1, 2, 3])));
        assert!(of(json!({"op": "move", "from": "/l", "path": "/l/0"})).is_none());
        assert!(of(json!({"op": "test", "path": "/none"})).is_some());
        assert!(of(json!({"op": "test", "path": "/l/3"})).is_none());
    }
}
