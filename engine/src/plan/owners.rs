//! Which Manifest an object in a runtime belongs to, by the inventories.
//!
//! An event names an object; this index names the reconciles that could care. It is fed before the
//! objects are applied, so an object's first event finds its owner.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::object::{Gvk, ObjectRef};

/// Group, kind, namespace, name.
type Identity = (String, String, String, String);

/// Who says so. Each speaker replaces only what it has claimed itself: a watch that lags behind must not
/// take back what a reconcile has just claimed, or the first events about new objects would find no owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Speaker {
    /// The watch on KCP, from the inventory in a Manifest's status.
    Watch,
    /// A reconcile, before it applies.
    Reconcile,
}

/// Owners of installed objects, per runtime. Bounded by the inventories of the fleet.
#[derive(Debug, Default)]
pub struct Owners {
    runtimes: HashMap<String, BTreeMap<Identity, BTreeSet<(String, Speaker)>>>,
    /// What each (runtime, manifest, speaker) has claimed, to replace it in one step.
    claims: HashMap<(String, String, Speaker), Vec<Identity>>,
    /// Runtime → (group, kind) → Manifests that wait for the end of all objects of the kind.
    awaited: HashMap<String, BTreeMap<(String, String), Awaiting>>,
}

/// Who waits for the end of all objects of a kind.
#[derive(Debug, Default)]
struct Awaiting {
    /// A version in which the kind was named.
    version: String,
    manifests: BTreeSet<String>,
}

fn identity(object: &ObjectRef) -> Identity {
    let (group, kind, namespace, name) = object.identity();
    (group.into(), kind.into(), namespace.into(), name.into())
}

impl Owners {
    /// Sets what a Manifest owns in a runtime, in place of what it owned before.
    pub fn claim<'a>(
        &mut self,
        speaker: Speaker,
        runtime: &str,
        manifest: &str,
        objects: impl IntoIterator<Item = &'a ObjectRef>,
    ) {
        self.take_back(speaker, runtime, manifest);
        let claimed: Vec<Identity> = objects.into_iter().map(identity).collect();
        if claimed.is_empty() {
            return;
        }
        let index = self.runtimes.entry(runtime.to_owned()).or_default();
        for id in &claimed {
            index.entry(id.clone()).or_default().insert((manifest.to_owned(), speaker));
        }
        self.claims.insert((runtime.to_owned(), manifest.to_owned(), speaker), claimed);
    }

    /// Sets the kinds whose objects a Manifest waits for, in place of those before: an event about any of them is for it.
    pub fn wait_for<'a>(&mut self, runtime: &str, manifest: &str, kinds: impl IntoIterator<Item = &'a Gvk>) {
        if let Some(awaited) = self.awaited.get_mut(runtime) {
            for awaiting in awaited.values_mut() {
                awaiting.manifests.remove(manifest);
            }
        }
        let awaited = self.awaited.entry(runtime.to_owned()).or_default();
        for kind in kinds {
            let key = (kind.group.clone(), kind.kind.clone());
            let awaiting = awaited.entry(key).or_default();
            awaiting.version.clone_from(&kind.version);
            awaiting.manifests.insert(manifest.to_owned());
        }
        awaited.retain(|_, awaiting| !awaiting.manifests.is_empty());
        if awaited.is_empty() {
            self.awaited.remove(runtime);
        }
    }

    fn waiting(&self, runtime: &str, group: &str, kind: &str) -> impl Iterator<Item = &String> {
        let awaited = self.awaited.get(runtime);
        let awaiting = awaited.and_then(|a| a.get(&(group.to_owned(), kind.to_owned())));
        awaiting.into_iter().flat_map(|awaiting| &awaiting.manifests)
    }

    /// The kinds whose objects any Manifest of a runtime waits for, each with a version; sorted.
    pub fn awaited(&self, runtime: &str) -> impl Iterator<Item = (&(String, String), &str)> {
        let awaited = self.awaited.get(runtime).into_iter().flatten();
        awaited.map(|(kind, awaiting)| (kind, awaiting.version.as_str()))
    }

    /// The Manifests that an event about an object is for: its owners, and those that wait for its end. Sorted.
    pub fn interested(&self, runtime: &str, object: &ObjectRef) -> Vec<String> {
        let mut names = self.of(runtime, object);
        names.extend(self.waiting(runtime, &object.gvk.group, &object.gvk.kind).cloned());
        names.sort();
        names.dedup();
        names
    }

    /// The same for whatever may have happened to objects of a kind.
    pub fn interested_in_kind(&self, runtime: &str, group: &str, kind: &str) -> Vec<String> {
        let mut names = self.of_kind(runtime, group, kind);
        names.extend(self.waiting(runtime, group, kind).cloned());
        names.sort();
        names.dedup();
        names
    }

    /// Forgets a Manifest.
    pub fn release(&mut self, runtime: &str, manifest: &str) {
        self.wait_for(runtime, manifest, []);
        self.take_back(Speaker::Watch, runtime, manifest);
        self.take_back(Speaker::Reconcile, runtime, manifest);
    }

    fn take_back(&mut self, speaker: Speaker, runtime: &str, manifest: &str) {
        let key = (runtime.to_owned(), manifest.to_owned(), speaker);
        let Some(claimed) = self.claims.remove(&key) else { return };
        let owner = (key.1, speaker);
        let Some(index) = self.runtimes.get_mut(runtime) else { return };
        for id in claimed {
            if let Some(owners) = index.get_mut(&id) {
                owners.remove(&owner);
                if owners.is_empty() {
                    index.remove(&id);
                }
            }
        }
        if index.is_empty() {
            self.runtimes.remove(runtime);
        }
    }

    /// The Manifests that own any object of a kind, sorted.
    pub fn of_kind(&self, runtime: &str, group: &str, kind: &str) -> Vec<String> {
        let first: Identity = (group.into(), kind.into(), String::new(), String::new());
        let names: BTreeSet<&String> = self
            .runtimes
            .get(runtime)
            .into_iter()
            .flat_map(|index| index.range(first.clone()..))
            .take_while(|((g, k, ..), _)| g == group && k == kind)
            .flat_map(|(_, owners)| owners.iter().map(|(name, _)| name))
            .collect();
        names.into_iter().cloned().collect()
    }

    /// The Manifests that own an object.
    pub fn of(&self, runtime: &str, object: &ObjectRef) -> Vec<String> {
        self.runtimes
            .get(runtime)
            .and_then(|index| index.get(&identity(object)))
            .map(|owners| {
                let mut names: Vec<String> = owners.iter().map(|(name, _)| name.clone()).collect();
                // Both speakers of one Manifest stand side by side.
                names.dedup();
                names
            })
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str) -> ObjectRef {
        ObjectRef { gvk: Gvk::of("apps/v1", "Deployment"), namespace: "n".into(), name: name.into() }
    }

    #[test]
    fn claims_replace_each_other_and_stay_within_their_runtime() {
        let mut owners = Owners::default();
        owners.claim(Speaker::Watch, "r1", "m1", &[object("a"), object("b")]);
        owners.claim(Speaker::Watch, "r1", "m2", &[object("b")]);
        assert_eq!(owners.of("r1", &object("b")), ["m1", "m2"]);
        assert!(owners.of("r2", &object("b")).is_empty());
        owners.claim(Speaker::Watch, "r1", "m1", &[object("c")]);
        assert!(owners.of("r1", &object("a")).is_empty());
        assert_eq!(owners.of("r1", &object("b")), ["m2"]);
        let other_version = ObjectRef { gvk: Gvk::of("apps/v2", "Deployment"), ..object("c") };
        assert_eq!(owners.of("r1", &other_version), ["m1"]);
        owners.release("r1", "m1");
        owners.release("r1", "m2");
        assert!(owners.runtimes.is_empty() && owners.claims.is_empty());
    }

    #[test]
    fn a_kind_belongs_to_all_who_own_one_of_it() {
        let mut owners = Owners::default();
        let service = ObjectRef { gvk: Gvk::of("v1", "Service"), ..object("a") };
        owners.claim(Speaker::Watch, "r1", "m2", &[object("a"), service]);
        owners.claim(Speaker::Reconcile, "r1", "m1", &[object("b")]);
        owners.claim(Speaker::Watch, "r1", "m1", &[object("b")]);
        owners.claim(Speaker::Watch, "r2", "m3", &[object("a")]);
        assert_eq!(owners.of_kind("r1", "apps", "Deployment"), ["m1", "m2"]);
        assert_eq!(owners.of_kind("r1", "", "Service"), ["m2"]);
        assert!(owners.of_kind("r1", "apps", "Deploy").is_empty());
        assert!(owners.of_kind("r3", "apps", "Deployment").is_empty());
    }

    #[test]
    fn who_waits_for_a_kind_hears_of_each_object_of_it() {
        let mut owners = Owners::default();
        let beacon = Gvk::of("x.dev/v1", "Beacon");
        let newer = ObjectRef { gvk: Gvk::of("x.dev/v2", "Beacon"), ..object("users") };
        owners.claim(Speaker::Watch, "r1", "m1", &[object("a")]);
        owners.wait_for("r1", "m2", [&beacon, &Gvk::of("apps/v1", "Deployment")]);
        assert_eq!(owners.interested("r1", &newer), ["m2"]);
        assert_eq!(owners.interested("r1", &object("a")), ["m1", "m2"]);
        assert_eq!(owners.interested_in_kind("r1", "x.dev", "Beacon"), ["m2"]);
        assert!(owners.interested("r2", &newer).is_empty());
        assert!(owners.of("r1", &newer).is_empty(), "it does not own them");
        owners.wait_for("r1", "m2", [&beacon]);
        assert_eq!(owners.interested("r1", &object("a")), ["m1"]);
        owners.release("r1", "m2");
        assert!(owners.awaited.is_empty());
    }

    #[test]
    fn a_watch_that_lags_takes_nothing_back_from_a_reconcile() {
        let mut owners = Owners::default();
        owners.claim(Speaker::Reconcile, "r1", "m1", &[object("a"), object("b")]);
        owners.claim(Speaker::Watch, "r1", "m1", &[object("a")]);
        assert_eq!(owners.of("r1", &object("a")), ["m1"], "named once");
        assert_eq!(owners.of("r1", &object("b")), ["m1"]);
        owners.release("r1", "m1");
        assert!(owners.of("r1", &object("b")).is_empty());
    }
}
