//! Fields that users may change (`spec.ignoreFields` of a ModuleTemplate).

use serde_json::{Map, Value};
use tidewatch_api::{IgnoredFields, object::ObjectRef};

use super::{Step, storage::grown};

/// Ignored fields of one object, as parts of JSON pointers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ignored<'a>(Vec<Vec<std::borrow::Cow<'a, str>>>);

impl<'a> Ignored<'a> {
    /// Selects an object's fields. Skips pointers without a leading `/`.
    #[must_use]
    pub fn of(all: &'a [IgnoredFields], object: &ObjectRef) -> Self {
        let fits = |i: &&IgnoredFields| {
            i.group == object.gvk.group
                && i.kind == object.gvk.kind
                && (i.name.is_empty() || i.name == object.name)
                && (i.namespace.is_empty() || i.namespace == object.namespace)
        };
        let paths = all.iter().filter(fits).flat_map(|i| &i.paths);
        let mut paths: Vec<_> = paths.filter_map(|path| path.strip_prefix('/')).map(parts).collect();
        // Secrets are applied with `data` only.
        if (object.gvk.group.as_str(), object.gvk.kind.as_str()) == ("", "Secret") {
            for first in paths.iter_mut().filter_map(|path| path.first_mut()) {
                if first == "stringData" {
                    *first = "data".into();
                }
            }
        }
        Self(paths)
    }

    /// Adds storage fields larger than wanted.
    #[must_use]
    pub fn and_grown(mut self, object: &ObjectRef, wanted: &Value, live: &Value) -> Self {
        self.0.extend(grown(object, wanted, live));
        self
    }

    /// Whether no field is ignored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Nothing below an ignored field is compared.
    pub(super) fn names(&self, at: &[Step]) -> bool {
        self.0.iter().any(|path| path.len() == at.len() && begins_with(path, at))
    }

    pub(super) fn is_below(&self, at: &[Step]) -> bool {
        self.0.iter().any(|path| path.len() > at.len() && begins_with(path, at))
    }

    pub(super) fn without(&self, wanted: &Value) -> Value {
        let mut remaining = wanted.clone();
        for path in &self.0 {
            let Some((last, above)) = path.split_last() else { continue };
            let at = above.iter().try_fold(&mut remaining, |at, part| match at {
                Value::Array(items) => items.get_mut(part.parse::<usize>().ok()?),
                at => at.get_mut(part.as_ref()),
            });
            match at {
                Some(Value::Object(members)) => drop(members.remove(last.as_ref())),
                Some(Value::Array(items)) => {
                    if let Some(item) = last.parse::<usize>().ok().and_then(|at| items.get_mut(at)) {
                        *item = Value::Null;
                    }
                }
                _ => {}
            }
        }
        remaining
    }

    /// Returns `wanted` with the live values of ignored fields. Omitting them would remove those without another
    /// owner.
    ///
    /// Indexes count the wanted list. Live items match by `name` or else by index, so unnamed items must not be
    /// reordered.
    #[must_use]
    pub fn with_live_values(&self, wanted: &Value, live: &Value) -> Value {
        let mut object = wanted.clone();
        for path in &self.0 {
            let parts: Vec<&str> = path.iter().map(AsRef::as_ref).collect();
            set(&mut object, live, &parts);
        }
        object
    }
}

/// Whether a path leads to `at` or through it.
fn begins_with(path: &[std::borrow::Cow<'_, str>], at: &[Step]) -> bool {
    path.iter().zip(at).all(|(part, step)| match step {
        Step::Member(name) => part == name,
        Step::Item(index, _) => part.parse() == Ok(*index),
    })
}

/// Parts of a JSON pointer without its first slash (RFC 6901, section 4).
fn parts(path: &str) -> Vec<std::borrow::Cow<'_, str>> {
    path.split('/')
        .map(
            |part| {
                if part.contains('~') {
                    part.replace("~1", "/").replace("~0", "~").into()
                } else {
                    part.into()
                }
            },
        )
        .collect()
}

/// Copies a field from `live`.
fn set(wanted: &mut Value, live: &Value, parts: &[&str]) {
    let Some((first, rest)) = parts.split_first() else { return };
    if let Value::Array(items) = wanted {
        let Some(index) = first.parse().ok().filter(|index: &usize| *index < items.len()) else { return };
        let item = counterpart(&items[index], index, live);
        match (rest.is_empty(), item) {
            (true, Some(live)) => items[index] = live.clone(),
            (false, Some(live)) => set(&mut items[index], live, rest),
            // Missing items are restored.
            (_, None) => {}
        }
        return;
    }
    let value = live.get(*first);
    if rest.is_empty() {
        let Some(members) = wanted.as_object_mut() else { return };
        match value {
            Some(value) => members.insert((*first).to_owned(), value.clone()),
            None => members.remove(*first),
        };
        return;
    }
    let Some(value) = value else { return };
    if wanted.get(*first).is_none_or(Value::is_null)
        && let Some(members) = wanted.as_object_mut()
    {
        members.insert((*first).to_owned(), Value::Object(Map::new()));
    }
    if let Some(below) = wanted.get_mut(*first) {
        set(below, value, rest);
    }
}

/// By name if it has one, else by index.
fn counterpart<'a>(item: &Value, index: usize, live: &'a Value) -> Option<&'a Value> {
    let items = live.as_array()?;
    match item.get("name").filter(|name| name.is_string()) {
        Some(name) => items.iter().find(|i| i.get("name") == Some(name)),
        None => items.get(index),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ignored_string_data_covers_data_of_secrets() {
        let all: Vec<IgnoredFields> = serde_json::from_value(json!([
            {"kind": "Secret", "paths": ["/stringData/user"]}, {"kind": "ConfigMap", "paths": ["/stringData/user"]}]))
        .unwrap();
        let kept = |kind: &str| {
            let object =
                ObjectRef::of(&json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "s"}})).unwrap();
            Ignored::of(&all, &object).with_live_values(
                &json!({"data": {"user": "ours", "k": "1"}}),
                &json!({"data": {"user": "mine", "k": "2"}}),
            )
        };
        assert_eq!(kept("Secret"), json!({"data": {"user": "mine", "k": "1"}}));
        assert_eq!(kept("ConfigMap"), json!({"data": {"user": "ours", "k": "1"}}));
    }
}
