//! Catalog as a runtime's user sees it: releases and templates of allowed modules.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use kube::ResourceExt;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tidewatch_api::{
    ModuleReleaseMeta, ModuleReleaseMetaSpec, ModuleTemplate, ModuleTemplateSpec,
    names::{self, field_managers, labels},
    object::content_hash,
};

use super::{
    access, mandatory,
    versions::{Catalog, is_legacy},
};

/// Kind and name of an object in [`names::RUNTIME_NAMESPACE`].
pub type Id = (&'static str, String);

/// Catalog kinds in write order: no release precedes its templates.
pub const KINDS: [&str; 2] = [TEMPLATE, RELEASE];
const TEMPLATE: &str = "ModuleTemplate";
const RELEASE: &str = "ModuleReleaseMeta";

/// Objects of one Kyma as applied.
#[derive(Debug, Default)]
pub struct View {
    /// Objects.
    pub objects: BTreeMap<Id, Value>,
    /// Content hashes.
    pub hashes: Arc<BTreeMap<Id, u64>>,
}

impl View {
    /// Creates a view.
    #[must_use]
    pub fn new(objects: BTreeMap<Id, Value>) -> Self {
        let hashes = objects.iter().map(|(id, body)| (id.clone(), content_hash(body))).collect();
        Self { objects, hashes: Arc::new(hashes) }
    }
}

/// Reading Kyma.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    /// Labels in KCP.
    pub labels: &'a BTreeMap<String, String>,
    /// Modules limited to Kymas selected by their ModuleReleaseMeta.
    pub restricted: &'a [String],
}

fn of_module(
    module: &str,
    catalog: &dyn Catalog,
) -> (Option<Arc<ModuleReleaseMeta>>, Vec<Arc<ModuleTemplate>>) {
    let release = catalog.release(module);
    let mut templates: BTreeMap<String, Arc<ModuleTemplate>> =
        catalog.templates_of(module).into_iter().map(|t| (t.name_any(), t)).collect();
    // Found by name, regardless of the spec.
    for version in release.iter().flat_map(|r| offered(r)) {
        let name = ModuleTemplate::object_name(module, version);
        if let Some(template) = catalog.template(&name) {
            templates.insert(name, template);
        }
    }
    (release, templates.into_values().collect())
}

fn offered(release: &ModuleReleaseMeta) -> impl Iterator<Item = &str> {
    let channels = release.spec.channels.iter().flatten().map(|c| c.version.as_str());
    channels.chain(release.spec.versions.iter().map(|v| v.version.as_str()))
}

/// Cache by module and visible objects, for one state of the catalog.
#[derive(Debug, Default)]
pub struct PartCache(HashMap<(String, Vec<bool>), Arc<Part>>);

/// One module as some Kymas see it.
#[derive(Debug)]
pub struct Part {
    objects: Vec<(Id, Value)>,
    /// Content hash.
    pub hash: u64,
}

/// Returns a module's objects visible to a Kyma.
pub fn part(module: &str, catalog: &dyn Catalog, reader: Reader<'_>, cache: &mut PartCache) -> Arc<Part> {
    let (release, templates) = of_module(module, catalog);
    let is_allowed = |template: Option<&ModuleTemplate>| {
        access::allowed(reader.labels, release.as_deref(), template, reader.restricted, module).is_ok()
    };
    let visibility: Vec<bool> = std::iter::once(is_allowed(None))
        .chain(templates.iter().map(|t| is_allowed(Some(t.as_ref()))))
        .collect();
    let key = (module.to_owned(), visibility);
    if let Some(part) = cache.0.get(&key) {
        return Arc::clone(part);
    }
    let visible: Vec<_> =
        templates.iter().zip(&key.1[1..]).filter(|(_, seen)| **seen).map(|(t, _)| t).collect();
    let objects = match &release {
        Some(release) if key.1[0] && release.mandatory_version().is_none() => {
            released(module, release, &visible)
        }
        Some(_) => Vec::new(),
        // One mandatory template suffices.
        None if templates.iter().any(|template| mandatory::is_legacy(template)) => Vec::new(),
        None => visible.into_iter().filter(|t| is_legacy(t)).filter_map(|t| template(t)).collect(),
    };
    let hash =
        objects.iter().map(|(_, body)| content_hash(body)).fold(0, |all: u64, one| all.rotate_left(1) ^ one);
    let part = Arc::new(Part { objects, hash });
    cache.0.insert(key, Arc::clone(&part));
    part
}

/// Returns all visible objects of `modules`.
pub fn view(
    modules: &BTreeSet<&str>,
    catalog: &dyn Catalog,
    reader: Reader<'_>,
    cache: &mut PartCache,
) -> BTreeMap<Id, Value> {
    let parts = modules.iter().map(|module| part(module, catalog, reader, cache));
    parts.flat_map(|part| part.objects.clone()).collect()
}

fn released(module: &str, release: &ModuleReleaseMeta, visible: &[&Arc<ModuleTemplate>]) -> Vec<(Id, Value)> {
    let of = |version: &str| {
        let name = ModuleTemplate::object_name(module, version);
        visible.iter().find(|t| t.name_any() == name && !mandatory::is_legacy(t))
    };
    let mut spec = release.spec.clone();
    if let Some(channels) = &mut spec.channels {
        channels.retain(|channel| of(&channel.version).is_some());
    }
    spec.versions.retain(|version| of(&version.version).is_some());
    if spec.channels.as_ref().is_none_or(Vec::is_empty) && spec.versions.is_empty() {
        return Vec::new();
    }
    // The selector would disclose other Kymas.
    spec.kyma_selector = None;
    let versions: BTreeSet<&str> = offered(release).collect();
    let templates = versions.into_iter().filter_map(of).filter_map(|t| template(t));
    let release = object(RELEASE, release, &spec);
    templates.chain(release).collect()
}

fn template(template: &ModuleTemplate) -> Option<(Id, Value)> {
    (!mandatory::is_legacy(template)).then(|| object(TEMPLATE, template, &template.spec)).flatten()
}

fn object(kind: &'static str, of: &impl ResourceExt, spec: &impl serde::Serialize) -> Option<(Id, Value)> {
    let mut marks = of.labels().clone();
    marks.insert(labels::MANAGED_BY.to_owned(), labels::MANAGED_BY_RUNTIME.to_owned());
    let annotations: BTreeMap<_, _> =
        of.annotations().iter().filter(|(key, _)| !is_tool_annotation(key)).collect();
    let name = of.name_any();
    let mut body = json!({
        "apiVersion": names::API_VERSION, "kind": kind,
        "metadata": {"name": name, "namespace": names::RUNTIME_NAMESPACE, "labels": marks},
        "spec": serde_json::to_value(spec).ok()?
    });
    if !annotations.is_empty() {
        body["metadata"]["annotations"] = json!(annotations);
    }
    Some(((kind, name), body))
}

/// Annotations that tools write in KCP.
fn is_tool_annotation(annotation: &str) -> bool {
    annotation.starts_with("kubectl.kubernetes.io/")
}

/// Returns whether this engine's or the Go manager's catalog sync applied an object.
#[must_use]
pub fn is_synced(object: &Value) -> bool {
    let entries = object["metadata"]["managedFields"].as_array();
    entries.into_iter().flatten().any(|entry| entry["manager"] == field_managers::CATALOG_SYNC)
}

/// Compares meanings: the Go manager also writes empty fields and tools' annotations.
fn has_same_meaning(live: &Value, body: &Value) -> bool {
    let marks = |object: &Value, field: &str| -> BTreeMap<String, Value> {
        let marks = object["metadata"][field].as_object().into_iter().flatten();
        marks.filter(|(key, _)| !is_tool_annotation(key)).map(|(k, v)| (k.clone(), v.clone())).collect()
    };
    let (present, wanted) = (&live["spec"], &body["spec"]);
    is_synced(live)
        && ["labels", "annotations"].iter().all(|field| marks(live, field) == marks(body, field))
        && match body["kind"].as_str() {
            Some(TEMPLATE) => is_same_spec(present, wanted, |spec: &mut ModuleTemplateSpec| {
                spec.mandatory = spec.mandatory.filter(|mandatory| *mandatory);
                spec.requires_downtime = spec.requires_downtime.filter(|requires| *requires);
            }),
            Some(RELEASE) => is_same_spec(present, wanted, |_: &mut ModuleReleaseMetaSpec| {}),
            _ => false,
        }
}

fn is_same_spec<S: DeserializeOwned + PartialEq>(a: &Value, b: &Value, plain: impl Fn(&mut S)) -> bool {
    let read = |value: &Value| {
        let mut spec: S = serde_json::from_value(value.clone()).ok()?;
        plain(&mut spec);
        Some(spec)
    };
    read(a).is_some_and(|a| Some(a) == read(b))
}

/// Changes in a runtime.
#[derive(Debug, Default, PartialEq)]
pub struct Changes {
    /// Objects to apply.
    pub apply: Vec<Id>,
    /// Objects to delete, with uids.
    pub delete: Vec<(Id, String)>,
}

/// Changes from `present` (with `managedFields`) to `wanted`. `is_applied(live, wanted)`: an apply changes nothing.
pub fn changes<'a>(
    wanted: impl IntoIterator<Item = (&'a Id, &'a Value)>,
    present: &BTreeMap<Id, Value>,
    is_applied: impl Fn(&Value, &Value) -> bool,
) -> Changes {
    let wanted: BTreeMap<&Id, &Value> = wanted.into_iter().collect();
    let is_current = |id: &Id, body: &Value| {
        present.get(id).is_some_and(|live| is_applied(live, body) || has_same_meaning(live, body))
    };
    let uid = |object: &Value| object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    let obsolete = present.iter().filter(|(id, object)| !wanted.contains_key(id) && is_synced(object));
    Changes {
        apply: ordered(wanted.iter().filter(|(id, body)| !is_current(id, body)).map(|(id, _)| (*id).clone())),
        delete: obsolete.map(|(id, object)| (id.clone(), uid(object))).collect(),
    }
}

/// Objects to apply, and objects to delete, if `done` is in the runtime.
#[must_use]
pub fn changes_since(applied: &BTreeMap<Id, u64>, wanted: &BTreeMap<Id, u64>) -> (Vec<Id>, Vec<Id>) {
    let changed =
        wanted.iter().filter(|(id, hash)| applied.get(*id) != Some(*hash)).map(|(id, _)| id.clone());
    let deleted = applied.keys().filter(|id| !wanted.contains_key(*id)).cloned();
    (ordered(changed), deleted.collect())
}

/// Sorts templates first.
#[must_use]
pub fn ordered(ids: impl Iterator<Item = Id>) -> Vec<Id> {
    let mut ids: Vec<Id> = ids.collect();
    ids.sort_by_key(|(kind, _)| KINDS.iter().position(|k| k == kind));
    ids
}

#[cfg(test)]
mod tests;
