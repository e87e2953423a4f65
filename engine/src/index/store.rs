//! Manifests in memory. Common parts are stored once, the rest as differences ([`packed`]): whole ones would fill the
//! memory.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use tidewatch_api::{
    InstallInfo, Manifest, ManifestSpec, ManifestStatus, RawObject, Resource, inventory::inventory,
    marks::mark, names::annotations, object::ObjectRef,
};
use tidewatch_planner::watches::Needs;

use super::{
    manifests::is_settled,
    packed::{Packed, Patterns},
};
use crate::{
    alike::{Shared, hash_of},
    queue::Class,
    texts::Texts,
};

#[derive(Debug, Default)]
pub(super) struct Store {
    held: HashMap<String, Held>,
    specs: Shared<ManifestSpec>,
    needs: Shared<Needs>,
    inventories: Shared<Inventory>,
    patterns: Patterns,
    texts: Texts,
}

#[derive(Debug)]
struct Held {
    /// Metadata and status; no spec (but see [`slight`]).
    thin: Packed,
    needs: Arc<Needs>,
    spec: Arc<ManifestSpec>,
    synced: Arc<Inventory>,
    /// Number of its name.
    module: Option<u32>,
    mandatory: bool,
    /// Of the last reconcile, if its Kyma inherits it.
    class: Option<Class>,
}

/// Name, namespace, group, version and kind, as text numbers.
type Inventory = Box<[[u32; 5]]>;

/// A previous Manifest.
#[derive(Debug)]
pub(super) struct Kept {
    /// Without spec and inventory.
    pub(super) thin: Manifest,
    /// Watches for its agent.
    pub(super) needs: Arc<Needs>,
}

impl Store {
    /// Returns it without spec and inventory, and the previous one.
    pub(super) fn insert(&mut self, mut manifest: Manifest) -> (Manifest, Option<Kept>) {
        let name = manifest.name_any();
        let needs = Needs::of([&manifest]);
        let needs = self.needs.share(hash_of(&needs), needs);
        let settled = is_settled(&manifest);
        let spec = std::mem::take(&mut manifest.spec);
        manifest.spec = slight(&manifest, &spec);
        let hash = xxhash_rust::xxh3::xxh3_64(&serde_json::to_vec(&spec).unwrap_or_default());
        let spec = self.specs.share(hash, spec);
        let synced = manifest.status.as_mut().map(|status| std::mem::take(&mut status.synced));
        let texts = &mut self.texts;
        let module = manifest.module_name().map(|module| texts.hold(module));
        let number = |Resource { name, namespace, group, version, kind }: Resource| {
            [name, namespace, group, version, kind].map(|text| texts.hold(&text))
        };
        let synced: Inventory = synced.unwrap_or_default().into_iter().map(number).collect();
        let synced = self.inventories.share(hash_of(&synced), synced);
        let thin = self.patterns.pack(hash, &(&manifest.metadata, &manifest.status), settled);
        let class = self.held.get(&name).and_then(|held| held.class);
        let held = Held { thin, needs, spec, synced, module, mandatory: manifest.is_mandatory(), class };
        let old = self.held.insert(name, held);
        (manifest, self.let_go(old))
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<Kept> {
        let old = self.held.remove(name);
        self.let_go(old)
    }

    fn let_go(&mut self, old: Option<Held>) -> Option<Kept> {
        let held = old?;
        let kept = self.thin(&held);
        let Held { thin, needs, synced, module, .. } = held;
        for number in synced.iter().flatten().copied().chain(module) {
            self.texts.let_go(number);
        }
        self.patterns.let_go(thin);
        Some(Kept { thin: kept, needs })
    }

    fn thin(&self, held: &Held) -> Manifest {
        let mut thin = self.without_spec(held);
        thin.spec = slight(&thin, &held.spec);
        thin
    }

    fn without_spec(&self, held: &Held) -> Manifest {
        let (metadata, status): (ObjectMeta, Option<ManifestStatus>) = self.patterns.unpack(&held.thin);
        Manifest { metadata, status, ..Manifest::default() }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.held.keys()
    }

    /// Without spec and inventory.
    pub(super) fn get(&self, name: &str) -> Option<Manifest> {
        self.held.get(name).map(|held| self.thin(held))
    }

    /// Without specs and inventories.
    pub(super) fn of_module(&self, module: &str) -> impl Iterator<Item = Manifest> {
        let number = self.texts.number(module);
        let all = self.held.values().filter(move |held| held.module.is_some() && held.module == number);
        all.map(|held| self.thin(held))
    }

    /// Kymas with a non-mandatory module in these versions.
    pub(super) fn kymas_with(
        &self,
        module: &str,
        versions: &BTreeSet<String>,
    ) -> impl Iterator<Item = String> {
        let number = self.texts.number(module);
        let all = self.held.values().filter(move |held| held.module.is_some() && held.module == number);
        let having = all.filter(|held| !held.mandatory && versions.contains(&held.spec.version));
        having.filter_map(|held| self.thin(held).kyma_name().map(str::to_owned))
    }

    pub(super) fn mandatory_module(&self, name: &str) -> Option<&str> {
        let held = self.held.get(name).filter(|held| held.mandatory)?;
        held.module.map(|number| self.texts.text(number))
    }

    pub(super) fn is_mandatory(&self, name: &str) -> bool {
        self.held.get(name).is_some_and(|held| held.mandatory)
    }

    /// Class of the last reconcile.
    pub(super) fn class_mut(&mut self, name: &str) -> Option<&mut Option<Class>> {
        self.held.get_mut(name).map(|held| &mut held.class)
    }

    pub(super) fn class(&self, name: &str) -> Option<Class> {
        self.held.get(name)?.class
    }

    /// Watches for its agent.
    pub(super) fn needs(&self, name: &str) -> Option<&Needs> {
        self.held.get(name).map(|held| held.needs.as_ref())
    }

    pub(super) fn full(&self, name: &str) -> Option<Manifest> {
        let held = self.held.get(name)?;
        let mut manifest = self.without_inventory(name)?;
        if let Some(status) = &mut manifest.status {
            status.synced = self.synced(held);
        }
        Some(manifest)
    }

    pub(super) fn without_inventory(&self, name: &str) -> Option<Manifest> {
        let held = self.held.get(name)?;
        let spec = ManifestSpec::clone(&held.spec);
        Some(Manifest { spec, ..self.without_spec(held) })
    }

    pub(super) fn inventory(&self, name: &str) -> Vec<ObjectRef> {
        self.held.get(name).map(|held| inventory(&self.synced(held))).unwrap_or_default()
    }

    fn synced(&self, held: &Held) -> Vec<Resource> {
        let text = |number: u32| self.texts.text(number).to_owned();
        let named = |object: &[u32; 5]| {
            let [name, namespace, group, version, kind] = object.map(text);
            Resource { name, namespace, group, version, kind }
        };
        held.synced.iter().map(named).collect()
    }
}

/// The OCI ref that the Go manager has noted: it proves the Manifest finished.
fn slight(manifest: &Manifest, spec: &ManifestSpec) -> ManifestSpec {
    let noted = mark(manifest.annotations(), annotations::SYNC_OCI_REF).is_some();
    let ref_ = spec.install.source.0.get_key_value("ref").filter(|_| noted);
    let source = RawObject(ref_.map(|(key, value)| (key.clone(), value.clone())).into_iter().collect());
    ManifestSpec { install: InstallInfo { source, ..InstallInfo::default() }, ..ManifestSpec::default() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn manifest(name: &str, version: &str, objects: &[&str]) -> Manifest {
        let synced: Vec<_> = objects
            .iter()
            .map(|o| json!({"group": "apps", "version": "v1", "kind": "Deployment", "namespace": "s", "name": o}))
            .collect();
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"l": name}},
            "spec": {"remote": false, "version": version, "install": {"name": "raw-manifest", "source": {"a": "b"}}},
            "status": {"state": "Ready", "synced": synced}
        }))
        .unwrap()
    }

    #[test]
    fn what_is_kept_is_what_was_seen_and_what_is_equal_is_kept_once() {
        let mut store = Store::default();
        let (a, b) = (manifest("a", "1.0.0", &["x", "y"]), manifest("b", "1.0.0", &["y", "x"]));
        assert!(store.insert(a.clone()).1.is_none() && store.insert(b.clone()).1.is_none());
        assert_eq!((store.full("a"), store.full("b")), (Some(a.clone()), Some(b.clone())), "in their order");
        let held = |store: &Store, name: &str| Arc::as_ptr(&store.held[name].spec);
        assert_eq!(held(&store, "a"), held(&store, "b"));
        assert!(Arc::ptr_eq(&store.held["a"].needs, &store.held["b"].needs));
        store.insert(manifest("c", "1.0.0", &["x", "y"]));
        assert!(Arc::ptr_eq(&store.held["a"].synced, &store.held["c"].synced));
        store.remove("c");
        assert_eq!(store.needs("a"), Some(&Needs::of([&a])));
        assert_eq!(store.inventory("b"), inventory(&b.status.unwrap().synced));
        assert!(store.without_inventory("a").unwrap().status.unwrap().synced.is_empty());
        let newer = manifest("b", "1.1.0", &["z"]);
        let (thin, kept) = store.insert(newer.clone());
        assert_eq!((kept.unwrap().thin.labels()["l"].as_str(), store.get("b")), ("b", Some(thin)));
        assert_eq!((store.full("a"), store.full("b")), (Some(a), Some(newer)));
        for name in ["a", "b"] {
            assert!(store.remove(name).is_some() && store.full(name).is_none());
        }
        assert!(store.texts.is_empty() && store.patterns.is_empty());
        let none = Manifest { status: None, ..manifest("c", "1.0.0", &[]) };
        store.insert(none.clone());
        assert_eq!(store.full("c"), Some(none));
    }
}
