//! Kinds that a cluster serves: built-in ones and those of its CRDs.

use std::{collections::BTreeMap, sync::Arc};

use super::{log::Key, target::Target};
use crate::kinds::{self, Kind, builtin};

#[derive(Debug, Default)]
pub(super) struct Served {
    /// Served versions by storage key.
    custom: BTreeMap<Arc<str>, Arc<Vec<Arc<Kind>>>>,
    /// Revision of a CRD's schema by storage key: older watches of its objects expire.
    floors: BTreeMap<Arc<str>, u64>,
}

impl Served {
    pub(super) fn find(&self, target: &Target) -> Option<Arc<Kind>> {
        let Target { group, version, resource, .. } = target;
        if let Some(kind) = builtin::find(group, version, resource) {
            return Some(Arc::clone(kind));
        }
        let key = kinds::qualified(resource, group);
        self.custom.get(key.as_str())?.iter().find(|kind| kind.version == *version).cloned()
    }

    pub(super) fn kinds(&self) -> impl Iterator<Item = &Arc<Kind>> {
        builtin::kinds().iter().chain(self.custom.values().flat_map(|kinds| kinds.iter()))
    }

    /// Any served version of the object's kind.
    pub(super) fn kind_of(&self, key: &Key) -> Option<Arc<Kind>> {
        let custom = || self.custom.get(&key.resource).and_then(|kinds| kinds.first());
        builtin::by_storage(&key.resource).or_else(custom).cloned()
    }

    /// Whether the cluster itself, not a Service, answers for a group version.
    pub(super) fn has_group_version(&self, group: &str, version: &str) -> bool {
        let reviews = version == "v1" && matches!(group, "authentication.k8s.io" | "authorization.k8s.io");
        reviews || self.kinds().any(|kind| kind.group == group && kind.version == version)
    }

    pub(super) fn has(&self, kind: &Kind) -> bool {
        kind.is_builtin() || self.custom.contains_key(&kind.storage)
    }

    /// Served versions of a custom kind.
    pub(super) fn versions(&self, kind: &Kind) -> Option<&Arc<Vec<Arc<Kind>>>> {
        self.custom.get(&kind.storage)
    }

    /// Watches of the kind from an older revision expire.
    pub(super) fn floor(&self, kind: &Kind) -> Option<u64> {
        self.floors.get(&kind.storage).copied()
    }

    /// Serves a CRD's kinds. Returns whether other ones of the CRD were served before.
    pub(super) fn serve(&mut self, storage: &Arc<str>, kinds: &Arc<Vec<Arc<Kind>>>, revision: u64) -> bool {
        let before = self.custom.insert(Arc::clone(storage), Arc::clone(kinds));
        if before.as_ref().is_some_and(|before| Arc::ptr_eq(before, kinds)) {
            return false;
        }
        self.floors.insert(Arc::clone(storage), revision);
        before.is_some()
    }

    /// Stops serving a removed CRD's kinds.
    pub(super) fn withdraw(&mut self, storage: &str) {
        self.custom.remove(storage);
        self.floors.remove(storage);
    }
}
