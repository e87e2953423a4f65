//! Compares an object in a runtime with its wanted state.
//!
//! An apply without changes still costs an API server a write. `metadata.managedFields` predicts it: the object is up
//! to date if the engine's entry covers exactly the wanted fields, and these have the wanted values.
//!
//! An API server rewrites some values:
//!
//! - It drops empty ones (null, `false`, `0`, `""`, `[]`, `{}`). Owned but missing fields are up to date: other
//!   managers that remove fields also take their ownership.
//! - It normalises quantities (`1000m` becomes `1`): they are compared by value.
//! - For others, the object has a [note](with_note).

use std::fmt::{self, Write as _};

use serde_json::{Map, Value};
use tidewatch_api::{names::annotations, object::is_custom_group};

mod empty;
mod ignore;
mod leftover;
mod note;
mod quantity;
mod storage;

pub use ignore::Ignored;
pub use leftover::{Leftover, leftovers};
pub use note::with_note;
pub use storage::can_grow;

/// Change that an apply would make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Never applied in this API version.
    NotApplied,
    /// Changed field.
    Field {
        /// Path, such as `spec.template.spec.containers[name=a].image`.
        path: String,
        /// Another field manager that owns it.
        by: Option<String>,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotApplied => f.write_str("it was not applied in this version"),
            Self::Field { path, by: Some(by) } => write!(f, "{path} is the field manager's '{by}'"),
            Self::Field { path, by: None } => write!(f, "{path} differs"),
        }
    }
}

/// Returns the first change that applying `wanted` would make. Ignored fields do not count. In doubt, there is a
/// change.
#[must_use]
pub fn difference(live: &Value, wanted: &Value, manager: &str, ignored: &Ignored<'_>) -> Option<Difference> {
    compare(live, wanted, manager, ignored, note::is_of(live, wanted, ignored))
}

/// `noted`: whether an API server made `live` from `wanted`.
fn compare(
    live: &Value,
    wanted: &Value,
    manager: &str,
    ignored: &Ignored<'_>,
    noted: bool,
) -> Option<Difference> {
    let Some(fields) = fields_of(live, wanted, manager) else { return Some(Difference::NotApplied) };
    let group = wanted["apiVersion"].as_str().and_then(|v| v.split_once('/')).map_or("", |(group, _)| group);
    // Custom resources are stored as written.
    let built_in = !is_custom_group(group);
    let mut walk = Walk { ignored, built_in, noted, at: Vec::new() };
    if walk.same(fields, live, wanted) {
        return None;
    }
    let by = owner(entries(live), manager, &walk.at);
    Some(Difference::Field { path: text(&walk.at), by })
}

fn entries(live: &Value) -> &[Value] {
    live["metadata"]["managedFields"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn fields_of<'a>(live: &'a Value, wanted: &Value, manager: &str) -> Option<&'a Map<String, Value>> {
    let is_engine_entry = |e: &&Value| {
        e["manager"] == manager
            && e["operation"] == "Apply"
            && e["subresource"].as_str().unwrap_or_default().is_empty()
            && e["apiVersion"] == wanted["apiVersion"]
    };
    entries(live).iter().find(is_engine_entry)?["fieldsV1"].as_object()
}

/// Hashes `manager`'s fields and their live values.
#[must_use]
pub fn content(live: &Value, wanted: &Value, manager: &str) -> u64 {
    let mut text = String::new();
    if let Some(fields) = fields_of(live, wanted, manager) {
        collect(fields, live, &mut text);
    }
    xxhash_rust::xxh3::xxh3_64(text.as_bytes())
}

fn collect(fields: &Map<String, Value>, live: &Value, text: &mut String) {
    let mut children = fields.iter().filter(|(key, _)| *key != ".").peekable();
    if children.peek().is_none() {
        let _ = write!(text, "{live}");
    }
    for (key, below) in children {
        let _ = write!(text, "\n{key}:");
        let Some(below) = below.as_object() else { continue };
        let live = match key.strip_prefix("f:") {
            Some(name) => live.get(name),
            None => named(key).and_then(|name| name.find(live.as_array()?)),
        };
        collect(below, live.unwrap_or(&Value::Null), text);
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Member(String),
    /// Index in the wanted list, and key in `managedFields`.
    Item(usize, String),
}

const NOTE: [&str; 3] = ["metadata", "annotations", annotations::APPLIED];

struct Walk<'a> {
    ignored: &'a Ignored<'a>,
    /// The API server rewrites quantities and drops empty values.
    built_in: bool,
    /// See [`compare`].
    noted: bool,
    /// Current path; at the end, the difference's.
    at: Vec<Step>,
}

impl Walk<'_> {
    /// Whether exactly the wanted fields are owned, with wanted values.
    fn same(&mut self, fields: &Map<String, Value>, live: &Value, wanted: &Value) -> bool {
        let children = fields.iter().filter(|(key, _)| *key != ".");
        if children.clone().next().is_none() {
            let is_same = match wanted {
                Value::Null => empty::is_empty(live),
                _ => subset(live, wanted, self.built_in.then(|| quantity::is_at(&self.at))),
            };
            return is_same || self.noted && !live.is_null();
        }
        let mut matched = 0;
        for (key, below) in children {
            let Some((step, live, wanted)) = descend(key, live, wanted) else {
                // An apply would remove it.
                self.at.push(match key.strip_prefix("f:") {
                    Some(name) => Step::Member(name.to_owned()),
                    None => Step::Item(usize::MAX, key.clone()),
                });
                if self.is_ignored() || self.is_note(below) || !exists(key, live) {
                    self.at.pop();
                    continue;
                }
                return false;
            };
            matched += 1;
            self.at.push(step);
            let empty = Map::new();
            if !self.is_ignored() && !self.same(below.as_object().unwrap_or(&empty), live, wanted) {
                return false;
            }
            self.at.pop();
        }
        match wanted {
            Value::Array(items) => items.len() == matched,
            _ => self.all_named(fields, live, wanted),
        }
    }

    fn all_named(&mut self, fields: &Map<String, Value>, live: &Value, wanted: &Value) -> bool {
        for (name, value) in wanted.as_object().into_iter().flatten() {
            let identity = match self.at.as_slice() {
                [] => matches!(name.as_str(), "apiVersion" | "kind"),
                [Step::Member(top)] if top == "metadata" => matches!(name.as_str(), "name" | "namespace"),
                _ => false,
            };
            if identity || fields.contains_key(&format!("f:{name}")) || self.is_void(&live[name], value) {
                continue;
            }
            self.at.push(Step::Member(name.clone()));
            // No entry names metadata with only a name, or maps of ignored fields.
            let may_own_nothing = self.at.len() == 1 && name == "metadata"
                || value.is_object() && self.ignored.is_below(&self.at);
            let owns_nothing = may_own_nothing && self.all_named(&Map::new(), &live[name], value);
            if !owns_nothing && !self.is_ignored() {
                return false;
            }
            self.at.pop();
        }
        true
    }

    /// Whether nothing in a value can be owned, and the live object has nothing there.
    fn is_void(&self, live: &Value, wanted: &Value) -> bool {
        wanted.is_null()
            || empty::owns_nothing(wanted)
                && empty::is_empty(live)
                && (!live.is_null() || self.built_in || self.noted)
    }

    fn is_ignored(&self) -> bool {
        self.ignored.names(&self.at)
    }

    /// Whether the path has nothing but the note.
    fn is_note(&self, below: &Value) -> bool {
        let above = self.at.iter().filter_map(|step| match step {
            Step::Member(name) => Some(name.as_str()),
            Step::Item(..) => None,
        });
        let only = |fields: &Value| {
            let mut names = fields.as_object()?.iter().filter(|(key, _)| *key != ".");
            names.next().filter(|_| names.next().is_none()).map(|(key, below)| (key.clone(), below.clone()))
        };
        let mut path: Vec<String> = above.map(str::to_owned).collect();
        let mut next = only(below);
        while let Some((key, below)) = next.take_if(|_| path.len() < NOTE.len()) {
            path.push(key.strip_prefix("f:").unwrap_or(&key).to_owned());
            next = only(&below);
        }
        path == NOTE
    }
}

/// `None` if the wanted value lacks the key.
fn descend<'a>(key: &str, live: &'a Value, wanted: &'a Value) -> Option<(Step, &'a Value, &'a Value)> {
    if let Some(name) = key.strip_prefix("f:") {
        let wanted = wanted.get(name)?;
        return Some((Step::Member(name.to_owned()), live.get(name).unwrap_or(&Value::Null), wanted));
    }
    let name = named(key)?;
    let items = wanted.as_array()?;
    let at = name.position(items).or_else(|| items.iter().position(|item| name.fits(item)))?;
    let in_live = live.as_array().and_then(|items| name.find(items));
    Some((Step::Item(at, key.to_owned()), in_live.unwrap_or(&Value::Null), &items[at]))
}

/// In doubt, `true`.
fn exists(key: &str, live: &Value) -> bool {
    match (key.strip_prefix("f:"), named(key)) {
        (Some(name), _) => !live[name].is_null(),
        (None, Some(name)) => live.as_array().is_some_and(|items| name.position(items).is_some()),
        (None, None) => true,
    }
}

/// Identity of an item in a merged list.
enum Name {
    Value(Value),
    Keys(Map<String, Value>),
}

fn named(key: &str) -> Option<Name> {
    let name: Value = serde_json::from_str(key.get(2..)?).ok()?;
    match (key.get(..2)?, name) {
        ("v:", value) => Some(Name::Value(value)),
        ("k:", Value::Object(keys)) => Some(Name::Keys(keys)),
        _ => None,
    }
}

impl Name {
    /// Only the API server knows the defaults of missing keys, so [`Self::position`] comes first.
    fn fits(&self, item: &Value) -> bool {
        match self {
            Self::Value(value) => item == value,
            Self::Keys(keys) => keys.iter().all(|(k, v)| item.get(k).is_none_or(|i| same_number(i, v))),
        }
    }

    fn position(&self, items: &[Value]) -> Option<usize> {
        items.iter().position(|item| match self {
            Self::Value(value) => item == value,
            Self::Keys(keys) => keys.iter().all(|(k, v)| item.get(k).is_some_and(|i| same_number(i, v))),
        })
    }

    fn find<'a>(&self, items: &'a [Value]) -> Option<&'a Value> {
        match (self.position(items), self) {
            (Some(index), _) => items.get(index),
            (None, Self::Value(_)) => None,
            // An empty key is stored as its default.
            (None, Self::Keys(keys)) => items.iter().find(|item| {
                keys.values().any(empty::is_empty)
                    && keys
                        .iter()
                        .all(|(k, v)| empty::is_empty(v) || item.get(k).is_some_and(|i| same_number(i, v)))
            }),
        }
    }
}

/// Whether `live` contains `wanted`.
#[must_use]
pub fn has(live: &Value, wanted: &Value) -> bool {
    subset(live, wanted, Some(false))
}

/// Whether `live` contains `wanted`, except empty values. Others in `live` are defaults.
///
/// `quantity`: `None` if the API server rewrites none.
fn subset(live: &Value, wanted: &Value, quantity: Option<bool>) -> bool {
    match (live, wanted) {
        (Value::Null, wanted) => empty::is_empty(wanted),
        (Value::Object(live), Value::Object(wanted)) => wanted.iter().all(|(key, value)| {
            let quantity = quantity.map(|above| above || quantity::is_field(key));
            value.is_null() || subset(live.get(key).unwrap_or(&Value::Null), value, quantity)
        }),
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len()
                && live.iter().zip(wanted).all(|(live, wanted)| subset(live, wanted, quantity))
        }
        (live, Value::Null) => empty::is_empty(live),
        (live, wanted) => same_number(live, wanted) || quantity == Some(true) && quantity::same(live, wanted),
    }
}

/// `1` equals `1.0`.
fn same_number(a: &Value, b: &Value) -> bool {
    a == b || matches!((a.as_f64(), b.as_f64()), (Some(a), Some(b)) if a.to_bits() == b.to_bits())
}

/// Most recent owner of the field or its content, besides `manager`.
fn owner(entries: &[Value], manager: &str, at: &[Step]) -> Option<String> {
    let others = entries.iter().filter(|e| e["manager"] != manager);
    let reach = |entry: &Value| {
        let mut fields = &entry["fieldsV1"];
        let reached = at.iter().take_while(|step| {
            let key = match step {
                Step::Member(name) => format!("f:{name}"),
                Step::Item(_, key) => key.clone(),
            };
            fields = &fields[key];
            !fields.is_null()
        });
        reached.count()
    };
    others
        .filter(|entry| !at.is_empty() && reach(entry) == at.len())
        .max_by(|a, b| a["time"].as_str().cmp(&b["time"].as_str()))
        .and_then(|entry| entry["manager"].as_str())
        .map(|name| name.chars().take(128).collect())
}

fn text(at: &[Step]) -> String {
    let mut text = String::new();
    for step in at {
        match step {
            Step::Member(name) if text.is_empty() => text.push_str(name),
            Step::Member(name) => {
                let _ = write!(text, ".{name}");
            }
            Step::Item(_, key) => {
                let named = key.get(2..).unwrap_or_default();
                let keys = serde_json::from_str::<Map<String, Value>>(named).unwrap_or_default();
                let plain = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
                let keys: Vec<String> = keys.iter().map(|(k, v)| format!("{k}={}", plain(v))).collect();
                let inner = if keys.is_empty() { named.to_owned() } else { keys.join(",") };
                let _ = write!(text, "[{inner}]");
            }
        }
    }
    if text.chars().count() > MAX_PATH {
        text = text.chars().take(MAX_PATH).chain(std::iter::once('…')).collect();
    }
    text
}

/// Characters; keys of maps are unbounded.
const MAX_PATH: usize = 200;

#[cfg(test)]
mod tests;
