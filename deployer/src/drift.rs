//! Whether an object in a runtime still is what was applied to it, and who has changed it if not.
//!
//! A server-side apply that changes nothing still costs an API server a write's work, and tells nothing. Whether it would change
//! something stands in the object itself: `metadata.managedFields` names every field that our last apply set and that nobody has
//! taken since, with the keys of the lists that are merged. So an object stands if our entry covers exactly the fields that are
//! wanted, and each has the wanted value.
//!
//! An API server rewrites some values. Empty ones that it drops stand (null, `false`, `0`, `""`, `[]`, `{}`): whoever removes a field
//! of ours takes its ownership from us, so an owned field that is missing was dropped by the API server. Quantities (`1000m` becomes `1`)
//! are compared by what they mean. An object with other rewritten values carries a [note](noted) of what was applied.

use std::fmt::{self, Write as _};

use serde_json::{Map, Value};
use tidewatch_api::{names::annotations, object::is_custom_group};

mod empty;
mod grown;
mod ignore;
mod leftover;
mod note;
mod quantity;

pub use grown::can_grow;
pub use ignore::Ignored;
pub use leftover::{Leftover, leftovers};
pub use note::noted;

/// What an apply would change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// No apply of ours, or one in another API version.
    NotApplied,
    /// A field.
    Field {
        /// Where, for people: `spec.template.spec.containers[name=a].image`.
        path: String,
        /// The field manager that owns it now, if that is another one.
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

/// What applying `wanted` as `manager` would change in `live`; `None` if nothing. Fields that `ignored` names count as wanted as
/// they are. Total: whatever the JSON is, there is an answer, and in doubt it is that there is a difference.
#[must_use]
pub fn difference(live: &Value, wanted: &Value, manager: &str, ignored: &Ignored<'_>) -> Option<Difference> {
    compare(live, wanted, manager, ignored, note::is_of(live, wanted, ignored))
}

/// `noted`: whether the API server is known to have made `live` of `wanted`.
fn compare(
    live: &Value,
    wanted: &Value,
    manager: &str,
    ignored: &Ignored<'_>,
    noted: bool,
) -> Option<Difference> {
    let Some(fields) = fields_of(live, wanted, manager) else { return Some(Difference::NotApplied) };
    let group = wanted["apiVersion"].as_str().and_then(|v| v.split_once('/')).map_or("", |(group, _)| group);
    // What is in others' objects is stored as it was written.
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

/// The fields that `manager`'s last apply has set, in the version of `wanted`.
fn fields_of<'a>(live: &'a Value, wanted: &Value, manager: &str) -> Option<&'a Map<String, Value>> {
    let ours = |e: &&Value| {
        e["manager"] == manager
            && e["operation"] == "Apply"
            && e["subresource"].as_str().unwrap_or_default().is_empty()
            && e["apiVersion"] == wanted["apiVersion"]
    };
    entries(live).iter().find(ours)?["fieldsV1"].as_object()
}

/// What of an object is `manager`'s, hashed: the fields of its last apply, and their values now.
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

/// One step from an object to a field in it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// A member of a map.
    Member(String),
    /// An item of a list: its place in the wanted list, and the text in `managedFields` that names it.
    Item(usize, String),
}

/// Where the [note](noted) is.
const NOTE: [&str; 3] = ["metadata", "annotations", annotations::APPLIED];

struct Walk<'a> {
    ignored: &'a Ignored<'a>,
    /// Whether the kind is the API server's own: it rewrites quantities and drops empty values.
    built_in: bool,
    /// Whether the API server is known to have made the live object of the wanted one.
    noted: bool,
    /// Where the walk is, and where it has stopped if it has found a difference.
    at: Vec<Step>,
}

impl Walk<'_> {
    /// Whether everything that `fields` names is wanted and as wanted, and everything that is wanted is named.
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
                // Owned and no longer wanted: an apply takes it away, if it is there.
                self.at.push(match key.strip_prefix("f:") {
                    Some(name) => Step::Member(name.to_owned()),
                    None => Step::Item(usize::MAX, key.clone()),
                });
                if self.is_ignored() || self.is_note(below) || !is_there(key, live) {
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

    /// Whether every wanted member is named by our entry. One that is not was never applied, or another has taken it.
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
            // An object that only has a name owns nothing of its metadata; one of which others own all that is below, nothing at all.
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

    /// Whether a wanted value has nothing that an entry of `managedFields` could name, and the live object has nothing there.
    fn is_void(&self, live: &Value, wanted: &Value) -> bool {
        wanted.is_null()
            || empty::owns_nothing(wanted)
                && empty::is_empty(live)
                && (!live.is_null() || self.built_in || self.noted)
    }

    fn is_ignored(&self) -> bool {
        self.ignored.names(&self.at)
    }

    /// Whether the place is the note's, or has nothing of ours but the note.
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

/// The member or item that a key of `fieldsV1` names, in both; `None` if the wanted value has none.
fn descend<'a>(key: &str, live: &'a Value, wanted: &'a Value) -> Option<(Step, &'a Value, &'a Value)> {
    if let Some(name) = key.strip_prefix("f:") {
        let wanted = wanted.get(name)?;
        return Some((Step::Member(name.to_owned()), live.get(name).unwrap_or(&Value::Null), wanted));
    }
    let name = named(key)?;
    let items = wanted.as_array()?;
    let at = name.place(items).or_else(|| items.iter().position(|item| name.fits(item)))?;
    let in_live = live.as_array().and_then(|items| name.find(items));
    Some((Step::Item(at, key.to_owned()), in_live.unwrap_or(&Value::Null), &items[at]))
}

/// Whether the live object has what a key of `fieldsV1` names; in doubt, it has.
fn is_there(key: &str, live: &Value) -> bool {
    match (key.strip_prefix("f:"), named(key)) {
        (Some(name), _) => !live[name].is_null(),
        (None, Some(name)) => live.as_array().is_some_and(|items| name.place(items).is_some()),
        (None, None) => true,
    }
}

/// What names an item of a list that is merged.
enum Name {
    /// The item itself: it is in a set.
    Value(Value),
    /// Some of its members.
    Keys(Map<String, Value>),
}

/// The name in a key of `fieldsV1`.
fn named(key: &str) -> Option<Name> {
    let name: Value = serde_json::from_str(key.get(2..)?).ok()?;
    match (key.get(..2)?, name) {
        ("v:", value) => Some(Name::Value(value)),
        ("k:", Value::Object(keys)) => Some(Name::Keys(keys)),
        _ => None,
    }
}

impl Name {
    /// Whether it may be the wanted item's. A key that is not written has its default, which only the API server knows: an item that
    /// has the key comes first.
    fn fits(&self, item: &Value) -> bool {
        match self {
            Self::Value(value) => item == value,
            Self::Keys(keys) => keys.iter().all(|(k, v)| item.get(k).is_none_or(|i| same_number(i, v))),
        }
    }

    /// The place of the item that has all of the name, as each has in an object that an API server has completed.
    fn place(&self, items: &[Value]) -> Option<usize> {
        items.iter().position(|item| match self {
            Self::Value(value) => item == value,
            Self::Keys(keys) => keys.iter().all(|(k, v)| item.get(k).is_some_and(|i| same_number(i, v))),
        })
    }

    fn find<'a>(&self, items: &'a [Value]) -> Option<&'a Value> {
        match (self.place(items), self) {
            (Some(place), _) => items.get(place),
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

/// Whether a part of an object has everything that is wanted of it, and maybe more.
#[must_use]
pub fn has(live: &Value, wanted: &Value) -> bool {
    subset(live, wanted, Some(false))
}

/// Whether `live` has everything that `wanted` has, but for empty values that it lacks. What it has besides are defaults. `quantity`:
/// whether this is one, where the API server rewrites them.
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

/// Equality, for which `1` and `1.0` are one number.
fn same_number(a: &Value, b: &Value) -> bool {
    a == b || matches!((a.as_f64(), b.as_f64()), (Some(a), Some(b)) if a.to_bits() == b.to_bits())
}

/// Who owns a field, or what is nearest above it, besides `manager`: the newest by its own word.
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
        // A manager that owns the field itself, or one that owns all that is in it.
        .filter(|entry| !at.is_empty() && reach(entry) == at.len())
        .max_by(|a, b| a["time"].as_str().cmp(&b["time"].as_str()))
        .and_then(|entry| entry["manager"].as_str())
        .map(|name| name.chars().take(128).collect())
}

/// A path for people.
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

/// Longest path told, in characters: keys of maps are the module's, and have no bound of their own.
const MAX_PATH: usize = 200;

#[cfg(test)]
mod tests;
