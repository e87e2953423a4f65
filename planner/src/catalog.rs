//! What a runtime's user is shown of the catalog in KCP: releases and templates of the modules that their Kyma may have
//! (contract, section 5.10).

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
    versions::{Catalog, is_old},
};

/// Kind and name of an object of the catalog. All are in [`names::RUNTIME_NAMESPACE`].
pub type Id = (&'static str, String);

/// Kinds of the catalog, in the order in which they are written: a release never names a template that is still to come.
pub const KINDS: [&str; 2] = [TEMPLATE, RELEASE];
const TEMPLATE: &str = "ModuleTemplate";
const RELEASE: &str = "ModuleReleaseMeta";

/// What one Kyma may see, as it is applied.
#[derive(Debug, Default)]
pub struct View {
    /// The objects.
    pub objects: BTreeMap<Id, Value>,
    /// Their contents, hashed: enough to tell one view from the next.
    pub hashes: Arc<BTreeMap<Id, u64>>,
}

impl View {
    /// A view of these objects.
    #[must_use]
    pub fn new(objects: BTreeMap<Id, Value>) -> Self {
        let hashes = objects.iter().map(|(id, body)| (id.clone(), content_hash(body))).collect();
        Self { objects, hashes: Arc::new(hashes) }
    }
}

/// Who asks, and by which rules.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    /// The labels of the Kyma in KCP.
    pub labels: &'a BTreeMap<String, String>,
    /// Modules that only Kymas get whom their ModuleReleaseMeta selects.
    pub restricted: &'a [String],
}

/// Everything of one module that may be there: its release meta and its templates, the latter ordered by name.
fn of_module(
    module: &str,
    catalog: &dyn Catalog,
) -> (Option<Arc<ModuleReleaseMeta>>, Vec<Arc<ModuleTemplate>>) {
    let release = catalog.release(module);
    let mut templates: BTreeMap<String, Arc<ModuleTemplate>> =
        catalog.templates_of(module).into_iter().map(|t| (t.name_any(), t)).collect();
    // Found by name, whatever else they say.
    for version in release.iter().flat_map(|r| offered(r)) {
        let name = ModuleTemplate::object_name(module, version);
        if let Some(template) = catalog.template(&name) {
            templates.insert(name, template);
        }
    }
    (release, templates.into_values().collect())
}

/// The versions that a release meta speaks of.
fn offered(release: &ModuleReleaseMeta) -> impl Iterator<Item = &str> {
    let channels = release.spec.channels.iter().flatten().map(|c| c.version.as_str());
    channels.chain(release.spec.versions.iter().map(|v| v.version.as_str()))
}

/// Answers that were given already, by what decides them: the module and who of its objects may be seen. For as long as the catalog
/// is the same.
#[derive(Debug, Default)]
pub struct Known(HashMap<(String, Vec<bool>), Arc<Part>>);

/// One module as some Kymas may see it.
#[derive(Debug)]
pub struct Part {
    objects: Vec<(Id, Value)>,
    /// The contents of all of it.
    pub hash: u64,
}

/// What a Kyma may see of one module.
pub fn part(module: &str, catalog: &dyn Catalog, reader: Reader<'_>, known: &mut Known) -> Arc<Part> {
    let (release, templates) = of_module(module, catalog);
    let may = |template: Option<&ModuleTemplate>| {
        access::allowed(reader.labels, release.as_deref(), template, reader.restricted, module).is_ok()
    };
    let seen: Vec<bool> =
        std::iter::once(may(None)).chain(templates.iter().map(|t| may(Some(t.as_ref())))).collect();
    let key = (module.to_owned(), seen);
    if let Some(part) = known.0.get(&key) {
        return Arc::clone(part);
    }
    let visible: Vec<_> =
        templates.iter().zip(&key.1[1..]).filter(|(_, seen)| **seen).map(|(t, _)| t).collect();
    let objects = match &release {
        Some(release) if key.1[0] && release.mandatory_version().is_none() => {
            shown(module, release, &visible)
        }
        Some(_) => Vec::new(),
        // One of them says so for all.
        None if templates.iter().any(|template| mandatory::is_legacy(template)) => Vec::new(),
        None => visible.into_iter().filter(|t| is_old(t)).filter_map(|t| template(t)).collect(),
    };
    let hash =
        objects.iter().map(|(_, body)| content_hash(body)).fold(0, |all: u64, one| all.rotate_left(1) ^ one);
    let part = Arc::new(Part { objects, hash });
    known.0.insert(key, Arc::clone(&part));
    part
}

/// All that a Kyma may see of `modules`.
pub fn view(
    modules: &BTreeSet<&str>,
    catalog: &dyn Catalog,
    reader: Reader<'_>,
    known: &mut Known,
) -> BTreeMap<Id, Value> {
    let parts = modules.iter().map(|module| part(module, catalog, reader, known));
    parts.flat_map(|part| part.objects.clone()).collect()
}

/// A release meta with the versions that may be seen, and their templates. Nothing if none may.
fn shown(module: &str, release: &ModuleReleaseMeta, visible: &[&Arc<ModuleTemplate>]) -> Vec<(Id, Value)> {
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
    // Who else may have the module is nobody's business.
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
    let annotations: BTreeMap<_, _> = of.annotations().iter().filter(|(key, _)| !is_tools(key)).collect();
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

/// Whether an annotation is some tool's note about the object in KCP.
fn is_tools(annotation: &str) -> bool {
    annotation.starts_with("kubectl.kubernetes.io/")
}

/// Whether an object in a runtime is of the catalog: somebody has applied it as such, we or the Go manager.
#[must_use]
pub fn is_ours(object: &Value) -> bool {
    let entries = object["metadata"]["managedFields"].as_array();
    entries.into_iter().flatten().any(|entry| entry["manager"] == field_managers::CATALOG_SYNC)
}

/// Whether an object of the catalog says what is wanted, though not in the words in which we write it: the Go manager writes empty
/// fields, too, and tools' notes about the object in KCP.
fn says_the_same(live: &Value, body: &Value) -> bool {
    let marks = |object: &Value, field: &str| -> BTreeMap<String, Value> {
        let marks = object["metadata"][field].as_object().into_iter().flatten();
        marks.filter(|(key, _)| !is_tools(key)).map(|(k, v)| (k.clone(), v.clone())).collect()
    };
    let (present, wanted) = (&live["spec"], &body["spec"]);
    is_ours(live)
        && ["labels", "annotations"].iter().all(|field| marks(live, field) == marks(body, field))
        && match body["kind"].as_str() {
            Some(TEMPLATE) => same_meaning(present, wanted, |spec: &mut ModuleTemplateSpec| {
                spec.mandatory = spec.mandatory.filter(|mandatory| *mandatory);
                spec.requires_downtime = spec.requires_downtime.filter(|requires| *requires);
            }),
            Some(RELEASE) => same_meaning(present, wanted, |_: &mut ModuleReleaseMetaSpec| {}),
            _ => false,
        }
}

fn same_meaning<S: DeserializeOwned + PartialEq>(a: &Value, b: &Value, plain: impl Fn(&mut S)) -> bool {
    let read = |value: &Value| {
        let mut spec: S = serde_json::from_value(value.clone()).ok()?;
        plain(&mut spec);
        Some(spec)
    };
    read(a).is_some_and(|a| Some(a) == read(b))
}

/// What is to be done in a runtime.
#[derive(Debug, Default, PartialEq)]
pub struct Changes {
    /// Objects to apply.
    pub apply: Vec<Id>,
    /// Objects to delete, with their uids.
    pub delete: Vec<(Id, String)>,
}

/// The changes that make `wanted` of `present`, which is all that a runtime has of these kinds, or of these objects, with
/// `managedFields`. `is_applied(live, wanted)` tells whether an apply would change nothing.
pub fn changes<'a>(
    wanted: impl IntoIterator<Item = (&'a Id, &'a Value)>,
    present: &BTreeMap<Id, Value>,
    is_applied: impl Fn(&Value, &Value) -> bool,
) -> Changes {
    let wanted: BTreeMap<&Id, &Value> = wanted.into_iter().collect();
    let stands = |id: &Id, body: &Value| {
        present.get(id).is_some_and(|live| is_applied(live, body) || says_the_same(live, body))
    };
    let uid = |object: &Value| object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    let left = present.iter().filter(|(id, object)| !wanted.contains_key(id) && is_ours(object));
    Changes {
        apply: ordered(wanted.iter().filter(|(id, body)| !stands(id, body)).map(|(id, _)| (*id).clone())),
        delete: left.map(|(id, object)| (id.clone(), uid(object))).collect(),
    }
}

/// What is to be done where `done` is known to stand: what to apply, and what to look at and delete.
#[must_use]
pub fn since(done: &BTreeMap<Id, u64>, wanted: &BTreeMap<Id, u64>) -> (Vec<Id>, Vec<Id>) {
    let changed = wanted.iter().filter(|(id, hash)| done.get(*id) != Some(*hash)).map(|(id, _)| id.clone());
    let gone = done.keys().filter(|id| !wanted.contains_key(*id)).cloned();
    (ordered(changed), gone.collect())
}

/// Templates first.
#[must_use]
pub fn ordered(ids: impl Iterator<Item = Id>) -> Vec<Id> {
    let mut ids: Vec<Id> = ids.collect();
    ids.sort_by_key(|(kind, _)| KINDS.iter().position(|k| k == kind));
    ids
}

#[cfg(test)]
mod tests;
