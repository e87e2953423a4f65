//! Stored CRDs: the kinds that they define, and the versions of their objects.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::{Value, json};

use super::{objects::Objects, served::Served};
use crate::{
    kinds::{Kind, builtin, custom, storage_key},
    object::{Stored, meta},
    schema::shape,
};

/// Storage key of the kinds that a CRD defines.
pub(super) fn served_key(definition: &Value) -> Arc<str> {
    let text = |pointer: &str| definition.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    storage_key(text("/spec/names/plural"), text("/spec/group"))
}

pub(super) fn is_established(definition: &Value) -> bool {
    let conditions = definition.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|one| {
        one.get("type") == Some(&json!("Established")) && one.get("status") == Some(&json!("True"))
    })
}

fn stored_definition<'a>(objects: &'a Objects, kind: &Kind) -> Option<&'a Arc<Stored>> {
    let definitions = builtin::find("apiextensions.k8s.io", "v1", "customresourcedefinitions")?;
    objects.find(definitions, "", &kind.storage)
}

fn definition(objects: &Objects, kind: &Kind) -> Option<Value> {
    Some(stored_definition(objects, kind)?.render())
}

/// Whether a custom kind's CRD is being deleted.
pub(super) fn is_terminating(objects: &Objects, kind: &Kind) -> bool {
    let definition = stored_definition(objects, kind).filter(|_| !kind.is_builtin());
    definition.is_some_and(|definition| definition.is_deleted())
}

/// API versions of a custom kind, served or not.
pub(super) fn api_versions(objects: &Objects, kind: &Kind) -> Vec<String> {
    let Some(definition) = definition(objects, kind) else { return vec![kind.api_version()] };
    let versions = definition["spec"]["versions"].as_array().into_iter().flatten();
    let names = versions.filter_map(|version| version["name"].as_str());
    names.map(|name| format!("{}/{name}", kind.group)).collect()
}

/// Prunes and defaults an object in its storage version.
pub(super) fn convert_to_stored(objects: &Objects, served: &Served, kind: &Kind, object: &mut Value) {
    let served = served.versions(kind).filter(|served| served.len() > 1);
    let Some((served, definition)) = served.zip(definition(objects, kind)) else { return };
    let version = custom::stored_version(&definition["spec"]);
    if let Some(stored) = served.iter().find(|one| one.version == version && one.version != kind.version) {
        shape::prune(object, stored.schema());
        shape::default(object, stored.schema());
        object["apiVersion"] = stored.api_version().into();
    }
}

struct Names {
    /// Plural, singular and short names.
    paths: BTreeSet<String>,
    /// Kind and list kind.
    kinds: BTreeSet<String>,
}

impl Names {
    fn of(definition: &Value) -> Self {
        let names = &definition["spec"]["names"];
        let fields = ["plural", "singular"].map(|field| names[field].as_str().map(str::to_lowercase));
        let short = names["shortNames"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let kinds = ["kind", "listKind"].map(|field| names[field].as_str().map(str::to_owned));
        Self {
            paths: fields.into_iter().flatten().chain(short.map(str::to_owned)).collect(),
            kinds: kinds.into_iter().flatten().collect(),
        }
    }
}

/// Whether another CRD of the group uses one of the names. `kind`: the kind of CRDs.
pub(super) fn has_names_taken(objects: &Objects, kind: &Kind, definition: &Value) -> bool {
    let names = Names::of(definition);
    let others = objects.range(kind, "").filter(|(key, _)| *key.name != *meta::name(definition));
    let mut of_group = others
        .map(|(_, stored)| stored.render())
        .filter(|other| other["spec"]["group"] == definition["spec"]["group"]);
    of_group.any(|other| {
        let other = Names::of(&other);
        !names.paths.is_disjoint(&other.paths) || !names.kinds.is_disjoint(&other.kinds)
    })
}
