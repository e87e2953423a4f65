//! Manifests: the installed modules.

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

/// The Manifest that replaces another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Successor {
    /// Its name.
    pub name: String,
    /// Its inventory, if it has been Ready for its spec.
    pub settled: Option<Vec<ObjectRef>>,
}

impl KcpState {
    /// Applies a Manifest. Its spec requests its own reconcile, its state its Kyma's.
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
        // An orphaned Manifest creates nothing more.
        let cr = default_cr(&manifest).filter(|_| !is_nobodys(&manifest));
        let objects: Vec<ObjectRef> = synced.into_iter().chain(cr).collect();
        // The store takes the spec later.
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
        // Kymas show no state for another spec.
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
        // At a start all are `Added`. Settled ones need no reconcile: agents report drift. Exceptions: orphaned
        // Manifests must report it, overwritten inventories are incomplete, and the deployer's Secrets may have
        // changed unobserved.
        let settled = old.is_none()
            && is_settled(&manifest)
            && is_installed
            && is_whole
            && is_told
            && is_held
            && manifest.module_name() != Some(DEPLOYER)
            && !is_nobodys(&manifest);
        // A list may merge a finalizer's removal with a later own write.
        if let Some(change) =
            change.filter(|change| !settled && (!echo || *change == Change::FinalizerRemoved))
        {
            wanted.push((manifest_key(&kyma, &name), change));
            // A mandatory module's Manifest is restored from any change.
            if let Some(old) = &old {
                wanted.extend(self.after_manifest(&manifest, change));
                // Its Kyma may gain or lose this Manifest.
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
        // Kymas do not report mandatory modules, but wait for them when required or during deletion.
        let leaving = || self.kymas.is_leaving(&kyma);
        let required = || manifest.module_name().is_some_and(|module| self.required(&kyma).contains(module));
        let shown = !manifest.is_mandatory() || required() || leaving();
        // The planning reconcile knows it is not ready. An interrupted watch may first show it with an own status
        // write.
        let planned = old.is_none() && echo && manifest.status.is_none();
        let is_news = old.as_ref().map(told) != Some(told(&manifest));
        let module = manifest.module_name();
        if is_news && module.is_some_and(|module| self.mandatory_awaits(&kyma).modules.contains(module)) {
            wanted.push((WorkKey::Mandatory { kyma: kyma.clone() }, Change::ManifestStatus));
        }
        if shown && !planned && is_news {
            // Another writer's status, or none, is reported only after the Manifest's reconcile.
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

    /// Keeps objects that another writer dropped from the inventory: the runtime may still have them.
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

    /// A Manifest's inventory, with objects that another writer dropped. Empty if the uid differs.
    pub fn inventory(&self, manifest: &Manifest) -> Vec<ObjectRef> {
        let name = manifest.name_any();
        let same = self.manifests.get(&name).is_some_and(|seen| seen.metadata.uid == manifest.metadata.uid);
        if same { self.manifests.inventory(&name) } else { Vec::new() }
    }

    /// Removes a Manifest.
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

    /// Remembers a reconcile's class. User edits and rollouts keep theirs over retries and resyncs.
    pub fn working_on(&mut self, name: &str, class: Class) {
        let Some(before) = self.manifests.class_mut(name) else { return };
        if class <= Class::Rollout || before.is_none() {
            *before = Some(class.min(Class::Rollout));
        }
    }

    /// Class of the Manifest's last reconcile; a user edit if unknown.
    pub fn urgency(&self, manifest: &str) -> Class {
        self.manifests.class(manifest).unwrap_or(Class::UserEdit)
    }

    /// Replaces the objects in the runtime that a known Manifest waits for.
    pub fn wait_for(&mut self, kyma: &str, manifest: &str, waits: impl IntoIterator<Item = impl Into<Wait>>) {
        if self.by_kyma.contains(kyma, manifest) {
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

    /// API groups of Manifests in deletion. Their deletion may wait for all objects of these groups.
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

    /// Whether the Manifest belongs to another Kyma.
    pub fn is_of_another(&self, kyma: &str, manifest: &str) -> bool {
        self.manifests.get(manifest).is_some_and(|m| m.kyma_name().is_some_and(|owner| owner != kyma))
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
        // Later warnings do not block a transfer. An incomplete inventory does: the successor's own objects would be
        // removed.
        let settled = has_been_ready(&next, next.metadata.generation)
            && has_own_inventory(&next)
            && !self.suspicions.has(&format!("Manifest/{}", next.name_any()));
        Some(Successor { name: next.name_any(), settled: settled.then(synced) })
    }

    /// Manifests, older or in deletion, with this [`KcpState::successor`].
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

    /// Whether a Manifest is Ready for its spec, managed, and not in deletion.
    pub fn is_ready(&self, manifest: &str) -> bool {
        self.manifests.get(manifest).is_some_and(|manifest| is_settled(&manifest))
    }

    /// Whether overwritten statuses of a Kyma's Manifests are unrestored.
    pub fn doubts_manifests_of(&self, kyma: &str) -> bool {
        !self.suspicions.is_empty()
            && self.by_kyma.of(kyma).any(|name| self.suspicions.has(&format!("Manifest/{name}")))
    }

    /// Whether a Kyma has Manifests.
    pub fn has_manifests(&self, kyma: &str) -> bool {
        self.by_kyma.has_any(kyma)
    }

    /// Manifests of a Kyma, without specs and inventories.
    pub fn thin_manifests_of(&self, kyma: &str) -> impl Iterator<Item = Manifest> {
        let names = self.by_kyma.of(kyma);
        names.filter_map(|name| self.manifests.get(name))
    }

    /// Manifests of a Kyma, without inventories.
    pub fn manifests_of(&self, kyma: &str) -> Vec<Manifest> {
        let names = self.by_kyma.of(kyma);
        names.filter_map(|n| self.manifests.without_inventory(n)).collect()
    }
}

/// Whether the status has all parts of a Ready one. Removals may be unobserved.
fn says_all(manifest: &Manifest) -> bool {
    let Some(status) = &manifest.status else { return false };
    let says = |type_: &str| status.conditions.iter().any(|condition| condition.type_ == type_);
    status.last_operation.is_some()
        && says(conditions::RESOURCES)
        && says(conditions::INSTALLATION)
        && (says(conditions::MODULE_CR) || !manifest.spec.creates_default_cr())
}

/// Whether a Manifest is Ready for its spec, managed, and not in deletion.
pub(super) fn is_settled(manifest: &Manifest) -> bool {
    let Some(status) = &manifest.status else { return false };
    manifest.metadata.deletion_timestamp.is_none()
        && !manifest.is_unmanaged()
        && status.state == State::Ready
        && is_current(manifest, manifest.metadata.generation)
}
