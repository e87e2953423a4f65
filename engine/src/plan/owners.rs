//! Which Manifest an object in a runtime belongs to, by the inventories.
//!
//! An event names an object; this index names the reconciles that could care. It is fed before the
//! objects are applied, so an object's first event finds its owner.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tidewatch_api::names::RUNTIME_NAMESPACE;

use super::object::{Gvk, ObjectRef};
use crate::texts::{Texts, as_number};

/// Who says so. Each speaker replaces only what it has claimed itself: a watch that lags behind must not
/// take back what a reconcile has just claimed, or the first events about new objects would find no owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Speaker {
    /// The watch on KCP, from the inventory in a Manifest's status.
    Watch,
    /// A reconcile, before it applies.
    Reconcile,
}

impl Speaker {
    const fn bit(self) -> u8 {
        match self {
            Self::Watch => 1,
            Self::Reconcile => 2,
        }
    }
}

/// Owners of installed objects, per runtime. Bounded by the inventories of the fleet, of which it is the largest part: one entry for
/// each object of each Manifest, whose texts are held once for the fleet where they are the same.
#[derive(Debug, Default)]
pub struct Owners {
    runtimes: HashMap<String, Runtime>,
    texts: Texts,
    /// Runtime → (group, kind) → Manifests that wait for the end of all objects of the kind.
    awaited: HashMap<String, BTreeMap<(String, String), Awaiting>>,
}

/// The owners of one runtime's objects.
#[derive(Debug, Default)]
struct Runtime {
    /// Sorted, so that objects, and those of a kind, stand together. As many as modules have installed here: some hundreds.
    entries: Vec<Entry>,
    /// Manifests, by the number in `entries`; `None` is free.
    manifests: Vec<Option<Box<str>>>,
}

/// Group, kind, namespace and name, each by its number in [`Texts`].
type Identity = [u32; 4];

/// An object, the number of a Manifest that owns it, and who says so: bits of [`Speaker`]s.
type Entry = (Identity, u32, u8);

/// Who an object is, in numbers, if somebody owns it.
fn find(texts: &Texts, object: &ObjectRef) -> Option<Identity> {
    let (group, kind, namespace, name) = object.identity();
    Some([texts.number(group)?, texts.number(kind)?, texts.number(namespace)?, texts.number(name)?])
}

fn hold_all(texts: &mut Texts, object: &ObjectRef) -> Identity {
    let (group, kind, namespace, name) = object.identity();
    [group, kind, namespace, name].map(|text| texts.hold(text))
}

impl Runtime {
    /// The number of a Manifest, a new one if it has none.
    fn number(&mut self, manifest: &str) -> u32 {
        let named = self.manifests.iter().position(|m| m.as_deref() == Some(manifest));
        let at = named.or_else(|| self.manifests.iter().position(Option::is_none));
        let at = at.unwrap_or(self.manifests.len());
        if at == self.manifests.len() {
            self.manifests.push(None);
        }
        if let Some(slot @ None) = self.manifests.get_mut(at) {
            *slot = Some(manifest.into());
        }
        as_number(at)
    }

    /// The Manifests of entries, sorted, each once.
    fn names<'a>(&self, entries: impl Iterator<Item = &'a Entry>) -> Vec<String> {
        let numbers: BTreeSet<u32> = entries.map(|(_, manifest, _)| *manifest).collect();
        let names = numbers.into_iter().filter_map(|n| self.manifests.get(n as usize)?.as_deref());
        let mut names: Vec<String> = names.map(str::to_owned).collect();
        names.sort();
        names
    }

    /// The entries that begin like this.
    fn starting<'a>(&'a self, start: &'a [u32]) -> impl Iterator<Item = &'a Entry> {
        let first = self.entries.partition_point(|(id, ..)| id[..start.len()] < *start);
        self.entries.iter().skip(first).take_while(move |(id, ..)| id[..start.len()] == *start)
    }
}

/// Who waits for the end of all objects of a kind.
#[derive(Debug, Default)]
struct Awaiting {
    /// A version in which the kind was named.
    version: String,
    manifests: BTreeSet<String>,
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
        let bit = speaker.bit();
        let mut claimed: Vec<Identity> = objects.into_iter().map(|o| hold_all(&mut self.texts, o)).collect();
        claimed.sort_unstable();
        let index = self.runtimes.entry(runtime.to_owned()).or_default();
        let number = index.number(manifest);
        let mut new = claimed.clone();
        new.dedup();
        let texts = &mut self.texts;
        index.entries.retain_mut(|(id, manifest, speakers)| {
            if *manifest != number {
                return true;
            }
            if let Ok(at) = new.binary_search(id) {
                new.remove(at);
                *speakers |= bit;
            } else {
                *speakers &= !bit;
            }
            if *speakers == 0 {
                for text in id.iter() {
                    texts.let_go(*text);
                }
            }
            *speakers != 0
        });
        let stay = index.entries.len();
        index.entries.extend(new.iter().map(|id| (*id, number, bit)));
        if index.entries.len() > stay {
            index.entries.sort_unstable();
        }
        // Each entry holds its texts once; what was claimed has held them for the time being.
        for text in new.into_iter().flatten() {
            texts.hold_again(text);
        }
        for text in claimed.into_iter().flatten() {
            texts.let_go(text);
        }
        if !index.entries.iter().any(|(_, manifest, _)| *manifest == number)
            && let Some(slot) = index.manifests.get_mut(number as usize)
        {
            *slot = None;
        }
        // Few runtimes grow: most have what they have.
        index.entries.shrink_to_fit();
        if index.entries.is_empty() {
            self.runtimes.remove(runtime);
        }
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
        self.claim(Speaker::Watch, runtime, manifest, []);
        self.claim(Speaker::Reconcile, runtime, manifest, []);
    }

    /// The Manifests that own any object of a kind, sorted.
    pub fn of_kind(&self, runtime: &str, group: &str, kind: &str) -> Vec<String> {
        let found = || {
            let kind = [self.texts.number(group)?, self.texts.number(kind)?];
            let index = self.runtimes.get(runtime)?;
            Some(index.names(index.starting(&kind)))
        };
        found().unwrap_or_default()
    }

    /// The Manifests that own an object, sorted. A default CR of a kind without namespaces may be named in one.
    pub fn of(&self, runtime: &str, object: &ObjectRef) -> Vec<String> {
        let found = |object: &ObjectRef| {
            let id = find(&self.texts, object)?;
            let index = self.runtimes.get(runtime)?;
            Some(index.names(index.starting(&id)))
        };
        let mut names = found(object).unwrap_or_default();
        if object.namespace.is_empty() {
            let within = ObjectRef { namespace: RUNTIME_NAMESPACE.into(), ..object.clone() };
            names.extend(found(&within).unwrap_or_default());
            names.sort();
            names.dedup();
        }
        names
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
        assert!(owners.runtimes.is_empty() && owners.texts.is_empty());
    }

    /// Against an index as simple as can be.
    #[test]
    fn any_claims_in_any_order_leave_what_was_claimed_last() {
        let mut owners = Owners::default();
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
        assert!(owners.runtimes.is_empty() && owners.texts.is_empty());
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
    fn an_object_without_a_namespace_may_be_named_in_the_kymas() {
        let mut owners = Owners::default();
        let of = |namespace: &str| ObjectRef { namespace: namespace.into(), ..object("cr") };
        owners.claim(Speaker::Watch, "r1", "m1", &[of("kyma-system")]);
        assert_eq!(owners.of("r1", &of("")), ["m1"]);
        assert!(owners.of("r1", &of("elsewhere")).is_empty());
        owners.claim(Speaker::Watch, "r1", "m2", &[of("")]);
        assert_eq!(owners.of("r1", &of("")), ["m1", "m2"]);
        assert_eq!(owners.of("r1", &of("kyma-system")), ["m1"]);
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
