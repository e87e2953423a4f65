//! Selects objects to remove.

use std::collections::HashSet;

use tidewatch_api::{
    names,
    object::{Gvk, ObjectRef},
};

use crate::{
    bundle::Scope,
    kinds::{CRD, is},
};

/// Returns unwanted inventory objects, in removal order.
///
/// The namespace `kyma-system` is never pruned.
#[must_use]
pub fn prune(inventory: &[ObjectRef], wanted: &[ObjectRef]) -> Vec<ObjectRef> {
    let wanted: HashSet<_> = wanted.iter().map(ObjectRef::identity).collect();
    let mut unwanted: Vec<ObjectRef> = inventory
        .iter()
        .filter(|o| !wanted.contains(&o.identity()))
        .filter(|o| !(is(&o.gvk, ("", "Namespace")) && o.name == names::RUNTIME_NAMESPACE))
        .cloned()
        .collect();
    unwanted.sort_by_key(|o| removal_rank(&o.gvk));
    unwanted
}

/// Returns unwanted inventory entries, by index, with a wanted object that differs only in namespace.
#[must_use]
pub fn twins<'a>(inventory: &[ObjectRef], wanted: &'a [ObjectRef]) -> Vec<(usize, &'a ObjectRef)> {
    let wanted_identities: HashSet<_> = wanted.iter().map(ObjectRef::identity).collect();
    let named = |object: &ObjectRef| {
        wanted.iter().find(|other| other.name == object.name && other.gvk.same_kind(&object.gvk))
    };
    let unwanted =
        inventory.iter().enumerate().filter(|(_, object)| !wanted_identities.contains(&object.identity()));
    unwanted.filter_map(|(at, object)| Some((at, named(object)?))).collect()
}

/// Whether an inventory entry and its [twin](twins) are one object, by the kind's current scope.
///
/// The kind may have had another scope when the entry was written.
#[must_use]
pub fn is_same_object(entry: &ObjectRef, twin: &ObjectRef, scope: Option<Scope>) -> bool {
    let namespaces = [entry.namespace.as_str(), twin.namespace.as_str()];
    match scope {
        Some(Scope::Cluster) => true,
        // No namespace means `default`.
        Some(Scope::Namespaced) => namespaces.contains(&"") && namespaces.contains(&"default"),
        // No object of an unserved kind exists.
        None => namespaces.contains(&""),
    }
}

/// Ranks kinds for removal, lowest first.
///
/// Custom resources go while their operator runs. Webhooks and API services precede the operator: without it, they
/// block removals.
#[must_use]
pub fn removal_rank(gvk: &Gvk) -> u8 {
    match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("admissionregistration.k8s.io" | "apiregistration.k8s.io", _) => 1,
        ("apps" | "batch", _) | ("", "Pod") => 2,
        (
            "" | "networking.k8s.io" | "autoscaling" | "policy" | "discovery.k8s.io" | "scheduling.k8s.io",
            kind,
        ) if kind != "Namespace" => 3,
        ("rbac.authorization.k8s.io", _) => 4,
        CRD => 5,
        ("", "Namespace") => 6,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(kind: &str, namespace: &str, name: &str) -> ObjectRef {
        ObjectRef { gvk: Gvk::of("x.dev/v1", kind), namespace: namespace.into(), name: name.into() }
    }

    #[test]
    fn a_twin_differs_only_in_its_namespace() {
        let wanted =
            [object("Berth", "", "main"), object("Berth", "n", "other"), object("Mast", "n", "main")];
        let newer = ObjectRef { gvk: Gvk::of("x.dev/v2", "Mast"), ..object("Mast", "", "main") };
        let inventory = [
            object("Berth", "", "main"),
            object("Berth", "kyma-system", "main"),
            object("Berth", "n", "gone"),
            newer,
        ];
        assert_eq!(twins(&inventory, &wanted), [(1, &wanted[0]), (3, &wanted[2])], "whatever the version");
    }

    #[test]
    fn the_scope_of_a_kind_decides_whether_namespaces_matter() {
        let (cluster, namespaced) = (Some(Scope::Cluster), Some(Scope::Namespaced));
        for (entry, wanted, scope, expected) in [
            ("kyma-system", "", cluster, true),
            ("", "kyma-system", cluster, true),
            ("a", "b", cluster, true),
            ("", "default", namespaced, true),
            ("default", "", namespaced, true),
            ("", "kyma-system", namespaced, false),
            ("a", "b", namespaced, false),
            ("kyma-system", "", None, true),
            ("", "kyma-system", None, true),
            ("a", "b", None, false),
        ] {
            let (entry, wanted) = (object("Berth", entry, "main"), object("Berth", wanted, "main"));
            assert_eq!(is_same_object(&entry, &wanted, scope), expected, "{entry} {wanted} {scope:?}");
        }
    }
}
