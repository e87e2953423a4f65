//! `metadata.managedFields`: field ownership.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{
    merge::Difference,
    set::{Set, field},
};
use crate::{
    object::{meta::metadata_mut, stored},
    schema::View,
};

const UNOWNED: [&str; 8] = [
    "f:name",
    "f:namespace",
    "f:creationTimestamp",
    "f:selfLink",
    "f:uid",
    "f:generation",
    "f:managedFields",
    "f:resourceVersion",
];
/// Owns an unmanaged object's fields before its first apply.
const BEFORE: &str = "before-first-apply";
/// Merges the oldest updaters beyond `MAX_UPDATERS`.
const ANCIENT: &str = "ancient-changes";
const MAX_UPDATERS: usize = 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Writer {
    pub(crate) manager: String,
    pub(crate) api_version: String,
    pub(crate) subresource: String,
    pub(crate) scope: FieldScope,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldScope {
    Whole,
    /// All but the status.
    Main,
    Status,
    /// For built-in kinds: all but the spec.
    BuiltinStatus,
    /// For Deployments: all but the spec and labels.
    DeploymentStatus,
    /// For `CertificateSigningRequests`: neither spec nor status.
    Metadata,
    /// For `/approval`: all but the spec and the certificate.
    Approval,
    /// For `/status` of `CertificateSigningRequests`: all but the spec and the conditions.
    Certificate,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) manager: String,
    pub(crate) applies: bool,
    pub(crate) api_version: String,
    pub(crate) subresource: String,
    /// Unix seconds; 0 without a time.
    pub(crate) time: i64,
    pub(crate) set: Set,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Managed(pub(crate) Vec<Entry>);

impl Entry {
    pub(crate) fn parse(entry: &Value) -> Self {
        let text = |field: &str| entry.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        Self {
            manager: text("manager"),
            applies: text("operation") == "Apply",
            api_version: text("apiVersion"),
            subresource: text("subresource"),
            time: text("time").parse::<Timestamp>().map(Timestamp::as_second).unwrap_or_default(),
            set: entry.get("fieldsV1").map(Set::parse).unwrap_or_default(),
        }
    }

    fn to_json(&self) -> Value {
        let mut entry = json!({
            "manager": self.manager,
            "operation": if self.applies { "Apply" } else { "Update" },
            "apiVersion": self.api_version,
            "fieldsType": "FieldsV1",
            "fieldsV1": self.set.to_json(),
        });
        if let Some(map) = entry.as_object_mut() {
            if self.time != 0 {
                map.insert("time".into(), stored::time(self.time));
            }
            if self.manager.is_empty() {
                map.remove("manager");
            }
            if !self.subresource.is_empty() {
                map.insert("subresource".into(), self.subresource.clone().into());
            }
        }
        entry
    }

    fn is_of(&self, writer: &Writer, applies: bool) -> bool {
        self.manager == writer.manager
            && self.applies == applies
            && (applies || self.api_version == writer.api_version)
            && self.subresource == writer.subresource
    }

    /// Kubernetes' sort key: the entry as JSON without fields.
    pub(crate) fn identifier(&self) -> String {
        let mut entry = self.to_json();
        let part = |entry: &mut Value, field: &str| {
            let value = entry.get_mut(field).map(Value::take);
            value.map(|value| format!(",\"{field}\":{value}")).unwrap_or_default()
        };
        // An applier's identity excludes the time.
        let time = if self.applies { String::new() } else { part(&mut entry, "time") };
        let before = ["manager", "operation", "apiVersion"].map(|field| part(&mut entry, field)).concat();
        format!("{before}{time}{}}}", part(&mut entry, "subresource"))
    }

    pub(crate) fn shown(&self) -> String {
        let name = Value::from(self.manager.as_str());
        let mut shown = name.to_string();
        if !self.subresource.is_empty() {
            shown = format!("{shown} with subresource {}", Value::from(self.subresource.as_str()));
        }
        if !self.applies {
            shown = format!("{shown} using {}", self.api_version);
        }
        shown
    }
}

impl Managed {
    pub(crate) fn of(object: &Value) -> Self {
        let entries = object.get("metadata").and_then(|metadata| metadata.get("managedFields"));
        Self(entries.and_then(Value::as_array).into_iter().flatten().map(Entry::parse).collect())
    }

    /// The last duplicate of a manager wins.
    pub(crate) fn from_entries(mut entries: Vec<Entry>) -> Self {
        entries.reverse();
        let mut managers = BTreeSet::new();
        // An applier's identity excludes the version.
        entries.retain(|entry| {
            let version = if entry.applies { String::new() } else { entry.api_version.clone() };
            managers.insert((entry.manager.clone(), entry.applies, version, entry.subresource.clone()))
        });
        let mut managed = Self(entries);
        managed.sort();
        managed
    }

    pub(crate) fn fit(&mut self, schema: View<'_>) {
        for entry in &mut self.0 {
            entry.set.fit(schema);
        }
    }

    /// Uses Kubernetes' order.
    pub(crate) fn sort(&mut self) {
        self.0.sort_by(|a, b| {
            let order = |entry: &Entry| (!entry.applies, entry.time);
            order(a).cmp(&order(b)).then_with(|| {
                let rest = |entry: &Entry| {
                    (entry.manager.clone(), entry.api_version.clone(), entry.subresource.clone())
                };
                rest(a).cmp(&rest(b))
            })
        });
    }

    fn cap(&mut self) {
        let mut updaters: Vec<Entry> = self.0.extract_if(.., |entry| !entry.applies).collect();
        let mut left = updaters.len();
        updaters.sort_by_key(|entry| (entry.time, Entry { time: 0, ..entry.clone() }.identifier()));
        let mut kept: Vec<Entry> = Vec::with_capacity(left);
        for entry in updaters {
            let bucket = kept.iter_mut().find(|kept| kept.api_version == entry.api_version);
            let Some(bucket) = bucket.filter(|_| left > MAX_UPDATERS) else {
                kept.push(entry);
                continue;
            };
            left -= 1;
            *bucket = Entry {
                manager: ANCIENT.to_owned(),
                subresource: String::new(),
                time: entry.time,
                set: entry.set.union(&bucket.set),
                ..bucket.clone()
            };
        }
        self.0.append(&mut kept);
    }

    pub(crate) fn put(mut self, object: &mut Value) {
        self.0.retain(|entry| !entry.set.is_empty());
        self.sort();
        let metadata = metadata_mut(object);
        metadata.remove("managedFields");
        if !self.0.is_empty() {
            metadata.insert("managedFields".into(), self.0.iter().map(Entry::to_json).collect());
        }
    }

    pub(crate) fn equals_but_for_times(&self, other: &Self) -> bool {
        let same = |(a, b): (&Entry, &Entry)| *a == Entry { time: a.time, ..b.clone() };
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(same)
    }

    pub(crate) fn position(&self, writer: &Writer, applies: bool) -> Option<usize> {
        self.0.iter().position(|entry| entry.is_of(writer, applies))
    }

    /// `path`: such as `spec.replicas`.
    pub(crate) fn owns(&self, path: &str) -> bool {
        let all = self.union();
        let (above, last) = path.rsplit_once('.').map_or(("", path), |(above, last)| (above, last));
        let mut steps = above.split('.').filter(|step| !step.is_empty());
        let parent = steps.try_fold(&all, |set, step| set.below(&field(step)));
        parent.is_some_and(|parent| parent.is_member(&field(last)))
    }

    /// Removes all owners of a path such as `spec.replicas`.
    pub(crate) fn release(&mut self, path: &str) {
        let steps: Vec<String> = path.split('.').map(field).collect();
        let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
        for entry in &mut self.0 {
            entry.set.remove(&steps);
        }
        self.0.retain(|entry| !entry.set.is_empty());
    }

    pub(crate) fn union(&self) -> Set {
        self.0.iter().fold(Set::default(), |all, entry| all.union(&entry.set))
    }

    /// After an update the writer owns written fields; removed ones have no owner.
    pub(crate) fn update(
        &mut self,
        before: &Value,
        after: &Value,
        schema: View<'_>,
        writer: &Writer,
        now: i64,
    ) {
        let difference = difference(before, after, schema, writer.scope);
        let written = difference.written();
        for entry in &mut self.0 {
            entry.set = entry.set.without(&written).without(&difference.removed);
        }
        self.0.retain(|entry| !entry.set.is_empty() || entry.is_of(writer, false));
        if written.is_empty() {
            self.0.retain(|entry| !entry.set.is_empty());
            return;
        }
        let index = self.position(writer, false).unwrap_or_else(|| {
            self.0.push(Entry::fresh(writer, false));
            self.0.len() - 1
        });
        if let Some(entry) = self.0.get_mut(index) {
            // The loop removed the writer's fields too.
            entry.set = entry.set.union(&written);
            // Writes through /scale carry no time.
            entry.time = if writer.subresource == "scale" { 0 } else { now };
        }
        self.cap();
    }

    /// Sets owners before an unmanaged object's first apply. `nothing` is an empty object.
    pub(crate) fn adopt(
        &mut self,
        nothing: &Value,
        live: &Value,
        schema: View<'_>,
        writer: &Writer,
        now: i64,
    ) {
        if self.0.is_empty() {
            let before = Writer { manager: BEFORE.to_owned(), ..writer.clone() };
            self.update(nothing, live, schema, &before, now);
        }
    }
}

impl Entry {
    pub(crate) fn fresh(writer: &Writer, applies: bool) -> Self {
        Self {
            manager: writer.manager.clone(),
            applies,
            api_version: writer.api_version.clone(),
            subresource: writer.subresource.clone(),
            time: 0,
            set: Set::default(),
        }
    }
}

pub(crate) fn difference(before: &Value, after: &Value, schema: View<'_>, scope: FieldScope) -> Difference {
    let mut difference = Difference::between(before, after, schema);
    difference.added = stripped(difference.added, scope);
    difference.modified = stripped(difference.modified, scope);
    difference.removed = stripped(difference.removed, FieldScope::Whole);
    difference
}

/// Removes fields that have no owners or are outside `scope`.
pub(crate) fn stripped(mut set: Set, scope: FieldScope) -> Set {
    set.remove(&["f:apiVersion"]);
    set.remove(&["f:kind"]);
    if let Some(mut metadata) = set.below("f:metadata").cloned() {
        for field in UNOWNED {
            metadata.remove(&[field]);
        }
        set.remove(&["f:metadata"]);
        *set.below_mut("f:metadata") = metadata;
    }
    match scope {
        FieldScope::Whole => {}
        FieldScope::Main => set.remove(&["f:status"]),
        FieldScope::Status => set.keep_top(|name| name == "f:status"),
        FieldScope::BuiltinStatus => set.remove(&["f:spec"]),
        FieldScope::DeploymentStatus => {
            set.remove(&["f:spec"]);
            set.remove(&["f:metadata", "f:labels"]);
        }
        FieldScope::Metadata => {
            set.remove(&["f:spec"]);
            set.remove(&["f:status"]);
        }
        FieldScope::Approval => {
            set.remove(&["f:spec"]);
            set.remove(&["f:status", "f:certificate"]);
        }
        FieldScope::Certificate => {
            set.remove(&["f:spec"]);
            set.remove(&["f:status", "f:conditions"]);
        }
    }
    set.tidy();
    set
}

/// An object before its first change.
pub(crate) fn nothing(api_version: &str, kind: &str, zero: Value) -> Value {
    let mut object = if zero.is_object() { zero } else { Value::Object(Map::new()) };
    if let Some(map) = object.as_object_mut() {
        map.insert("apiVersion".into(), api_version.into());
        map.insert("kind".into(), kind.into());
    }
    object
}
