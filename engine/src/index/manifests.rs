//! Manifests: the installed modules.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use kube::ResourceExt;
use tidewatch_api::{
    Manifest, Resource, State,
    inventory::{inventory, synced, union},
    names::{conditions, field_managers},
    object::ObjectRef,
};
use tidewatch_deployer::{ownership::Claim, transform::DEPLOYER};
use tidewatch_planner::{
    blockers,
    kyma::{Orphan, deletion_message, has_no_owner, progress_at},
    manifest::{default_cr, external_manager, has_been_ready, is_current, required_finalizers},
    watches::RequiredKinds,
    writers::{another_tells, has_own_inventory, has_written_inventory},
};

use super::{
    KcpState, Wanted, agent_key, finalizer_removed, kyma_key, manifest_key, overwritten, unindex,
    writes::object_key,
};
use crate::{
    index::owners::{Speaker, Wait},
    key::WorkKey,
    pool::Pool,
    queue::Class,
    trigger::Change,
};

/// The Manifest that replaces another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Successor {
    /// Its name.
    pub name: String,
    /// Its inventory, if it has been Ready for its spec.
    pub settled: Option<Vec<ObjectRef>>,
}

/// Manifests by name, with the objects that another writer dropped from their inventories.
#[derive(Debug, Default)]
pub struct Manifests {
    by_name: HashMap<String, Arc<Manifest>>,
    /// Kyma → Manifests; no set is empty.
    by_kyma: HashMap<String, BTreeSet<String>>,
    /// Module → Manifests; no set is empty.
    by_module: HashMap<String, BTreeSet<String>>,
    /// Inventories: runtimes with the same modules have equal ones.
    inventories: Pool<Vec<Resource>>,
    /// Classes of the last reconciles, which their Kymas inherit.
    classes: HashMap<String, Class>,
}

impl Manifests {
    /// A Manifest.
    pub fn get(&self, name: &str) -> Option<&Arc<Manifest>> {
        self.by_name.get(name)
    }

    /// Names of all Manifests except these.
    pub(crate) fn names_besides(&self, names: &HashSet<String>) -> Vec<String> {
        self.by_name.keys().filter(|name| !names.contains(*name)).cloned().collect()
    }

    /// A Kyma's Manifests, by name.
    pub fn of(&self, kyma: &str) -> impl Iterator<Item = &Manifest> {
        let names = self.by_kyma.get(kyma).into_iter().flatten();
        names.filter_map(|name| self.by_name.get(name)).map(Arc::as_ref)
    }

    /// Copies of a Kyma's Manifests, by name, for use without the index's lock.
    pub fn list(&self, kyma: &str) -> Vec<Manifest> {
        self.of(kyma).cloned().collect()
    }

    /// Whether a Kyma has Manifests.
    pub fn has_any(&self, kyma: &str) -> bool {
        self.by_kyma.contains_key(kyma)
    }

    /// A module's Manifests in all Kymas, by name.
    pub(super) fn of_module(&self, module: &str) -> impl Iterator<Item = &Manifest> {
        let names = self.by_module.get(module).into_iter().flatten();
        names.filter_map(|name| self.by_name.get(name)).map(Arc::as_ref)
    }

    /// Kymas with a non-mandatory module in these versions.
    pub(super) fn kymas_with(&self, module: &str, versions: &BTreeSet<String>) -> BTreeSet<String> {
        let all = self.of_module(module).filter(|m| !m.is_mandatory() && versions.contains(&m.spec.version));
        all.filter_map(|manifest| manifest.kyma_name().map(str::to_owned)).collect()
    }

    fn share_inventory(&mut self, manifest: &mut Manifest) {
        if let Some(status) = &mut manifest.status {
            status.synced = self.inventories.share(std::mem::take(&mut status.synced));
        }
    }

    /// Returns the previous one.
    fn insert(&mut self, manifest: &Arc<Manifest>) -> Option<Arc<Manifest>> {
        let name = manifest.name_any();
        let old = self.by_name.insert(name.clone(), Arc::clone(manifest));
        if let Some(old) = &old {
            self.unindex(old, &name);
        }
        if let Some(kyma) = manifest.kyma_name() {
            self.by_kyma.entry(kyma.to_owned()).or_default().insert(name.clone());
        }
        if let Some(module) = manifest.module_name() {
            self.by_module.entry(module.to_owned()).or_default().insert(name);
        }
        old
    }

    fn remove(&mut self, name: &str) -> Option<Arc<Manifest>> {
        let old = self.by_name.remove(name)?;
        self.unindex(&old, name);
        self.classes.remove(name);
        Some(old)
    }

    fn unindex(&mut self, manifest: &Manifest, name: &str) {
        if let Some(kyma) = manifest.kyma_name() {
            unindex(&mut self.by_kyma, kyma, name);
        }
        if let Some(module) = manifest.module_name() {
            unindex(&mut self.by_module, module, name);
        }
    }

    /// Keeps objects that another writer dropped from the inventory: the runtime may still have them.
    fn keep_inventory(&self, manifest: &mut Manifest) {
        let before = self.inventory(manifest);
        if !before.is_empty() {
            let status = manifest.status.get_or_insert_default();
            status.synced = synced(&union(&before, &inventory(&status.synced))).into();
        }
    }

    /// A Manifest's inventory, with objects that another writer dropped. Empty if the uid differs.
    pub fn inventory(&self, manifest: &Manifest) -> Vec<ObjectRef> {
        let seen = self.get(&manifest.name_any()).filter(|seen| seen.metadata.uid == manifest.metadata.uid);
        seen.map(|seen| inventory_of(seen)).unwrap_or_default()
    }

    /// Whether a Manifest has the skip label.
    pub fn is_skipped(&self, name: &str) -> bool {
        self.get(name).is_some_and(|manifest| manifest.is_skipped())
    }

    /// Whether a Manifest is Ready for its spec, managed, and not in deletion.
    pub fn is_ready(&self, name: &str) -> bool {
        self.get(name).is_some_and(|manifest| is_settled(manifest))
    }

    /// Whether the Manifest belongs to another Kyma.
    pub fn is_of_another(&self, kyma: &str, name: &str) -> bool {
        self.get(name).and_then(|manifest| manifest.kyma_name()).is_some_and(|owner| owner != kyma)
    }

    /// Sets the class of a Manifest's reconcile. User edits and rollouts keep theirs over retries and resyncs.
    pub fn set_class(&mut self, name: &str, class: Class) {
        if self.by_name.contains_key(name) && (class <= Class::Rollout || !self.classes.contains_key(name)) {
            self.classes.insert(name.to_owned(), class.min(Class::Rollout));
        }
    }

    /// Class of a Manifest's last reconcile; a user edit if unknown.
    pub fn class(&self, name: &str) -> Class {
        self.classes.get(name).copied().unwrap_or(Class::UserEdit)
    }

    /// API groups of Manifests in deletion. Their deletion may wait for all objects of these groups.
    pub fn groups_of_leaving(&self, kyma: &str) -> BTreeSet<String> {
        let leaving = self.of(kyma).filter(|manifest| manifest.metadata.deletion_timestamp.is_some());
        let groups = leaving.flat_map(|manifest| {
            let declared = blockers::declared(manifest).unwrap_or_default();
            let crds = inventory_of(manifest).into_iter();
            let crds = crds.filter(|object| object.gvk.kind == "CustomResourceDefinition");
            let defined = crds.filter_map(|crd| crd.name.split_once('.').map(|(_, group)| group.to_owned()));
            declared.into_iter().map(|gvk| gvk.group).chain(defined)
        });
        groups.collect()
    }
}

/// A Manifest beside the previous one.
struct Update<'a> {
    old: Option<&'a Manifest>,
    new: &'a Manifest,
    /// Whether the new one is the engine's own write.
    is_echo: bool,
}

impl Update<'_> {
    /// The change that requests the Manifest's reconcile, besides an overwritten status.
    fn change(&self) -> Option<Change> {
        let Some(old) = self.old else { return Some(Change::Added) };
        let (before, now) = (&old.metadata, &self.new.metadata);
        let differs = before.generation != now.generation
            || before.labels != now.labels
            || before.annotations != now.annotations
            || before.owner_references != now.owner_references
            || before.deletion_timestamp.is_some() != now.deletion_timestamp.is_some();
        if differs {
            return Some(Change::Changed);
        }
        let removed =
            !self.new.is_unmanaged() && finalizer_removed(before, now, &required_finalizers(self.new));
        removed.then_some(Change::FinalizerRemoved)
    }

    /// Whether another writer changed the status.
    fn is_overwritten(&self) -> bool {
        let old = self.old.filter(|_| !self.is_echo);
        old.is_some_and(|old| {
            !overwritten(&old.metadata, &self.new.metadata, field_managers::APPLIER).is_empty()
        })
    }

    /// Whether it needs no reconcile at a start, when all are added: agents report drift.
    ///
    /// Exceptions: orphaned Manifests must report it, overwritten inventories are incomplete, and the deployer's Secrets may have changed
    /// unobserved.
    fn is_settled_at_start(&self) -> bool {
        let new = self.new;
        let has = |finalizer: &&str| new.finalizers().iter().any(|f| f == finalizer);
        self.old.is_none()
            && is_settled(new)
            && new.status.as_ref().is_some_and(|status| !status.synced.is_empty())
            && has_own_inventory(new)
            && has_full_status(new)
            && required_finalizers(new).iter().all(has)
            && new.module_name() != Some(DEPLOYER)
            && !has_no_owner(new)
    }

    /// Whether a Kyma may gain or lose the Manifest.
    fn changes_owner(&self) -> bool {
        self.old.is_some_and(|old| {
            old.module_name() != self.new.module_name()
                || old.kyma_name() != self.new.kyma_name()
                || old.owner_references() != self.new.owner_references()
        })
    }

    /// Whether its Kyma has to report another state. Kymas show no state for another spec.
    fn changes_progress(&self) -> bool {
        let generation = self.new.metadata.generation;
        // The watch may miss an intermediate Ready.
        let progress = |m| (progress_at(m, generation), deletion_message(m), has_been_ready(m, generation));
        self.old.is_none_or(|old| progress(old) != progress(self.new))
    }

    /// Whether its agent has to watch other kinds.
    fn changes_kinds(&self) -> bool {
        RequiredKinds::of(self.old) != RequiredKinds::of([self.new])
    }
}

impl KcpState {
    /// Applies a Manifest. Its spec requests its own reconcile, its state its Kyma's.
    pub fn apply_manifest(&mut self, mut manifest: Manifest) -> Vec<Wanted> {
        let name = manifest.name_any();
        let is_echo = self.writes.take_echo("Manifest", &manifest);
        if !has_written_inventory(&manifest) {
            self.manifests.keep_inventory(&mut manifest);
        }
        self.manifests.share_inventory(&mut manifest);
        let new = Arc::new(manifest);
        let old = self.manifests.insert(&new);
        let mut wanted = Vec::new();
        // Requeue the previous owner.
        if let Some(old) = &old
            && let Some(kyma) = old.kyma_name().filter(|kyma| Some(*kyma) != new.kyma_name())
        {
            self.owners.release(kyma, &name);
            wanted.push((kyma_key(kyma), Change::ManifestTaken));
            wanted.extend(self.mandatory_wanted(old, Change::ManifestTaken));
        }
        let Some(kyma) = new.kyma_name() else { return wanted };
        self.claim(kyma, &new);
        let update = Update { old: old.as_deref(), new: &new, is_echo };
        wanted.extend(self.reconciles_wanted(kyma, &update));
        wanted.extend(self.reports_wanted(kyma, &update));
        if update.changes_kinds() {
            wanted.push((agent_key(kyma), Change::ManifestKinds));
        }
        wanted
    }

    /// Routes events about a Manifest's objects to it.
    fn claim(&mut self, kyma: &str, manifest: &Manifest) {
        let name = manifest.name_any();
        let installed = inventory_of(manifest);
        let manager = external_manager(manifest, &installed);
        // An orphaned Manifest creates nothing more.
        let cr = default_cr(manifest).filter(|_| !has_no_owner(manifest));
        let objects: Vec<ObjectRef> = installed.into_iter().chain(cr).collect();
        self.owners.claim(Speaker::Watch, kyma, &name, &objects);
        self.owners.judge_by(kyma, &name, manager);
    }

    /// Requests the Manifest's own reconcile, and plans that its change concerns.
    fn reconciles_wanted(&mut self, kyma: &str, update: &Update<'_>) -> Vec<Wanted> {
        let Update { old, new, is_echo } = *update;
        let name = new.name_any();
        let key = manifest_key(kyma, &name);
        let change = update.change();
        let mut wanted = Vec::new();
        if change.is_none() && update.is_overwritten() {
            self.writes.suspect(object_key("Manifest", &name), &key, new.resource_version());
            wanted.push((key.clone(), Change::StatusOverwritten));
        }
        // A list may merge a finalizer's removal with a later own write.
        let change = change.filter(|change| !is_echo || *change == Change::FinalizerRemoved);
        if let Some(change) = change.filter(|_| !update.is_settled_at_start()) {
            wanted.push((key, change));
            // A mandatory module's Manifest is restored from any change.
            if old.is_some() {
                wanted.extend(self.mandatory_wanted(new, change));
            }
            if update.changes_owner() {
                wanted.push((kyma_key(kyma), change));
            }
        }
        // A release may have changed unobserved.
        if old.is_none() && !is_echo && new.is_mandatory() {
            wanted.push((WorkKey::Mandatory { kyma: kyma.to_owned() }, Change::Added));
        }
        wanted
    }

    /// Requests the reconciles that report, or wait for, a Manifest's state.
    fn reports_wanted(&self, kyma: &str, update: &Update<'_>) -> Vec<Wanted> {
        let Update { old, new, is_echo } = *update;
        let mut wanted = Vec::new();
        if !update.changes_progress() {
            return wanted;
        }
        let waits = self.kymas.waits(kyma);
        let module = new.module_name();
        if module.is_some_and(|module| waits.mandatory.modules.contains(module)) {
            wanted.push((WorkKey::Mandatory { kyma: kyma.to_owned() }, Change::ManifestStatus));
        }
        // Kymas do not report mandatory modules, but wait for them when required or during deletion.
        let is_required = module.is_some_and(|module| waits.required.contains(module));
        let is_reported = !new.is_mandatory() || is_required || self.kymas.is_deleting(kyma);
        // The planning reconcile knows it is not ready. An interrupted watch may first show it with an own status
        // write.
        let is_planned = old.is_none() && is_echo && new.status.is_none();
        if is_reported && !is_planned {
            // Another writer's status, or none, is reported only after the Manifest's reconcile.
            let has_no_state = new.status.as_ref().is_none_or(|status| status.state == State::Empty);
            let by_another = !is_echo && old.is_some() && (another_tells(&new.metadata) || has_no_state);
            let change = if by_another { Change::ManifestStatusOverwritten } else { Change::ManifestStatus };
            wanted.push((kyma_key(kyma), change));
        }
        wanted
    }

    /// Removes a Manifest.
    pub fn delete_manifest(&mut self, name: &str) -> Vec<Wanted> {
        self.writes.forget(&object_key("Manifest", name));
        let Some(old) = self.manifests.remove(name) else { return Vec::new() };
        let Some(kyma) = old.kyma_name() else { return Vec::new() };
        self.owners.release(kyma, name);
        let change = Change::ManifestDeleted;
        let mut wanted = vec![(kyma_key(kyma), change)];
        wanted.extend(self.mandatory_wanted(&old, change));
        if RequiredKinds::of([old.as_ref()]) != RequiredKinds::default() {
            wanted.push((agent_key(kyma), Change::ManifestKinds));
        }
        wanted
    }

    /// A Manifest; `None` while the watch has yet to show an own write.
    pub fn up_to_date(&self, manifest: &str) -> Option<Manifest> {
        let is_behind = self.writes.awaits_echo(&object_key("Manifest", manifest));
        self.manifests.get(manifest).filter(|_| !is_behind).map(|manifest| Manifest::clone(manifest))
    }

    /// Replaces the objects in the runtime that a known Manifest waits for.
    pub fn wait_for(&mut self, kyma: &str, manifest: &str, waits: impl IntoIterator<Item = impl Into<Wait>>) {
        if self.manifests.get(manifest).is_some_and(|known| known.kyma_name() == Some(kyma)) {
            self.owners.wait_for(kyma, manifest, waits);
        }
    }

    /// Other Manifests of a Kyma with this object.
    pub fn other_claims(&self, kyma: &str, manifest: &str, object: &ObjectRef) -> Vec<Claim> {
        let others = self.owners.of(kyma, object).into_iter().filter(|name| name != manifest);
        let deleting =
            |name: &String| self.manifests.get(name).is_some_and(|m| m.metadata.deletion_timestamp.is_some());
        others.map(|name| Claim { deleting: deleting(&name), manifest: name }).collect()
    }

    /// Objects and default CRs of a Kyma's other Manifests in deletion.
    ///
    /// Objects of a remaining Manifest, as after a transfer, are excluded.
    pub fn leaving_objects(&self, kyma: &str, manifest: &str) -> Vec<ObjectRef> {
        let others = self.manifests.of(kyma).filter(|other| other.name_any() != manifest);
        let leaving = others.filter(|other| other.metadata.deletion_timestamp.is_some());
        let objects = leaving.flat_map(|other| inventory_of(other).into_iter().chain(default_cr(other)));
        let stays = |object: &ObjectRef| {
            self.other_claims(kyma, manifest, object).iter().any(|claim| !claim.deleting)
        };
        objects.filter(|object| !stays(object)).collect()
    }

    /// Another managed Manifest with this object, not in deletion.
    pub fn needed_by(&self, kyma: &str, manifest: &str, object: &ObjectRef) -> Option<String> {
        let managed = |name: &String| self.manifests.get(name).is_some_and(|m| !m.is_unmanaged());
        let others = self.other_claims(kyma, manifest, object).into_iter();
        others.filter(|claim| !claim.deleting).map(|claim| claim.manifest).find(managed)
    }

    /// The managed Manifest of the same module and owner, not in deletion.
    pub fn successor(&self, kyma: &str, manifest: &Manifest) -> Option<Successor> {
        let owner = |m: &Manifest| m.owner_references().first().map(|owner| owner.uid.clone());
        manifest.module_name()?;
        let next = self.manifests.of(kyma).find(|m| {
            m.metadata.name != manifest.metadata.name
                && m.module_name() == manifest.module_name()
                && owner(m) == owner(manifest)
                && m.metadata.deletion_timestamp.is_none()
                && !m.is_unmanaged()
                && Orphan::of(self.kymas.get(kyma).as_deref(), m).is_none()
        })?;
        let name = next.name_any();
        // Later warnings do not block a transfer. An incomplete inventory does: the successor's own objects would be
        // removed.
        let settled = has_been_ready(next, next.metadata.generation)
            && has_own_inventory(next)
            && !self.writes.is_suspected(&object_key("Manifest", &name));
        Some(Successor { name, settled: settled.then(|| inventory_of(next)) })
    }

    /// Manifests, older or in deletion, with this [`KcpState::successor`].
    pub fn predecessors(&self, kyma: &str, manifest: &Manifest) -> Vec<String> {
        let name = manifest.name_any();
        let before = |other: &Manifest| {
            let (own, other) = (&manifest.metadata, &other.metadata);
            other.deletion_timestamp.is_some() || other.creation_timestamp < own.creation_timestamp
        };
        let all = self.manifests.of(kyma).filter(|other| {
            other.metadata.name != manifest.metadata.name
                && other.module_name() == manifest.module_name()
                && before(other)
                && self.successor(kyma, other).is_some_and(|next| next.name == name)
        });
        all.map(ResourceExt::name_any).collect()
    }

    /// Whether overwritten statuses of a Kyma's Manifests are unrestored.
    pub fn doubts_manifests_of(&self, kyma: &str) -> bool {
        self.writes.has_suspicions()
            && self
                .manifests
                .of(kyma)
                .any(|manifest| self.writes.is_suspected(&object_key("Manifest", &manifest.name_any())))
    }
}

/// Objects in a Manifest's inventory.
fn inventory_of(manifest: &Manifest) -> Vec<ObjectRef> {
    manifest.status.as_ref().map(|status| inventory(&status.synced)).unwrap_or_default()
}

/// Whether the status has all parts of a Ready one. Removals may be unobserved.
fn has_full_status(manifest: &Manifest) -> bool {
    let Some(status) = &manifest.status else { return false };
    let has = |type_: &str| status.conditions.iter().any(|condition| condition.type_ == type_);
    status.last_operation.is_some()
        && has(conditions::RESOURCES)
        && has(conditions::INSTALLATION)
        && (has(conditions::MODULE_CR) || !manifest.spec.creates_default_cr())
}

/// Whether a Manifest is Ready for its spec, managed, and not in deletion.
pub(super) fn is_settled(manifest: &Manifest) -> bool {
    let Some(status) = &manifest.status else { return false };
    manifest.metadata.deletion_timestamp.is_none()
        && !manifest.is_unmanaged()
        && status.state == State::Ready
        && is_current(manifest, manifest.metadata.generation)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn manifest(name: &str, kyma: &str, module: &str, version: &str) -> Arc<Manifest> {
        let labels = json!({"operator.kyma-project.io/kyma-name": kyma, "operator.kyma-project.io/module-name": module});
        Arc::new(
            serde_json::from_value(json!({"metadata": {"name": name, "labels": labels},
                "spec": {"version": version, "install": {"name": "raw-manifest", "source": {}}}}))
            .unwrap(),
        )
    }

    #[test]
    fn lookups_follow_changes_and_removals() {
        let mut manifests = Manifests::default();
        assert!(manifests.insert(&manifest("m", "a", "beam", "1.0.0")).is_none());
        manifests.insert(&manifest("n", "b", "beam", "1.0.0"));
        let versions = BTreeSet::from(["1.0.0".to_owned()]);
        assert_eq!(manifests.kymas_with("beam", &versions).len(), 2);
        let old = manifests.insert(&manifest("m", "c", "quay", "1.0.0"));
        assert_eq!(old, Some(manifest("m", "a", "beam", "1.0.0")));
        assert!(!manifests.has_any("a") && manifests.has_any("c"));
        assert_eq!(manifests.kymas_with("beam", &versions), BTreeSet::from(["b".to_owned()]));
        assert!(manifests.is_of_another("a", "m") && !manifests.is_of_another("c", "m"));
        manifests.set_class("m", Class::Rollout);
        for name in ["m", "n"] {
            assert!(manifests.remove(name).is_some() && manifests.remove(name).is_none());
        }
        assert!(manifests.by_kyma.is_empty() && manifests.by_module.is_empty());
        assert!(manifests.by_name.is_empty() && manifests.classes.is_empty());
    }
}
