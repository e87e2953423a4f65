//! Whether an object of a Manifest's inventory may be deleted: only what is ours, and nobody else's any more.
//!
//! An inventory says what was to be applied, not what is there: it is written before the first apply, objects change hands,
//! and two modules may have one object in common. So the marks of the object that is there decide, read just before.

use serde_json::Value;
use tidewatch_api::names::{annotations, labels};

/// What an object in a runtime says of who manages it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Whether it carries the label of objects that come from KCP.
    pub managed: bool,
    /// `<namespace>/<name>` of its Manifest.
    pub owned_by: Option<String>,
}

impl Marks {
    /// Those of an object's metadata.
    #[must_use]
    pub fn of(metadata: &Value) -> Self {
        Self {
            managed: metadata["labels"][labels::MANAGED_BY].as_str() == Some(labels::MANAGED_BY_RUNTIME),
            owned_by: metadata["annotations"][annotations::OWNED_BY].as_str().map(str::to_owned),
        }
    }
}

/// Another Manifest of the same Kyma with the same object in its inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Its name.
    pub manifest: String,
    /// Whether it is being deleted.
    pub deleting: bool,
}

/// The Manifest whose marks an object carries that several have: one and the same for all of them, or each would overwrite the
/// others' for ever.
#[must_use]
pub fn marked_for<'a>(manifest: &'a str, others: &'a [Claim]) -> &'a str {
    let living = others.iter().filter(|claim| !claim.deleting).map(|claim| claim.manifest.as_str());
    living.chain([manifest]).min().unwrap_or(manifest)
}

/// What becomes of an object that a Manifest has no use for any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is ours.
    Delete,
    /// It stays, and leaves the inventory: this other Manifest needs it.
    Shared(String),
    /// It stays, and leaves the inventory: nothing says that it was applied from here, or somebody has taken it over.
    NotOurs,
    /// It is left to this other Manifest, which is being deleted and deletes it, or lets go of it.
    Await(String),
}

/// What becomes of an object that is there. `manifest` is `(namespace, name)` of the Manifest that asks, `others` are the
/// other Manifests of its Kyma with this object; `is_anothers` says of a Manifest in that namespace whether it is another Kyma's.
///
/// Two Kymas may be given one runtime by mistake: what one of them has applied last is not the other's to remove.
///
/// An object whose mark names a Manifest that has nothing to do with it any more is whoever's still has it in the
/// inventory: it was shared once, and the other is gone.
#[must_use]
pub fn verdict(
    manifest: (&str, &str),
    marks: &Marks,
    others: &[Claim],
    is_anothers: impl Fn(&str) -> bool,
) -> Verdict {
    if let Some(living) = others.iter().find(|claim| !claim.deleting) {
        return Verdict::Shared(living.manifest.clone());
    }
    let owner = marks.owned_by.as_deref().and_then(|owner| owner.split_once('/'));
    match owner {
        Some(owner) if marks.managed && owner == manifest => Verdict::Delete,
        Some((namespace, name)) if marks.managed && namespace == manifest.0 => {
            if others.iter().any(|claim| claim.manifest == name) {
                Verdict::Await(name.to_owned())
            } else if is_anothers(name) {
                Verdict::NotOurs
            } else {
                Verdict::Delete
            }
        }
        _ => Verdict::NotOurs,
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

    fn verdict(manifest: (&str, &str), marks: &Marks, others: &[Claim]) -> Verdict {
        super::verdict(manifest, marks, others, |name| name == "of-another-kyma")
    }

    #[test]
    fn only_what_carries_our_marks_goes() {
        let me = ("kcp-system", "a");
        assert_eq!(verdict(me, &marks("kcp-system/a"), &[]), Verdict::Delete);
        assert_eq!(
            verdict(me, &marks("kcp-system/gone"), &[]),
            Verdict::Delete,
            "it was shared with one that is gone"
        );
        assert_eq!(verdict(me, &marks("elsewhere/a"), &[]), Verdict::NotOurs, "of another KCP");
        assert_eq!(verdict(me, &marks("kcp-system/of-another-kyma"), &[]), Verdict::NotOurs);
        assert_eq!(verdict(me, &Marks::default(), &[]), Verdict::NotOurs);
        assert_eq!(verdict(me, &Marks { managed: false, ..marks("kcp-system/a") }, &[]), Verdict::NotOurs);
        assert_eq!(verdict(me, &marks("a"), &[]), Verdict::NotOurs);
        let shared = verdict(me, &marks("kcp-system/a"), &[claim("b", false)]);
        assert_eq!(shared, Verdict::Shared("b".into()), "whoever applied it last");
        assert_eq!(verdict(me, &marks("kcp-system/b"), &[claim("b", true)]), Verdict::Await("b".into()));
        assert_eq!(verdict(me, &marks("kcp-system/a"), &[claim("b", true)]), Verdict::Delete);
    }

    #[test]
    fn all_who_have_an_object_mark_it_for_the_same() {
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

    /// A runtime with objects 0..6, some made by users, and Manifests 0..4 that want some of them.
    #[derive(Clone, Debug, Default)]
    struct World {
        /// What is there: the Manifest that applied it last; `None`: a user's.
        there: BTreeMap<u8, Option<u8>>,
        /// Manifest → its inventory, and whether it is being deleted.
        manifests: BTreeMap<u8, (BTreeSet<u8>, bool)>,
        /// Objects that were a user's when a Manifest came to have them in its inventory, and were never applied.
        users: BTreeSet<u8>,
    }

    fn name(manifest: u8) -> String {
        format!("m{manifest}")
    }

    impl World {
        /// One look of Manifest `me` at an object it has no use for. `stale`: it has not heard of others' deletion yet.
        fn let_go(&mut self, me: u8, object: u8, stale: bool) -> Result<(), TestCaseError> {
            let others: Vec<Claim> = self
                .manifests
                .iter()
                .filter(|(m, (inventory, _))| **m != me && inventory.contains(&object))
                .map(|(m, (_, deleting))| claim(&name(*m), *deleting && !stale))
                .collect();
            let forget = match self.there.get(&object) {
                None => true,
                Some(owner) => {
                    let marks = owner.map_or_else(Marks::default, |m| marks(&format!("kcp/{}", name(m))));
                    match verdict(("kcp", &name(me)), &marks, &others) {
                        Verdict::Delete => {
                            prop_assert!(!self.users.contains(&object), "a user's object is deleted");
                            let needed = self
                                .manifests
                                .iter()
                                .any(|(m, (i, d))| *m != me && !d && i.contains(&object));
                            prop_assert!(!needed, "an object that another Manifest needs is deleted");
                            self.there.remove(&object);
                            true
                        }
                        Verdict::Shared(_) | Verdict::NotOurs => true,
                        Verdict::Await(_) => false,
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
        fn no_plan_deletes_an_object_it_does_not_own_and_nothing_of_ours_is_left(
            inventories in prop::collection::vec(prop::collection::btree_set(0..6_u8, 0..5), 1..4),
            users in prop::collection::btree_set(0..6_u8, 0..3),
            applies in prop::collection::vec((0..4_u8, 0..6_u8), 0..24),
            looks in prop::collection::vec((0..4_u8, 0..6_u8, any::<bool>(), any::<bool>()), 0..60),
        ) {
            let mut world = World::default();
            for (m, inventory) in (0_u8..).zip(inventories) {
                // Applied in turn, but never what a user has made: the apply did not get that far.
                for object in &inventory {
                    if !users.contains(object) {
                        world.there.insert(*object, Some(m));
                    }
                }
                world.manifests.insert(m, (inventory, false));
            }
            world.there.extend(users.iter().map(|u| (*u, None)));
            world.users = users;
            for (m, object) in applies {
                let wants = world.manifests.get(&m).is_some_and(|(i, _)| i.contains(&object));
                if wants && !world.users.contains(&object) {
                    world.there.insert(object, Some(m));
                }
            }
            // Manifests begin to be deleted, upgrades drop objects, in any order and side by side.
            for (m, object, delete, stale) in looks {
                if delete && let Some((_, deleting)) = world.manifests.get_mut(&m) {
                    *deleting = true;
                }
                if world.manifests.get(&m).is_some_and(|(i, _)| i.contains(&object)) {
                    world.let_go(m, object, stale)?;
                }
                world.manifests.retain(|_, (inventory, deleting)| !*deleting || !inventory.is_empty());
            }
            // In the end all of them go, each as often as it takes.
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
            let left: Vec<_> = world.there.iter().filter(|(_, owner)| owner.is_some()).collect();
            prop_assert!(left.is_empty(), "left behind: {left:?}");
        }
    }
}
