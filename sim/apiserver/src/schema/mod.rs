//! Schemas of built-in kinds and CRDs: published JSON, read by [`View`].

pub(crate) mod builtin;
pub(crate) mod cause;
mod embedded;
pub(crate) mod formats;
pub(crate) mod patterns;
pub(crate) mod repeated;
pub(crate) mod shape;
pub(crate) mod times;
mod types;
pub(crate) mod unreadable;
pub(crate) mod validate;

use serde_json::{Map, Value};

/// Merge unit of a list or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Relation<'a> {
    Atomic,
    /// Unique scalars.
    Set,
    /// Objects with these key fields.
    Keyed(Vec<&'a str>),
}

/// A place in a schema; empty where unknown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    /// Targets of `$ref`.
    definitions: Option<&'a Map<String, Value>>,
    /// Keywords beside the reference.
    outer: Option<&'a Map<String, Value>>,
    /// Keywords of its target; `outer` without a reference.
    inner: Option<&'a Map<String, Value>>,
}

impl<'a> View<'a> {
    pub(crate) fn new(schema: &'a Value, definitions: Option<&'a Map<String, Value>>) -> Self {
        Self::at(schema.as_object(), definitions)
    }

    /// Allows everything; lists are atomic.
    pub(crate) const fn unknown() -> View<'static> {
        View { definitions: None, outer: None, inner: None }
    }

    fn at(outer: Option<&'a Map<String, Value>>, definitions: Option<&'a Map<String, Value>>) -> Self {
        let mut inner = outer;
        // Limits reference chains.
        for _ in 0..4 {
            let Some(name) = inner.and_then(reference) else { break };
            let name = name.rsplit('/').next().unwrap_or(name);
            inner = definitions.and_then(|all| all.get(name)).and_then(Value::as_object);
        }
        Self { definitions, outer, inner }
    }

    fn go(self, value: Option<&'a Value>) -> Option<Self> {
        value.and_then(Value::as_object).map(|map| Self::at(Some(map), self.definitions))
    }

    /// Looks beside the reference first.
    pub(crate) fn get(self, keyword: &str) -> Option<&'a Value> {
        self.outer.and_then(|map| map.get(keyword)).or_else(|| self.inner.and_then(|map| map.get(keyword)))
    }

    pub(crate) fn flag(self, keyword: &str) -> bool {
        self.get(keyword).and_then(Value::as_bool).unwrap_or_default()
    }

    fn text(self, keyword: &str) -> Option<&'a str> {
        self.get(keyword).and_then(Value::as_str)
    }

    pub(crate) fn is_unknown(self) -> bool {
        self.inner.is_none()
    }

    pub(crate) fn properties(self) -> Option<&'a Map<String, Value>> {
        self.inner?.get("properties")?.as_object()
    }

    pub(crate) fn required(self) -> impl Iterator<Item = &'a str> {
        let list = self.inner.and_then(|map| map.get("required")).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str)
    }

    pub(crate) fn property(self, name: &str) -> Option<Self> {
        self.go(self.properties()?.get(name))
    }

    /// Schema of unnamed fields.
    pub(crate) fn additional(self) -> Option<Self> {
        self.go(self.inner?.get("additionalProperties"))
    }

    /// `None`: unknown field.
    pub(crate) fn field(self, name: &str) -> Option<Self> {
        self.property(name).or_else(|| self.additional())
    }

    pub(crate) fn field_or_unknown(self, name: &str) -> Self {
        self.field(name).unwrap_or(Self::unknown())
    }

    pub(crate) fn items(self) -> Self {
        self.inner.and_then(|map| self.go(map.get("items"))).unwrap_or(Self::unknown())
    }

    pub(crate) fn kind(self) -> Option<&'a str> {
        self.inner?.get("type")?.as_str()
    }

    pub(crate) fn keeps_unknown(self) -> bool {
        self.flag("x-kubernetes-preserve-unknown-fields")
    }

    pub(crate) fn is_embedded(self) -> bool {
        self.flag("x-kubernetes-embedded-resource")
    }

    pub(crate) fn int_or_string(self) -> bool {
        self.flag("x-kubernetes-int-or-string") || self.text("format") == Some("int-or-string")
    }

    pub(crate) fn is_quantity(self) -> bool {
        self.text("format") == Some("quantity")
    }

    pub(crate) fn is_time(self) -> bool {
        self.text("format") == Some("date-time")
    }

    /// Whether times use microseconds.
    pub(crate) fn is_micro_time(self) -> bool {
        self.outer.and_then(reference).is_some_and(|name| name.ends_with(".MicroTime"))
    }

    /// Whether a map is merged as a whole.
    pub(crate) fn map_is_atomic(self) -> bool {
        self.text("x-kubernetes-map-type") == Some("atomic")
    }

    pub(crate) fn list(self) -> Relation<'a> {
        match self.text("x-kubernetes-list-type") {
            Some("set") => Relation::Set,
            Some("map") => Relation::Keyed(self.list_keys()),
            _ => Relation::Atomic,
        }
    }

    fn list_keys(self) -> Vec<&'a str> {
        let keys = self.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
        keys.map(|keys| keys.iter().filter_map(Value::as_str).collect()).unwrap_or_default()
    }

    /// Whether strategic merge patch has this strategy.
    pub(crate) fn patch_strategy(self, strategy: &str) -> bool {
        self.text("x-kubernetes-patch-strategy").is_some_and(|all| all.split(',').any(|one| one == strategy))
    }

    pub(crate) fn patch_key(self) -> Option<&'a str> {
        self.text("x-kubernetes-patch-merge-key")
    }

    pub(crate) fn default(self) -> Option<&'a Value> {
        self.outer?.get("default")
    }
}

/// From `$ref` or a single `allOf` member.
fn reference(map: &Map<String, Value>) -> Option<&str> {
    let direct = map.get("$ref").and_then(Value::as_str);
    direct.or_else(|| match map.get("allOf")?.as_array()?.as_slice() {
        [only] => only.get("$ref")?.as_str(),
        _ => None,
    })
}
