//! The engine's writes to KCP, to tell their echoes from other writers' changes.
//!
//! Objects are keyed by `Kind/name`.

use std::collections::HashMap;

use kube::ResourceExt;

use crate::key::WorkKey;

/// Suspected changes per object. Beyond it, another writer is certain, or an extra look is harmless.
const MOST: usize = 16;

/// Another writer of an engine-owned status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspected {
    /// Its field manager, if the API server reports it.
    pub by: Option<String>,
}

/// A status change possibly by another writer. The watch may show an own write before its response.
#[derive(Debug)]
struct Suspicion {
    /// The restoring reconcile.
    key: WorkKey,
    resource_version: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct Writes {
    /// resourceVersion of the last own write, until the watch shows it.
    own: HashMap<String, String>,
    /// No list is empty.
    suspected: HashMap<String, Vec<Suspicion>>,
}

/// The key of an object in [`Writes`].
pub(super) fn object_key(kind: &str, name: &str) -> String {
    format!("{kind}/{name}")
}

/// The object with the status that a reconcile writes: kind and name.
pub(super) fn status_object(key: &WorkKey) -> Option<(&'static str, &str)> {
    match key {
        WorkKey::Manifest { name, .. } => Some(("Manifest", name)),
        WorkKey::Kyma { kyma } | WorkKey::Catalog { kyma } | WorkKey::EventPath { kyma } => {
            Some(("Kyma", kyma))
        }
        _ => None,
    }
}

impl Writes {
    /// Notes an own write. `seen`: the version that the watch has shown, possibly before the response.
    pub(super) fn wrote(&mut self, object: String, version: String, seen: Option<&str>) {
        if let Some(all) = self.suspected.get_mut(&object) {
            all.retain(|one| one.resource_version.as_deref() != Some(&version));
            if all.is_empty() {
                self.suspected.remove(&object);
            }
        }
        if seen == Some(&version) {
            self.own.remove(&object);
        } else {
            self.own.insert(object, version);
        }
    }

    /// Whether the watch has yet to show an own write.
    pub(super) fn awaits_echo(&self, object: &str) -> bool {
        self.own.contains_key(object)
    }

    /// Whether an object is as the engine wrote it last. Each write has one echo.
    pub(super) fn take_echo(&mut self, kind: &str, object: &impl ResourceExt) -> bool {
        let key = object_key(kind, &object.name_any());
        let is_echo = self.own.get(&key) == object.resource_version().as_ref();
        if is_echo {
            self.own.remove(&key);
        }
        is_echo
    }

    /// Notes a status change without a known own write.
    pub(super) fn suspect(&mut self, object: String, key: &WorkKey, resource_version: Option<String>) {
        let all = self.suspected.entry(object).or_default();
        if all.len() < MOST {
            all.push(Suspicion { key: key.clone(), resource_version });
        }
    }

    /// Clears a reconcile's suspicions; returns whether there were any.
    pub(super) fn take_suspicion(&mut self, object: &str, key: &WorkKey) -> bool {
        let Some(all) = self.suspected.get_mut(object) else { return false };
        let before = all.len();
        all.retain(|one| one.key != *key);
        let any = all.len() < before;
        if all.is_empty() {
            self.suspected.remove(object);
        }
        any
    }

    /// Whether another writer possibly changed the status of any object.
    pub(super) fn has_suspicions(&self) -> bool {
        !self.suspected.is_empty()
    }

    pub(super) fn is_suspected(&self, object: &str) -> bool {
        self.suspected.contains_key(object)
    }

    pub(super) fn is_suspected_for(&self, object: &str, key: &WorkKey) -> bool {
        self.suspected.get(object).is_some_and(|all| all.iter().any(|one| one.key == *key))
    }

    pub(super) fn forget(&mut self, object: &str) {
        self.own.remove(object);
        self.suspected.remove(object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_write_clears_its_suspicion() {
        let mut writes = Writes::default();
        let [kyma, catalog] = [WorkKey::Kyma { kyma: "a".into() }, WorkKey::Catalog { kyma: "a".into() }];
        let object = || "Kyma/a".to_owned();
        let version = |version: &str| Some(version.to_owned());
        writes.suspect(object(), &kyma, version("1"));
        writes.wrote(object(), "1".into(), Some("1"));
        assert!(!writes.take_suspicion("Kyma/a", &kyma) && !writes.has_suspicions());
        writes.suspect(object(), &kyma, version("2"));
        writes.suspect(object(), &kyma, version("3"));
        writes.suspect(object(), &catalog, version("3"));
        writes.wrote(object(), "3".into(), Some("3"));
        assert!(!writes.take_suspicion("Kyma/a", &catalog) && writes.take_suspicion("Kyma/a", &kyma));
        assert!(!writes.take_suspicion("Kyma/a", &kyma));
        for number in 0..100 {
            writes.suspect(object(), &kyma, version(&number.to_string()));
        }
        assert_eq!(writes.suspected["Kyma/a"].len(), MOST);
        writes.forget("Kyma/a");
        assert!(!writes.has_suspicions() && !writes.awaits_echo("Kyma/a"));
    }
}
