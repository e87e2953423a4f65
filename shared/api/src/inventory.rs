//! The inventory: a Manifest's objects in the runtime.

use std::collections::HashSet;

use crate::{
    Resource,
    object::{Gvk, ObjectRef},
};

/// Converts a status. Drops objects with invalid names, because reading them fails forever.
#[must_use]
pub fn inventory(synced: &[Resource]) -> Vec<ObjectRef> {
    synced
        .iter()
        .map(|r| ObjectRef {
            gvk: Gvk { group: r.group.clone(), version: r.version.clone(), kind: r.kind.clone() },
            namespace: r.namespace.clone(),
            name: r.name.clone(),
        })
        .filter(ObjectRef::can_exist)
        .collect()
}

/// Converts an inventory to a status.
#[must_use]
pub fn synced(objects: &[ObjectRef]) -> Vec<Resource> {
    objects
        .iter()
        .map(|o| Resource {
            name: o.name.clone(),
            namespace: o.namespace.clone(),
            group: o.gvk.group.clone(),
            version: o.gvk.version.clone(),
            kind: o.gvk.kind.clone(),
        })
        .collect()
}

/// The inventory to write before an apply: old and new objects.
#[must_use]
pub fn union(inventory: &[ObjectRef], wanted: &[ObjectRef]) -> Vec<ObjectRef> {
    let new: HashSet<_> = wanted.iter().map(ObjectRef::identity).collect();
    wanted.iter().chain(inventory.iter().filter(|o| !new.contains(&o.identity()))).cloned().collect()
}

#[cfg(test)]
mod tests {
    use crate::inventory::*;

    #[test]
    fn impossible_objects_are_left_out_of_the_inventory() {
        let resource = |group: &str, name: &str| Resource {
            name: name.into(),
            namespace: "kyma-system".into(),
            group: group.into(),
            version: "v1".into(),
            kind: "Deployment".into(),
        };
        let read = inventory(&[resource("apps", "a"), resource("a/b", "b"), resource("apps", "")]);
        assert_eq!(synced(&read), [resource("apps", "a")]);
    }
}
