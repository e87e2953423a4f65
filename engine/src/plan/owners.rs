//! Which Manifest an object in a runtime belongs to, by the inventories.
//!
//! An event names an object; this index names the reconciles that could care. It is fed before the
//! objects are applied, so an object's first event finds its owner.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::object::ObjectRef;

/// Group, kind, namespace, name.
type Identity = (String, String, String, String);

/// Owners of installed objects, per runtime. Bounded by the inventories of the fleet.
#[derive(Debug, Default)]
pub struct Owners {
    runtimes: HashMap<String, BTreeMap<Identity, BTreeSet<String>>>,
    /// What each (runtime, manifest) has claimed, to replace it in one step.
    claims: HashMap<(String, String), Vec<Identity>>,
}

fn identity(object: &ObjectRef) -> Identity {
    let (group, kind, namespace, name) = object.identity();
    (group.into(), kind.into(), namespace.into(), name.into())
}

impl Owners {
    /// Sets what a Manifest owns in a runtime, in place of what it owned before.
    pub fn claim<'a>(
        &mut self,
        runtime: &str,
        manifest: &str,
        objects: impl IntoIterator<Item = &'a ObjectRef>,
    ) {
        self.release(runtime, manifest);
        let claimed: Vec<Identity> = objects.into_iter().map(identity).collect();
        if claimed.is_empty() {
            return;
        }
        let index = self.runtimes.entry(runtime.to_owned()).or_default();
        for id in &claimed {
            index.entry(id.clone()).or_default().insert(manifest.to_owned());
        }
        self.claims.insert((runtime.to_owned(), manifest.to_owned()), claimed);
    }

    /// Forgets a Manifest.
    pub fn release(&mut self, runtime: &str, manifest: &str) {
        let Some(claimed) = self.claims.remove(&(runtime.to_owned(), manifest.to_owned())) else { return };
        let Some(index) = self.runtimes.get_mut(runtime) else { return };
        for id in claimed {
            if let Some(owners) = index.get_mut(&id) {
                owners.remove(manifest);
                if owners.is_empty() {
                    index.remove(&id);
                }
            }
        }
        if index.is_empty() {
            self.runtimes.remove(runtime);
        }
    }

    /// The Manifests that own an object.
    pub fn of(&self, runtime: &str, object: &ObjectRef) -> Vec<String> {
        self.runtimes
            .get(runtime)
            .and_then(|index| index.get(&identity(object)))
            .map(|owners| owners.iter().cloned().collect())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::object::Gvk;

    fn object(name: &str) -> ObjectRef {
        ObjectRef { gvk: Gvk::of("apps/v1", "Deployment"), namespace: "n".into(), name: name.into() }
    }

    #[test]
    fn claims_replace_each_other_and_stay_within_their_runtime() {
        let mut owners = Owners::default();
        owners.claim("r1", "m1", &[object("a"), object("b")]);
        owners.claim("r1", "m2", &[object("b")]);
        assert_eq!(owners.of("r1", &object("b")), ["m1", "m2"]);
        assert!(owners.of("r2", &object("b")).is_empty());
        owners.claim("r1", "m1", &[object("c")]);
        assert!(owners.of("r1", &object("a")).is_empty());
        assert_eq!(owners.of("r1", &object("b")), ["m2"]);
        let other_version = ObjectRef { gvk: Gvk::of("apps/v2", "Deployment"), ..object("c") };
        assert_eq!(owners.of("r1", &other_version), ["m1"]);
        owners.release("r1", "m1");
        owners.release("r1", "m2");
        assert!(owners.runtimes.is_empty() && owners.claims.is_empty());
    }
}
