//! Index of Manifests: the installed modules of each runtime.

use std::collections::BTreeSet;

use kube::ResourceExt;
use tidewatch_api::{
    Manifest, State,
    inventory::{inventory, synced, union},
    names::{conditions, field_managers},
    object::ObjectRef,
};
use tidewatch_deployer::{ownership::Claim, transform::DEPLOYER};
use tidewatch_planner::{
    blockers,
    kyma::{Stray, is_nobodys, leaving_message, progress_at},
    manifest::{default_cr, has_been_ready, held_by, is_current, manager_beside},
    watches::Needs,
    writers::{another_tells, has_own_inventory, has_written_inventory},
};

use super::{KcpState, Wanted, agent_key, is_let_go, kyma_key, manifest_key, overwritten, store};
use crate::{
    index::owners::{Speaker, Wait},
    key::WorkKey,
    queue::Class,
    trigger::Change,
};

/// The Manifest that replaces another one of its module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Successor {
    /// Name of the Manifest.
    pub name: String,
    /// Its inventory, if it was Ready for its present spec.
    pub settled: Option<Vec<ObjectRef>>,
}

impl KcpState {
    /// Applies a new or changed Manifest. Spec changes request its own reconcile, state changes its Kyma's.
    pub fn apply_manifest(&mut self, mut manifest: Manifest) -> Vec<Wanted> {
        let name = manifest.name_any();
        let echo = self.is_echo("Manifest", &manifest);
        let is_whole = has_own_inventory(&manifest);
        if !has_written_inventory(&manifest) {
            self.keep_inventory(&mut manifest);
        }
        let synced = manifest.status.as_ref().map(|status| inventory(&status.synced)).unwrap_or_default();
        let is_installed = !synced.is_empty();
        let manager = manager_beside(&manifest, &synced);
        // An orphaned Manifest keeps its installed objects and creates no more.
        let cr = default_cr(&manifest).filter(|_| !is_nobodys(&manifest));
        let objects: Vec<ObjectRef> = synced.into_iter().chain(cr).collect();
        // Evaluated before the store takes the spec.
        let holds = held_by(&manifest);
        let is_held = holds.iter().all(|one| manifest.finalizers().iter().any(|f| f == one));
        let is_told = says_all(&manifest);
        let spec = |m: &Manifest| {
            (
                m.metadata.generation,
                m.labels().clone(),
                m.annotations().clone(),
                m.owner_references().to_vec(),
                m.metadata.deletion_timestamp.is_some(),
            )
        };
        // The state that its Kyma shows: none, if the status is for another spec.
        let generation = manifest.metadata.generation;
        let told = |m: &Manifest| {
            let (state, message) = progress_at(m, generation);
            // The watch may miss an intermediate Ready.
            let ready = has_been_ready(m, generation);
            (state, message.to_owned(), leaving_message(m).map(str::to_owned), ready)
        };
        let (manifest, old) = self.manifests.insert(manifest);
        let (old, needed) = match old {
            Some(store::Kept { thin, needs }) => (Some(thin), Some(needs)),
            None => (None, None),
        };
        // Requeue the previous owner.
        let mut wanted = Vec::new();
        let before = old.as_ref().filter(|old| old.kyma_name() != manifest.kyma_name());
        if let Some((old, kyma)) = before.and_then(|old| Some((old, old.kyma_name()?))) {
            self.by_kyma.remove(kyma, &name);
            self.owners.release(kyma, &name);
            let change = Change::ManifestTaken;
            wanted.push((kyma_key(kyma), change));
            wanted.extend(self.after_manifest(old, change));
        }
        let Some(kyma) = manifest.kyma_name().map(str::to_owned) else { return wanted };
        self.by_kyma.insert(&kyma, &name);
        self.owners.claim(Speaker::Watch, &kyma, &name, &objects);
        self.owners.judge_by(&kyma, &name, manager);

        let none = Needs::default();
        let change = match &old {
            None => Some(Change::Added),
            Some(old) if spec(old) != spec(&manifest) => Some(Change::Changed),
            Some(old) if !manifest.is_unmanaged() && is_let_go(&old.metadata, &manifest.metadata, &holds) => {
                Some(Change::FinalizerRemoved)
            }
            Some(_) => None,
        };
        let overwritten = old.as_ref().filter(|_| !echo && change.is_none()).is_some_and(|old| {
            !overwritten(&old.metadata, &manifest.metadata, field_managers::APPLIER).is_empty()
        });
        if overwritten {
            let key = manifest_key(&kyma, &name);
            self.suspicions.note(
                &format!("Manifest/{name}"),
                &key,
                manifest.metadata.resource_version.clone(),
            );
            wanted.push((key, Change::StatusOverwritten));
        }
        // After a start every Manifest is `Change::Added`. Settled ones need no reconcile: the runtime's agent reports
        // drift.
        //
        // Exceptions: orphaned Manifests still have to report it, and an incomplete inventory was overwritten. The
        // deployer's Secrets in KCP may have changed unobserved.
        let settled = old.is_none()
            && is_settled(&manifest)
            && is_installed
            && is_whole
            && is_told
            && is_held
            && manifest.module_name() != Some(DEPLOYER)
            && !is_nobodys(&manifest);
        // A list may show a finalizer's removal together with a later own write, so an echo does not hide the removal.
        if let Some(change) =
            change.filter(|change| !settled && (!echo || *change == Change::FinalizerRemoved))
        {
            wanted.push((manifest_key(&kyma, &name), change));
            // A mandatory module's Manifest is restored regardless of the writer.
            if let Some(old) = &old {
                wanted.extend(self.after_manifest(&manifest, change));
                // Owner and module concern the Kyma: it may gain or lose this Manifest.
                let whose = |m: &Manifest| {
                    (
                        m.module_name().map(str::to_owned),
                        m.kyma_name().map(str::to_owned),
                        m.owner_references().to_vec(),
                    )
                };
                if whose(old) != whose(&manifest) {
                    wanted.push((kyma_key(&kyma), change));
                }
            }
        }
        // A release may have changed unobserved.
        if old.is_none() && !echo && manifest.is_mandatory() {
            wanted.push((WorkKey::Mandatory { kyma: kyma.clone() }, Change::Added));
        }
        // Kymas do not report mandatory modules. They still wait for them while being deleted, or if a module requires
        // them.
        let leaving = || self.kymas.is_leaving(&kyma);
        let required = || manifest.module_name().is_some_and(|module| self.required(&kyma).contains(module));
        let shown = !manifest.is_mandatory() || required() || leaving();
        // The planning reconcile knows that the Manifest is not ready yet. After an interruption the watch may first
        // show it with an own status write.
        let planned = old.is_none() && echo && manifest.status.is_none();
        let is_news = old.as_ref().map(told) != Some(told(&manifest));
        let module = manifest.module_name();
        if is_news && module.is_some_and(|module| self.mandatory_awaits(&kyma).modules.contains(module)) {
            wanted.push((WorkKey::Mandatory { kyma: kyma.clone() }, Change::ManifestStatus));
        }
        if shown && !planned && is_news {
            // A status from another writer, or without a state, is reported only after the Manifest's own reconcile.
            let is_silent = manifest.status.as_ref().is_none_or(|status| status.state == State::Empty);
            let by_another = !echo && old.is_some() && (another_tells(&manifest.metadata) || is_silent);
            let change = if by_another { Change::ManifestStatusOverwritten } else { Change::ManifestStatus };
            wanted.push((kyma_key(&kyma), change));
        }
        let needed = needed.as_deref().unwrap_or(&none);
        if self.manifests.needs(&name).unwrap_or(&none) != needed {
            wanted.push((agent_key(&kyma), Change::ManifestKinds));
        }
        wanted
    }

    /// Keeps objects of the previous inventory after another writer changed it: they may still be in the runtime.
    fn keep_inventory(&self, manifest: &mut Manifest) {
        let name = manifest.name_any();
        if self.manifests.get(&name).is_none_or(|old| old.metadata.uid != manifest.metadata.uid) {
            return;
        }
        let before = self.manifests.inventory(&name);
        if !before.is_empty() {
            let status = manifest.status.get_or_insert_default();
            status.synced = synced(&union(&before, &inventory(&status.synced)));
        }
    }

    /// Returns a Manifest's inventory as last seen, including objects that another writer removed. Empty if the uid
    /// differs.
    pub fn inventory(&self, manifest: &Manifest) -> Vec<ObjectRef> {
        let name = manifest.name_any();
        let same = self.manifests.get(&name).is_some_and(|seen| seen.metadata.uid == manifest.metadata.uid);
        if same { self.manifests.inventory(&name) } else { Vec::new() }
    }

    /// Removes a deleted Manifest.
    pub fn delete_manifest(&mut self, name: &str) -> Vec<Wanted> {
        self.own_writes.remove(&format!("Manifest/{name}"));
        self.suspicions.forget(&format!("Manifest/{name}"));
        let Some(store::Kept { thin: old, needs }) = self.manifests.remove(name) else {
            return Vec::new();
        };
        let Some(kyma) = old.kyma_name() else { return Vec::new() };
        self.by_kyma.remove(kyma, name);
        self.owners.release(kyma, name);
        let kinds = (*needs != Needs::default()).then(|| (agent_key(kyma), Change::ManifestKinds));
        let change = Change::ManifestDeleted;
        let wanted = std::iter::once((kyma_key(kyma), change)).chain(self.after_manifest(&old, change));
        wanted.chain(kinds).collect()
    }

    /// Remembers the class of a Manifest's reconcile. User edits and rollouts keep theirs over retries and resyncs.
    pub fn working_on(&mut self, name: &str, class: Class) {
        let Some(before) = self.manifests.class_mut(name) else { return };
        if class <= Class::Rollout || before.is_none() {
            *before = Some(class.min(Class::Rollout));
        }
    }

    /// Returns the class for its Kyma after a state change: the Manifest's own, or a user edit if unknown.
    pub fn urgency(&self, manifest: &str) -> Class {
        self.manifests.class(manifest).unwrap_or(Class::UserEdit)
    }

    /// Replaces the objects that a Manifest waits for in its runtime. Ignored for an unknown Manifest.
    pub fn wait_for(&mut self, kyma: &str, manifest: &str, waits: impl IntoIterator<Item = impl Into<Wait>>) {
        if self.by_kyma.contains(kyma, manifest) {
            self.owners.wait_for(kyma, manifest, waits);
        }
    }

    /// Returns a Kyma's other Manifests with this object in their inventory.
    pub fn other_claims(&self, kyma: &str, manifest: &str, object: &ObjectRef) -> Vec<Claim> {
        let others = self.owners.of(kyma, object).into_iter().filter(|name| name != manifest);
        let deleting =
            |name: &String| self.manifests.get(name).is_some_and(|m| m.metadata.deletion_timestamp.is_some());
        others.map(|name| Claim { deleting: deleting(&name), manifest: name }).collect()
    }

    /// Returns installed objects and default CRs of a Kyma's other Manifests that are being deleted.
    ///
    /// Objects that a remaining Manifest also has, as after a transfer, are excluded.
    pub fn leaving_objects(&self, kyma: &str, manifest: &str) -> Vec<ObjectRef> {
        let others = self.by_kyma.of(kyma).filter(|name| *name != manifest);
        let leaving = others.filter_map(|name| {
            let is_leaving = |m: &Manifest| m.metadata.deletion_timestamp.is_some();
            let other = self.manifests.without_inventory(name).filter(is_leaving)?;
            Some(self.manifests.inventory(name).into_iter().chain(default_cr(&other)))
        });
        let stays = |object: &ObjectRef| {
            self.other_claims(kyma, manifest, object).iter().any(|claim| !claim.deleting)
        };
        leaving.flatten().filter(|object| !stays(object)).collect()
    }

    /// Returns API groups that a Kyma's Manifests in deletion define or declare. Their deletion may wait for all
    /// objects of these groups.
    pub fn groups_of_leaving(&self, kyma: &str) -> BTreeSet<String> {
        let all = self.manifests_of(kyma).into_iter();
        let leaving = all.filter(|manifest| manifest.metadata.deletion_timestamp.is_some());
        let groups = leaving.flat_map(|manifest| {
            let declared = blockers::declared(&manifest).unwrap_or_default();
            let installed = self.manifests.inventory(&manifest.name_any());
            let defined =
                installed.into_iter().filter(|object| object.gvk.kind == "CustomResourceDefinition");
            let defined =
                defined.filter_map(|crd| crd.name.split_once('.').map(|(_, group)| group.to_owned()));
            declared.into_iter().map(|gvk| gvk.group).chain(defined)
        });
        groups.collect()
    }

    /// Returns whether a Manifest of this name belongs to another Kyma.
    pub fn is_of_another(&self, kyma: &str, manifest: &str) -> bool {
        self.manifests.get(manifest).is_some_and(|m| m.kyma_name().is_some_and(|owner| owner != kyma))
    }

    /// Returns another managed Manifest of the Kyma with this object that is not being deleted.
    pub fn needed_by(&self, kyma: &str, manifest: &str, object: &ObjectRef) -> Option<String> {
        let managed = |name: &String| self.manifests.get(name).is_some_and(|m| !m.is_unmanaged());
        let others = self.other_claims(kyma, manifest, object).into_iter();
        others.filter(|claim| !claim.deleting).map(|claim| claim.manifest).find(managed)
    }

    /// Returns the Manifest that replaces this one: same module and owner, managed, and not being deleted.
    pub fn successor(&self, kyma: &str, manifest: &Manifest) -> Option<Successor> {
        let owner = |m: &Manifest| m.owner_references().first().map(|owner| owner.uid.clone());
        manifest.module_name()?;
        let all = self.by_kyma.of(kyma).filter_map(|name| self.manifests.get(name));
        let next = all.into_iter().find(|m| {
            m.metadata.name != manifest.metadata.name
                && m.module_name() == manifest.module_name()
                && owner(m) == owner(manifest)
                && m.metadata.deletion_timestamp.is_none()
                && !m.is_unmanaged()
                && Stray::of(self.kymas.get(kyma).as_ref(), m).is_none()
        })?;
        let synced = || self.manifests.inventory(&next.name_any());
        // Later warnings do not block the transfer. With an incomplete inventory, the successor's own objects would be
        // removed.
        let settled = has_been_ready(&next, next.metadata.generation)
            && has_own_inventory(&next)
            && !self.suspicions.has(&format!("Manifest/{}", next.name_any()));
        Some(Successor { name: next.name_any(), settled: settled.then(synced) })
    }

    /// Returns the Manifests that this one replaces ([`KcpState::successor`]): older ones and those being deleted.
    pub fn predecessors(&self, kyma: &str, manifest: &Manifest) -> Vec<String> {
        let name = manifest.name_any();
        let all = self.by_kyma.of(kyma).filter(|other| *other != name);
        let before = |other: &Manifest| {
            let (own, theirs) = (&manifest.metadata, &other.metadata);
            theirs.deletion_timestamp.is_some() || theirs.creation_timestamp < own.creation_timestamp
        };
        let all = all.filter_map(|other| self.manifests.get(other)).filter(|other| {
            other.module_name() == manifest.module_name()
                && before(other)
                && self.successor(kyma, other).is_some_and(|next| next.name == name)
        });
        all.map(|other| other.name_any()).collect()
    }

    /// Returns whether a Manifest is settled: Ready for its present spec, managed, and not being deleted.
    pub fn is_ready(&self, manifest: &str) -> bool {
        self.manifests.get(manifest).is_some_and(|manifest| is_settled(&manifest))
    }

    /// Returns whether another writer's status change on a Kyma's Manifests is not restored yet.
    pub fn doubts_manifests_of(&self, kyma: &str) -> bool {
        !self.suspicions.is_empty()
            && self.by_kyma.of(kyma).any(|name| self.suspicions.has(&format!("Manifest/{name}")))
    }

    /// Returns whether a Kyma has Manifests.
    pub fn has_manifests(&self, kyma: &str) -> bool {
        self.by_kyma.has_any(kyma)
    }

    /// Returns a Kyma's Manifests without specs and inventories.
    pub fn thin_manifests_of(&self, kyma: &str) -> impl Iterator<Item = Manifest> {
        let names = self.by_kyma.of(kyma);
        names.filter_map(|name| self.manifests.get(name))
    }

    /// Returns a Kyma's Manifests without inventories.
    pub fn manifests_of(&self, kyma: &str) -> Vec<Manifest> {
        let names = self.by_kyma.of(kyma);
        names.filter_map(|n| self.manifests.without_inventory(n)).collect()
    }
}

/// Returns whether the status has all parts of a Ready one. A part may have been removed unobserved.
fn says_all(manifest: &Manifest) -> bool {
    let Some(status) = &manifest.status else { return false };
    let says = |type_: &str| status.conditions.iter().any(|condition| condition.type_ == type_);
    status.last_operation.is_some()
        && says(conditions::RESOURCES)
        && says(conditions::INSTALLATION)
        && (says(conditions::MODULE_CR) || !manifest.spec.creates_default_cr())
}

/// Returns whether a Manifest is Ready for its present spec, managed, and not being deleted.
pub(super) fn is_settled(manifest: &Manifest) -> bool {
    let Some(status) = &manifest.status else { return false };
    manifest.metadata.deletion_timestamp.is_none()
        && !manifest.is_unmanaged()
        && status.state == State::Ready
        && is_current(manifest, manifest.metadata.generation)
}
