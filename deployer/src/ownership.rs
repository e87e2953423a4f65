//! Decides whether inventory objects may be deleted.
//!
//! An inventory precedes the first apply, and two modules may have a common object. So the live object's marks
//! decide, read just before.

use serde_json::Value;
use tidewatch_api::names::{annotations, labels};

/// Marks of an object's manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Whether it is labelled as coming from KCP.
    pub managed: bool,
    /// `<namespace>/<name>` of its Manifest.
    pub owned_by: Option<String>,
}

impl Marks {
    /// Reads an object's metadata.
    #[must_use]
    pub fn of(metadata: &Value) -> Self {
        Self {
            managed: metadata["labels"][labels::MANAGED_BY].as_str() == Some(labels::MANAGED_BY_RUNTIME),
            owned_by: metadata["annotations"][annotations::OWNED_BY].as_str().map(str::to_owned),
        }
    }
}

/// Another Manifest of the Kyma with the object in its inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Manifest name.
    pub manifest: String,
    /// Whether it is being deleted.
    pub deleting: bool,
}

/// Returns the Manifest that marks a shared object: one for all, or they would overwrite each other's marks for ever.
#[must_use]
pub fn marked_for<'a>(manifest: &'a str, others: &'a [Claim]) -> &'a str {
    let active = others.iter().filter(|claim| !claim.deleting).map(|claim| claim.manifest.as_str());
    active.chain([manifest]).min().unwrap_or(manifest)
}

/// Decision about an object that a Manifest no longer needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Delete it.
    Delete,
    /// Keep it, without an inventory entry: this Manifest needs it.
    Shared(String),
    /// Keep it, without an inventory entry: a user, another Kyma or KCP owns it.
    UserOwned,
    /// Wait until this deleting Manifest deletes or releases it.
    Await(String),
}

/// Decides about a live object.
///
/// `manifest`: `(namespace, name)`. `others`: the Kyma's other Manifests with the object. `is_anothers`: whether a
/// Manifest belongs to another Kyma.
///
/// Two Kymas may share a runtime by mistake; neither removes the other's objects. If the marked Manifest has dropped
/// the object, any other with it may delete it.
#[must_use]
pub fn verdict(
    manifest: (&str, &str),
    marks: &Marks,
    others: &[Claim],
    is_of_other_kyma: impl Fn(&str) -> bool,
) -> Disposition {
    if let Some(active) = others.iter().find(|claim| !claim.deleting) {
        return Disposition::Shared(active.manifest.clone());
    }
    let owner = marks.owned_by.as_deref().and_then(|owner| owner.split_once('/'));
    match owner {
        Some(owner) if marks.managed && owner == manifest => Disposition::Delete,
        Some((namespace, name)) if marks.managed && namespace == manifest.0 => {
            if others.iter().any(|claim| claim.manifest == name) {
                Disposition::Await(name.to_owned())
            } else if is_of_other_kyma(name) {
                Disposition::UserOwned
            } else {
                Disposition::Delete
            }
        }
        _ => Disposition::UserOwned,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn marks(owned_by: &str) -> Marks {
        Marks { managed: true, owned_by: Some(owned_by.to_owned()) }
    }

    fn claim(manifest: &str, deleting: bool) -> Claim {
        Claim { manifest: manifest.to_owned(), deleting }
    }

    fn verdict(manifest: (&str, &str), marks: &Marks, others: &[Claim]) -> Disposition {
        super::verdict(manifest, marks, others, |name| name == "of-another-kyma")
    }

    #[test]
    fn only_objects_with_own_marks_are_deleted() {
        let me = ("kcp-system", "a");
        assert_eq!(verdict(me, &marks("kcp-system/a"), &[]), Disposition::Delete);
        assert_eq!(
            verdict(me, &marks("kcp-system/gone"), &[]),
            Disposition::Delete,
            "it was shared with one that is gone"
        );
        assert_eq!(verdict(me, &marks("elsewhere/a"), &[]), Disposition::UserOwned, "of another KCP");
        assert_eq!(verdict(me, &marks("kcp-system/of-another-kyma"), &[]), Disposition::UserOwned);
        assert_eq!(verdict(me, &Marks::default(), &[]), Disposition::UserOwned);
        assert_eq!(
            verdict(me, &Marks { managed: false, ..marks("kcp-system/a") }, &[]),
            Disposition::UserOwned
        );
        assert_eq!(verdict(me, &marks("a"), &[]), Disposition::UserOwned);
        let shared = verdict(me, &marks("kcp-system/a"), &[claim("b", false)]);
        assert_eq!(shared, Disposition::Shared("b".into()), "whoever applied it last");
        assert_eq!(verdict(me, &marks("kcp-system/b"), &[claim("b", true)]), Disposition::Await("b".into()));
        assert_eq!(verdict(me, &marks("kcp-system/a"), &[claim("b", true)]), Disposition::Delete);
    }

    #[test]
    fn sharing_manifests_agree_on_the_marked_owner() {
        assert_eq!(marked_for("a", &[claim("b", false)]), "a");
        assert_eq!(marked_for("b", &[claim("a", false), claim("c", false)]), "a");
        assert_eq!(marked_for("b", &[claim("a", true)]), "b", "the other is on its way out");
        assert_eq!(marked_for("b", &[]), "b");
    }

    #[test]
    fn marks_are_read_from_metadata() {
        let metadata = json!({"labels": {"operator.kyma-project.io/managed-by": "kyma"},
            "annotations": {"deprecated-operator.kyma-project.io/owned-by": "kcp-system/a"}});
        assert_eq!(Marks::of(&metadata), marks("kcp-system/a"));
        for none in
            [json!({}), json!(null), json!({"labels": {"operator.kyma-project.io/managed-by": "helm"}})]
        {
            assert_eq!(Marks::of(&none), Marks::default(), "{none}");
        }
    }

    /// Objects 0..6, some user-owned, and Manifests 0..4.
    #[derive(Clone, Debug, Default)]
    struct World {
        /// Objects with their last Manifest; `None`: user-owned.
        present: BTreeMap<u8, Option<u8>>,
        manifests: BTreeMap<u8, (BTreeSet<u8>, bool)>,
        /// User-owned inventory objects, never applied.
        users: BTreeSet<u8>,
    }

    fn name(manifest: u8) -> String {
        format!("m{manifest}")
    }

    impl World {
        /// `stale`: `me` has not observed other deletions yet.
        fn let_go(&mut self, me: u8, object: u8, stale: bool) -> Result<(), TestCaseError> {
            let others: Vec<Claim> = self
                .manifests
                .iter()
                .filter(|(m, (inventory, _))| **m != me && inventory.contains(&object))
                .map(|(m, (_, deleting))| claim(&name(*m), *deleting && !stale))
                .collect();
            let forget = match self.present.get(&object) {
                None => true,
                Some(owner) => {
                    let marks = owner.map_or_else(Marks::default, |m| marks(&format!("kcp/{}", name(m))));
                    match verdict(("kcp", &name(me)), &marks, &others) {
                        Disposition::Delete => {
                            prop_assert!(!self.users.contains(&object), "a user's object is deleted");
                            let needed = self
                                .manifests
                                .iter()
                                .any(|(m, (i, d))| *m != me && !d && i.contains(&object));
                            prop_assert!(!needed, "an object that another Manifest needs is deleted");
                            self.present.remove(&object);
                            true
                        }
                        Disposition::Shared(_) | Disposition::UserOwned => true,
                        Disposition::Await(_) => false,
                    }
                }
            };
            if forget && let Some((inventory, _)) = self.manifests.get_mut(&me) {
                inventory.remove(&object);
            }
            Ok(())
        }
    }

    proptest! {
        #[test]
        fn deletion_spares_foreign_objects_and_leaves_no_own_ones(
            inventories in prop::collection::vec(prop::collection::btree_set(0..6_u8, 0..5), 1..4),
            users in prop::collection::btree_set(0..6_u8, 0..3),
            applies in prop::collection::vec((0..4_u8, 0..6_u8), 0..24),
            checks in prop::collection::vec((0..4_u8, 0..6_u8, any::<bool>(), any::<bool>()), 0..60),
        ) {
            let mut world = World::default();
            for (m, inventory) in (0_u8..).zip(inventories) {
                // User-owned objects are never applied.
                for object in &inventory {
                    if !users.contains(object) {
                        world.present.insert(*object, Some(m));
                    }
                }
                world.manifests.insert(m, (inventory, false));
            }
            world.present.extend(users.iter().map(|u| (*u, None)));
            world.users = users;
            for (m, object) in applies {
                let wants = world.manifests.get(&m).is_some_and(|(i, _)| i.contains(&object));
                if wants && !world.users.contains(&object) {
                    world.present.insert(object, Some(m));
                }
            }
            for (m, object, delete, stale) in checks {
                if delete && let Some((_, deleting)) = world.manifests.get_mut(&m) {
                    *deleting = true;
                }
                if world.manifests.get(&m).is_some_and(|(i, _)| i.contains(&object)) {
                    world.let_go(m, object, stale)?;
                }
                world.manifests.retain(|_, (inventory, deleting)| !*deleting || !inventory.is_empty());
            }
            for (_, deleting) in world.manifests.values_mut() {
                *deleting = true;
            }
            for _ in 0..8 {
                for (m, (inventory, _)) in world.manifests.clone() {
                    for object in inventory {
                        world.let_go(m, object, false)?;
                    }
                }
            }
            prop_assert!(world.manifests.values().all(|(i, _)| i.is_empty()), "a deletion does not end: {world:?}");
            let left: Vec<_> = world.present.iter().filter(|(_, owner)| owner.is_some()).collect();
            prop_assert!(left.is_empty(), "left behind: {left:?}");
        }
    }
}
