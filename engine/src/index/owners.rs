//! Index from objects in a runtime to their Manifests.
//!
//! It is filled before objects are applied, so their first event finds its reconcile.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use tidewatch_api::{
    names::RUNTIME_NAMESPACE,
    object::{Gvk, ObjectRef},
};
use tidewatch_planner::watches;

use crate::pool::Pool;

/// Source of a claim, which replaces only its own.
///
/// A lagging watch must not remove a reconcile's claims: first events would find no owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Speaker {
    /// Inventory in a status on KCP.
    Watch,
    /// A reconcile, before it applies.
    Reconcile,
}

/// Group, kind, namespace and name.
type Identity = [Box<str>; 4];

/// Sorted, so that objects of a kind are contiguous. Never empty.
type Objects = Arc<Vec<Identity>>;

/// Owners of objects, per runtime. The fleet's inventories bound it.
#[derive(Debug, Default)]
pub struct ObjectOwners {
    /// Runtime → Manifest → claim. No map and no claim is empty.
    runtimes: HashMap<String, BTreeMap<String, Claim>>,
    /// Runtimes with the same modules have equal inventories.
    inventories: Pool<Vec<Identity>>,
    /// Runtime → Manifest → foreign object that decides its readiness. Rare.
    judged_by: HashMap<String, BTreeMap<String, ObjectRef>>,
    /// Runtime → (group, kind) → waiting Manifests.
    awaited: HashMap<String, BTreeMap<(String, String), Awaiting>>,
}

#[derive(Debug, Default)]
struct Claim {
    watch: Option<Objects>,
    reconcile: Option<Objects>,
}

impl Claim {
    const fn by(&mut self, speaker: Speaker) -> &mut Option<Objects> {
        match speaker {
            Speaker::Watch => &mut self.watch,
            Speaker::Reconcile => &mut self.reconcile,
        }
    }

    const fn is_empty(&self) -> bool {
        self.watch.is_none() && self.reconcile.is_none()
    }

    /// Whether an object starts with these parts: two or four.
    fn has(&self, start: &[&str]) -> bool {
        let parts = |object: &'_ Identity| {
            object.iter().take(start.len()).map(AsRef::as_ref).cmp(start.iter().copied())
        };
        let names = |objects: &Objects| objects.binary_search_by(parts).is_ok();
        self.watch.iter().chain(&self.reconcile).any(names)
    }
}

/// Objects of a kind that a Manifest waits for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wait {
    /// The kind.
    pub kind: Gvk,
    /// Names; for definitions and API services, API groups. Empty: all.
    pub only: BTreeSet<String>,
}

impl From<&Gvk> for Wait {
    fn from(kind: &Gvk) -> Self {
        Self { kind: kind.clone(), only: BTreeSet::new() }
    }
}

#[derive(Debug, Default)]
struct Awaiting {
    /// Any known version.
    version: String,
    /// By Manifest, as [`Wait::only`].
    manifests: BTreeMap<String, BTreeSet<String>>,
}

/// The entry for [`Wait::only`].
fn subject(object: &ObjectRef) -> &str {
    let Gvk { group, kind, .. } = &object.gvk;
    let serves = watches::SERVES.contains(&(group.as_str(), kind.as_str()));
    let of_group = object.name.split_once('.').map(|(_, group)| group).filter(|_| serves);
    of_group.unwrap_or(&object.name)
}

impl ObjectOwners {
    /// Replaces a source's claim.
    pub fn claim<'a>(
        &mut self,
        speaker: Speaker,
        runtime: &str,
        manifest: &str,
        objects: impl IntoIterator<Item = &'a ObjectRef>,
    ) {
        let named = |object: &ObjectRef| -> Identity {
            let (group, kind, namespace, name) = object.identity();
            [group, kind, namespace, name].map(Box::from)
        };
        let objects: BTreeSet<Identity> = objects.into_iter().map(named).collect();
        let claimed =
            (!objects.is_empty()).then(|| self.inventories.share(objects.into_iter().collect::<Vec<_>>()));
        let manifests = self.runtimes.entry(runtime.to_owned()).or_default();
        *manifests.entry(manifest.to_owned()).or_default().by(speaker) = claimed;
        manifests.retain(|_, claim| !claim.is_empty());
        if manifests.is_empty() {
            self.runtimes.remove(runtime);
        }
    }

    /// Replaces the foreign object that decides readiness.
    pub fn judge_by(&mut self, runtime: &str, manifest: &str, object: Option<ObjectRef>) {
        let Some(object) = object else {
            if let Some(all) = self.judged_by.get_mut(runtime) {
                all.remove(manifest);
                if all.is_empty() {
                    self.judged_by.remove(runtime);
                }
            }
            return;
        };
        self.judged_by.entry(runtime.to_owned()).or_default().insert(manifest.to_owned(), object);
    }

    fn judged<'a>(
        &'a self,
        runtime: &str,
        is: impl Fn(&ObjectRef) -> bool + 'a,
    ) -> impl Iterator<Item = &'a String> {
        let all = self.judged_by.get(runtime).into_iter().flatten();
        all.filter(move |(_, object)| is(object)).map(|(manifest, _)| manifest)
    }

    /// Replaces a Manifest's waits: events about these objects concern it.
    pub fn wait_for(
        &mut self,
        runtime: &str,
        manifest: &str,
        waits: impl IntoIterator<Item = impl Into<Wait>>,
    ) {
        if let Some(awaited) = self.awaited.get_mut(runtime) {
            for awaiting in awaited.values_mut() {
                awaiting.manifests.remove(manifest);
            }
        }
        let awaited = self.awaited.entry(runtime.to_owned()).or_default();
        for wait in waits {
            let Wait { kind: Gvk { group, version, kind }, only } = wait.into();
            let awaiting = awaited.entry((group, kind)).or_default();
            awaiting.version = version;
            awaiting.manifests.insert(manifest.to_owned(), only);
        }
        awaited.retain(|_, awaiting| !awaiting.manifests.is_empty());
        if awaited.is_empty() {
            self.awaited.remove(runtime);
        }
    }

    /// A Manifest's waits, sorted.
    pub fn waits_of(&self, runtime: &str, manifest: &str) -> Vec<Wait> {
        let awaited = self.awaited.get(runtime).into_iter().flatten();
        let its = awaited.filter_map(|((group, kind), Awaiting { version, manifests })| {
            let kind = Gvk { group: group.clone(), version: version.clone(), kind: kind.clone() };
            Some(Wait { kind, only: manifests.get(manifest)?.clone() })
        });
        let mut its: Vec<Wait> = its.collect();
        its.sort();
        its
    }

    /// Manifests waiting for a kind; without a `subject`, for any object.
    fn waiting<'a>(
        &'a self,
        runtime: &str,
        group: &str,
        kind: &str,
        subject: Option<&'a str>,
    ) -> impl Iterator<Item = &'a String> {
        let awaited = self.awaited.get(runtime);
        let awaiting = awaited.and_then(|a| a.get(&(group.to_owned(), kind.to_owned())));
        let all = awaiting.into_iter().flat_map(|awaiting| &awaiting.manifests);
        let is = move |only: &BTreeSet<String>| {
            only.is_empty() || subject.is_none_or(|subject| only.contains(subject))
        };
        all.filter(move |(_, only)| is(only)).map(|(manifest, _)| manifest)
    }

    /// Awaited kinds with a version, sorted.
    pub fn awaited(&self, runtime: &str) -> impl Iterator<Item = (&(String, String), &str)> {
        let awaited = self.awaited.get(runtime).into_iter().flatten();
        awaited.map(|(kind, awaiting)| (kind, awaiting.version.as_str()))
    }

    /// Manifests concerned by an object's event, sorted.
    pub fn interested(&self, runtime: &str, object: &ObjectRef) -> Vec<String> {
        let mut names = self.of(runtime, object);
        // Cluster-scoped objects may be named in the default namespace.
        let in_default = ObjectRef { namespace: "default".to_owned(), ..object.clone() };
        let is = |by: &ObjectRef| {
            by.same_object(object) || object.namespace.is_empty() && by.same_object(&in_default)
        };
        names.extend(self.judged(runtime, is).cloned());
        let Gvk { group, kind, .. } = &object.gvk;
        names.extend(self.waiting(runtime, group, kind, Some(subject(object))).cloned());
        names.sort();
        names.dedup();
        names
    }

    /// Manifests concerned by any event of a kind, sorted.
    pub fn interested_in_kind(&self, runtime: &str, group: &str, kind: &str) -> Vec<String> {
        let mut names = self.of_kind(runtime, group, kind);
        let is = |by: &ObjectRef| (by.gvk.group.as_str(), by.gvk.kind.as_str()) == (group, kind);
        names.extend(self.judged(runtime, is).cloned());
        names.extend(self.waiting(runtime, group, kind, None).cloned());
        names.sort();
        names.dedup();
        names
    }

    /// Removes a Manifest.
    pub fn release(&mut self, runtime: &str, manifest: &str) {
        self.wait_for(runtime, manifest, None::<Wait>);
        self.judge_by(runtime, manifest, None);
        self.claim(Speaker::Watch, runtime, manifest, []);
        self.claim(Speaker::Reconcile, runtime, manifest, []);
    }

    /// Owners of a kind's objects, sorted.
    pub fn of_kind(&self, runtime: &str, group: &str, kind: &str) -> Vec<String> {
        self.with(runtime, &[group, kind])
    }

    /// Owners of an object, sorted. A cluster-scoped default CR may have a namespace.
    pub fn of(&self, runtime: &str, object: &ObjectRef) -> Vec<String> {
        let (group, kind, namespace, name) = object.identity();
        let mut names = self.with(runtime, &[group, kind, namespace, name]);
        if namespace.is_empty() {
            names.extend(self.with(runtime, &[group, kind, RUNTIME_NAMESPACE, name]));
            names.sort();
            names.dedup();
        }
        names
    }

    fn with(&self, runtime: &str, start: &[&str]) -> Vec<String> {
        let all = self.runtimes.get(runtime).into_iter().flatten();
        all.filter(|(_, claim)| claim.has(start)).map(|(manifest, _)| manifest.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str) -> ObjectRef {
        ObjectRef { gvk: Gvk::of("apps/v1", "Deployment"), namespace: "n".into(), name: name.into() }
    }

    #[test]
    fn a_judging_manager_concerns_its_manifest_without_ownership() {
        let mut owners = ObjectOwners::default();
        let manager = object("a");
        owners.judge_by("r1", "m1", Some(manager.clone()));
        assert_eq!(owners.interested("r1", &manager), ["m1"]);
        assert_eq!(owners.interested_in_kind("r1", &manager.gvk.group, &manager.gvk.kind), ["m1"]);
        assert!(owners.of("r1", &manager).is_empty() && owners.interested("r1", &object("b")).is_empty());
        let nowhere = |namespace: &str| ObjectRef { namespace: namespace.to_owned(), ..manager.clone() };
        owners.judge_by("r1", "m1", Some(nowhere("default")));
        assert_eq!(owners.interested("r1", &nowhere("")), ["m1"]);
        owners.release("r1", "m1");
        assert!(owners.interested("r1", &nowhere("default")).is_empty() && owners.judged_by.is_empty());
    }

    #[test]
    fn claims_replace_earlier_ones_within_their_runtime() {
        let mut owners = ObjectOwners::default();
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
        assert!(owners.runtimes.is_empty());
    }

    #[test]
    fn random_claims_match_a_simple_model() {
        let mut owners = ObjectOwners::default();
        let mut simple: BTreeMap<(&str, &str, Speaker), Vec<ObjectRef>> = BTreeMap::new();
        let mut random = 7_u64;
        let mut pick = |of: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % of
        };
        let all: Vec<ObjectRef> = (0..12)
            .map(|n| {
                let kind = Gvk::of("apps/v1", ["Deployment", "DaemonSet", "Deploy"][n % 3]);
                ObjectRef { gvk: kind, ..object(&format!("o{}", n / 3)) }
            })
            .collect();
        for _ in 0..3_000 {
            let runtime = ["r1", "r2"][usize::try_from(pick(2)).unwrap()];
            let manifest = ["m1", "m2", "m3"][usize::try_from(pick(3)).unwrap()];
            if pick(9) == 0 {
                owners.release(runtime, manifest);
                simple.retain(|(r, m, _), _| (*r, *m) != (runtime, manifest));
            } else {
                let speaker = [Speaker::Watch, Speaker::Reconcile][usize::try_from(pick(2)).unwrap()];
                let claimed: Vec<ObjectRef> = all.iter().filter(|_| pick(3) == 0).cloned().collect();
                owners.claim(speaker, runtime, manifest, &claimed);
                simple.insert((runtime, manifest, speaker), claimed);
            }
            for runtime in ["r1", "r2"] {
                let who = |is: &dyn Fn(&ObjectRef) -> bool| -> Vec<String> {
                    let has = simple.iter().filter(|((r, ..), o)| *r == runtime && o.iter().any(is));
                    let names: BTreeSet<&str> = has.map(|((_, m, _), _)| *m).collect();
                    names.into_iter().map(str::to_owned).collect()
                };
                for object in &all {
                    assert_eq!(owners.of(runtime, object), who(&|o| o.same_object(object)));
                    let kind = object.gvk.kind.as_str();
                    assert_eq!(owners.of_kind(runtime, "apps", kind), who(&|o| o.gvk.kind == kind));
                }
            }
        }
        for (runtime, manifest, _) in simple.into_keys() {
            owners.release(runtime, manifest);
        }
        assert!(owners.runtimes.is_empty());
    }

    #[test]
    fn a_kind_belongs_to_every_manifest_owning_one_object() {
        let mut owners = ObjectOwners::default();
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
    fn an_owned_object_without_namespace_matches_the_default_one() {
        let mut owners = ObjectOwners::default();
        let of = |namespace: &str| ObjectRef { namespace: namespace.into(), ..object("cr") };
        owners.claim(Speaker::Watch, "r1", "m1", &[of("kyma-system")]);
        assert_eq!(owners.of("r1", &of("")), ["m1"]);
        assert!(owners.of("r1", &of("elsewhere")).is_empty());
        owners.claim(Speaker::Watch, "r1", "m2", &[of("")]);
        assert_eq!(owners.of("r1", &of("")), ["m1", "m2"]);
        assert_eq!(owners.of("r1", &of("kyma-system")), ["m1"]);
    }

    #[test]
    fn a_manifest_awaiting_a_kind_receives_its_objects() {
        let mut owners = ObjectOwners::default();
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
        assert_eq!(owners.waits_of("r1", "m2"), [Wait::from(&beacon)]);
        assert!(owners.waits_of("r1", "m1").is_empty());
        assert_eq!(owners.interested("r1", &object("a")), ["m1"]);
        owners.release("r1", "m2");
        assert!(owners.awaited.is_empty());
    }

    #[test]
    fn a_manifest_awaiting_named_objects_receives_only_those() {
        let mut owners = ObjectOwners::default();
        let wait = |kind: (&str, &str), only: &str| Wait {
            kind: Gvk { group: kind.0.into(), version: "v1".into(), kind: kind.1.into() },
            only: [only.to_owned()].into(),
        };
        let of = |kind: (&str, &str), name: &str| ObjectRef {
            gvk: wait(kind, "").kind,
            namespace: String::new(),
            name: name.into(),
        };
        let space = ("", "Namespace");
        owners.wait_for(
            "r1",
            "m1",
            [wait(watches::CRD, "x.dev"), wait(watches::API_SERVICE, "x.dev"), wait(space, "dock")],
        );
        let hears = |object: &ObjectRef| owners.interested("r1", object) == ["m1"];
        assert!(hears(&of(watches::CRD, "beams.x.dev")) && hears(&of(watches::API_SERVICE, "v1.x.dev")));
        assert!(!hears(&of(watches::CRD, "beams.y.dev")) && !hears(&of(watches::CRD, "x.dev")));
        assert!(hears(&of(space, "dock")) && !hears(&of(space, "quay")));
        assert_eq!(owners.interested_in_kind("r1", "", "Namespace"), ["m1"]);
    }

    #[test]
    fn a_lagging_watch_keeps_claims_of_the_reconcile() {
        let mut owners = ObjectOwners::default();
        owners.claim(Speaker::Reconcile, "r1", "m1", &[object("a"), object("b")]);
        owners.claim(Speaker::Watch, "r1", "m1", &[object("a")]);
        assert_eq!(owners.of("r1", &object("a")), ["m1"], "named once");
        assert_eq!(owners.of("r1", &object("b")), ["m1"]);
        owners.release("r1", "m1");
        assert!(owners.of("r1", &object("b")).is_empty());
    }
}
