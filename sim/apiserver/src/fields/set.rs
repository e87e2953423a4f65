//! Field sets, in `fieldsV1` form.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::schema::{Relation, View};

/// Paths of `fieldsV1` elements: `f:name`, `k:{"name":"x"}`, `v:"x"`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Set {
    nodes: BTreeMap<String, Node>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Node {
    member: bool,
    below: Set,
}

impl Set {
    /// Collects scalars, atomic values, list items.
    pub(crate) fn of(object: &Value, schema: View<'_>) -> Self {
        let mut set = Self::default();
        gather(object, schema, &mut set, false);
        set
    }

    /// Adds the maps and lists above them.
    pub(crate) fn of_with_containers(object: &Value, schema: View<'_>) -> Self {
        let mut set = Self::default();
        gather(object, schema, &mut set, true);
        set
    }

    pub(crate) fn parse(fields: &Value) -> Self {
        let mut set = Self::default();
        for (name, below) in fields.as_object().into_iter().flatten() {
            if name == "." {
                continue;
            }
            let empty = below.as_object().is_none_or(Map::is_empty);
            let member = empty || below.get(".").is_some();
            set.nodes.insert(name.clone(), Node { member, below: Self::parse(below) });
        }
        set
    }

    /// Parses client input; `None` if malformed.
    pub(crate) fn read(fields: &Value) -> Option<Self> {
        let mut set = Self::default();
        for (name, below) in fields.as_object()? {
            if name == "." {
                continue;
            }
            // Later versions may add element types.
            let Some(element) = element(name)? else { continue };
            let below = if below.is_null() { &Value::Object(Map::new()) } else { below };
            let inner = Self::read(below)?;
            let member = inner.is_empty() || below.get(".").is_some();
            set.nodes.insert(element, Node { member, below: inner });
        }
        Some(set)
    }

    /// Makes atomic maps and lists leaves: their content has no owners.
    pub(crate) fn fit(&mut self, schema: View<'_>) {
        for (name, node) in &mut self.nodes {
            let known = match name.split_once(':') {
                Some(("f", field)) => schema.field(field),
                _ => Some(schema.items()),
            };
            let Some(known) = known.filter(|known| !known.is_unknown()) else { continue };
            let atomic = match known.kind() {
                Some("array") => known.list() == Relation::Atomic,
                _ => known.map_is_atomic(),
            };
            if atomic && !node.below.is_empty() {
                *node = Node { member: true, below: Self::default() };
            }
            node.below.fit(known);
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        let json = |node: &Node| {
            let mut below = node.below.to_json();
            if let (true, false, Value::Object(map)) = (node.member, node.below.is_empty(), &mut below) {
                map.insert(".".into(), Value::Object(Map::new()));
            }
            below
        };
        Value::Object(self.nodes.iter().map(|(name, node)| (name.clone(), json(node))).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub(crate) fn union(&self, other: &Self) -> Self {
        let mut all = self.clone();
        for (name, right) in &other.nodes {
            let left = all.nodes.entry(name.clone()).or_default();
            left.member |= right.member;
            left.below = left.below.union(&right.below);
        }
        all
    }

    pub(crate) fn without(&self, other: &Self) -> Self {
        self.combine(other, |left, right| left && !right)
    }

    pub(crate) fn intersection(&self, other: &Self) -> Self {
        self.combine(other, |left, right| left && right)
    }

    fn combine(&self, other: &Self, member: fn(bool, bool) -> bool) -> Self {
        let nothing = Node::default();
        let mut result = Self::default();
        for (name, left) in &self.nodes {
            let right = other.nodes.get(name).unwrap_or(&nothing);
            let node = Node {
                member: member(left.member, right.member),
                below: left.below.combine(&right.below, member),
            };
            result.put(name, node);
        }
        result
    }

    fn put(&mut self, name: &str, node: Node) {
        if node.member || !node.below.is_empty() {
            self.nodes.insert(name.to_owned(), node);
        }
    }

    pub(crate) fn remove(&mut self, path: &[&str]) {
        match path {
            [] => {}
            [last] => _ = self.nodes.remove(*last),
            [first, rest @ ..] => {
                if let Some(node) = self.nodes.get_mut(*first) {
                    node.below.remove(rest);
                    if !node.member && node.below.is_empty() {
                        self.nodes.remove(*first);
                    }
                }
            }
        }
    }

    pub(crate) fn keep_top(&mut self, keep: impl Fn(&str) -> bool) {
        self.nodes.retain(|name, _| keep(name));
    }

    pub(crate) fn insert(&mut self, element: &str) {
        self.nodes.entry(element.to_owned()).or_default().member = true;
    }

    /// Whether a member path ends in or crosses the element.
    pub(crate) fn has(&self, element: &str) -> bool {
        self.nodes.contains_key(element)
    }

    pub(crate) fn is_member(&self, element: &str) -> bool {
        self.nodes.get(element).is_some_and(|node| node.member)
    }

    pub(crate) fn below(&self, element: &str) -> Option<&Self> {
        self.nodes.get(element).map(|node| &node.below)
    }

    pub(crate) fn below_mut(&mut self, element: &str) -> &mut Self {
        &mut self.nodes.entry(element.to_owned()).or_default().below
    }

    pub(crate) fn tidy(&mut self) {
        self.nodes.retain(|_, node| {
            node.below.tidy();
            node.member || !node.below.is_empty()
        });
    }

    /// Such as `.spec.containers[name="x"].image`.
    pub(crate) fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect("", &mut paths);
        paths
    }

    fn collect(&self, prefix: &str, paths: &mut Vec<String>) {
        for (name, node) in &self.nodes {
            let path = format!("{prefix}{}", shown(name));
            if node.member {
                paths.push(path.clone());
            }
            node.below.collect(&path, paths);
        }
    }
}

/// Normalizes an element; `Some(None)`: unknown type, `None`: malformed.
#[expect(clippy::option_option, reason = "not one, one to pass over, one")]
fn element(text: &str) -> Option<Option<String>> {
    let (sort, rest) = text.split_at_checked(2)?;
    match sort {
        "f:" => Some(Some(text.to_owned())),
        "v:" => serde_json::from_str::<Value>(rest).ok().map(|value| Some(format!("v:{value}"))),
        "k:" => {
            let key: Map<String, Value> = serde_json::from_str(rest).ok()?;
            Some(Some(format!("k:{}", Value::Object(key))))
        }
        "i:" => rest.parse::<i64>().ok().map(|index| Some(format!("i:{index}"))),
        _ => sort.ends_with(':').then_some(None),
    }
}

pub(crate) fn shown(element: &str) -> String {
    match element.split_at_checked(2) {
        Some(("f:", name)) => format!(".{name}"),
        Some(("k:", key)) => {
            let key: Map<String, Value> = serde_json::from_str(key).unwrap_or_default();
            let pairs: Vec<String> = key.iter().map(|(name, value)| format!("{name}={value}")).collect();
            format!("[{}]", pairs.join(","))
        }
        Some(("v:", value)) => format!("[={value}]"),
        _ => element.to_owned(),
    }
}

pub(crate) fn field(name: &str) -> String {
    format!("f:{name}")
}

/// `None` for atomic lists.
pub(crate) fn item(item: &Value, list: &Relation<'_>, schema: View<'_>) -> Option<String> {
    match list {
        Relation::Atomic => None,
        Relation::Set => Some(format!("v:{item}")),
        Relation::Keyed(keys) => {
            let part = |&key: &&str| {
                let value = item.get(key).filter(|value| !value.is_null());
                let value = value.or_else(|| schema.items().property(key)?.default());
                Some((key.to_owned(), value?.clone()))
            };
            let known: Map<String, Value> = keys.iter().filter_map(part).collect();
            Some(format!("k:{}", Value::Object(known)))
        }
    }
}

fn gather(value: &Value, schema: View<'_>, set: &mut Set, containers: bool) {
    match value {
        Value::Object(map) => {
            for (name, child) in map {
                let known = schema.property(name);
                let below = known.or_else(|| schema.additional()).unwrap_or(View::unknown());
                let element = field(name);
                if is_leaf(child, below) || known.is_none() || containers {
                    set.insert(&element);
                }
                if !is_leaf(child, below) {
                    gather(child, below, set.below_mut(&element), containers);
                }
            }
        }
        Value::Array(items) => {
            let list = schema.list();
            for child in items {
                let Some(element) = item(child, &list, schema) else { continue };
                set.insert(&element);
                if !is_leaf(child, schema.items()) {
                    gather(child, schema.items(), set.below_mut(&element), containers);
                }
            }
        }
        _ => {}
    }
    set.tidy();
}

/// Whether a value is owned as a whole.
pub(crate) fn is_leaf(value: &Value, schema: View<'_>) -> bool {
    match value {
        Value::Object(map) => map.is_empty() || schema.map_is_atomic(),
        Value::Array(_) => schema.list() == Relation::Atomic,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::builtin;

    #[test]
    fn field_sets_of_a_deployment() {
        let object = json!({"spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": {"spec": {
            "containers": [{"name": "web", "ports": [{"containerPort": 80}], "args": ["x"]}],
        }}}});
        let set = Set::of(&object, builtin::view("io.k8s.api.apps.v1.Deployment"));
        let expected = json!({"f:spec": {"f:replicas": {}, "f:selector": {}, "f:template": {"f:spec": {
            "f:containers": {"k:{\"name\":\"web\"}": {
                ".": {}, "f:name": {}, "f:args": {},
                "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}},
            }},
        }}}});
        assert_eq!(set.to_json(), expected);
        assert_eq!(Set::parse(&expected), set);
        assert!(set.paths().contains(&r#".spec.template.spec.containers[name="web"].args"#.to_owned()));
    }

    #[test]
    fn field_sets_are_combined() {
        let a = Set::parse(&json!({"f:a": {".": {}, "f:b": {}}, "f:c": {}}));
        let b = Set::parse(&json!({"f:a": {"f:b": {}}, "f:d": {}}));
        assert_eq!(a.without(&b).to_json(), json!({"f:a": {}, "f:c": {}}));
        assert_eq!(a.intersection(&b).to_json(), json!({"f:a": {"f:b": {}}}));
        assert_eq!(a.union(&b).to_json(), json!({"f:a": {".": {}, "f:b": {}}, "f:c": {}, "f:d": {}}));
    }
}
