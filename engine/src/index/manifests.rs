//! Manifests: what is installed where.

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

/// The Manifest that has taken the place of another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Successor {
    /// Its name.
    pub name: String,
    /// Its inventory, if it is Ready for its present spec, or was.
    pub settled: Option<Vec<ObjectRef>>,
}

impl KcpState {
    /// A Manifest appeared or changed: its spec asks for its own reconcile, its state for its Kyma's.
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
        // What no Kyma owns has what it has installed, and makes no more.
        let cr = default_cr(&manifest).filter(|_| !is_nobodys(&manifest));
        let objects: Vec<ObjectRef> = synced.into_iter().chain(cr).collect();
        // While its spec is there to tell by.
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
        // What its Kyma shows of it: of a status for another spec, nothing.
        let generation = manifest.metadata.generation;
        let told = |m: &Manifest| {
            let (state, message) = progress_at(m, generation);
            // It may have been Ready between two sights of it.
            let ready = has_been_ready(m, generation);
            (state, message.to_owned(), leaving_message(m).map(str::to_owned), ready)
        };
        let (manifest, old) = self.manifests.insert(manifest);
        let (old, needed) = match old {
            Some(store::Kept { thin, needs }) => (Some(thin), Some(needs)),
            None => (None, None),
        };
        // Whose it was puts it right, or plans without it.
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
        // At a start everything is Change::Added; what is settled needs no look, a runtime's agent reports drift. What nobody owns any
        // more has still to say so.
        // Without a whole inventory it has been robbed of it: what is installed has one. Of KCP's Secrets that the deployer gets nobody knows
        // whether they have changed meanwhile.
        let settled = old.is_none()
            && is_settled(&manifest)
            && is_installed
            && is_whole
            && is_told
            && is_held
            && manifest.module_name() != Some(DEPLOYER)
            && !is_nobodys(&manifest);
        // That a finalizer went is not ours, if a list shows it together with a later write of ours.
        if let Some(change) =
            change.filter(|change| !settled && (!echo || *change == Change::FinalizerRemoved))
        {
            wanted.push((manifest_key(&kyma, &name), change));
            // Whoever has changed it, a mandatory module's is set right.
            if let Some(old) = &old {
                wanted.extend(self.after_manifest(&manifest, change));
                // Whose it is, and of which module, is for its Kyma to see: it may be one that it misses, or none of its any more.
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
        // What its release has become while nobody looked told nobody.
        if old.is_none() && !echo && manifest.is_mandatory() {
            wanted.push((WorkKey::Mandatory { kyma: kyma.clone() }, Change::Added));
        }
        // No Kyma says anything of its mandatory modules; one that is being deleted waits for them too, as does one with a
        // module that requires this one.
        let leaving = || self.kymas.is_leaving(&kyma);
        let required = || manifest.module_name().is_some_and(|module| self.required(&kyma).contains(module));
        let shown = !manifest.is_mandatory() || required() || leaving();
        // Whoever has planned a Manifest knows that it is not ready yet. A watch that broke off may show it first as it is after its own
        // reconcile, whose write that is then.
        let planned = old.is_none() && echo && manifest.status.is_none();
        let is_news = old.as_ref().map(told) != Some(told(&manifest));
        let module = manifest.module_name();
        if is_news && module.is_some_and(|module| self.mandatory_awaits(&kyma).modules.contains(module)) {
            wanted.push((WorkKey::Mandatory { kyma: kyma.clone() }, Change::ManifestStatus));
        }
        if shown && !planned && is_news {
            // What somebody else says of it, or has made it say no more, is not told before it was looked at.
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

    /// What was in the inventory before somebody else wrote it may be in the runtime still.
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

    /// The inventory of a Manifest as last seen, with what it had before somebody else wrote it, if somebody has. Nothing of another one by
    /// its name.
    pub fn inventory(&self, manifest: &Manifest) -> Vec<ObjectRef> {
        let name = manifest.name_any();
        let same = self.manifests.get(&name).is_some_and(|seen| seen.metadata.uid == manifest.metadata.uid);
        if same { self.manifests.inventory(&name) } else { Vec::new() }
    }

    /// A Manifest is gone.
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

    /// A Manifest is worked on under a class. A user's edit and a rollout go on under their own class when the work is tried
    /// again or found anew by a resync.
    pub fn working_on(&mut self, name: &str, class: Class) {
        let Some(before) = self.manifests.class_mut(name) else { return };
        if class <= Class::Rollout || before.is_none() {
            *before = Some(class.min(Class::Rollout));
        }
    }

    /// How urgent it is for its Kyma that a Manifest's state has changed: as urgent as the work on the Manifest was. What
    /// nobody is known to have worked on may be what a user waits for.
    pub fn urgency(&self, manifest: &str) -> Class {
        self.manifests.class(manifest).unwrap_or(Class::UserEdit)
    }

    /// Sets what a Manifest waits for in its runtime, in place of what it did before. One that is not there waits for nothing.
    pub fn wait_for(&mut self, kyma: &str, manifest: &str, waits: impl IntoIterator<Item = impl Into<Wait>>) {
        if self.by_kyma.contains(kyma, manifest) {
            self.owners.wait_for(kyma, manifest, waits);
        }
    }

    /// The other Manifests of a Kyma with this object in their inventory, as last seen.
    pub fn other_claims(&self, kyma: &str, manifest: &str, object: &ObjectRef) -> Vec<Claim> {
        let others = self.owners.of(kyma, object).into_iter().filter(|name| name != manifest);
        let deleting =
            |name: &String| self.manifests.get(name).is_some_and(|m| m.metadata.deletion_timestamp.is_some());
        others.map(|name| Claim { deleting: deleting(&name), manifest: name }).collect()
    }

    /// What the other Manifests of a Kyma that are being deleted have installed, and their default CRs, as last seen. Not what
    /// another one has too that stays, as where one takes over from another.
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

    /// The groups of the kinds that the Manifests of a Kyma which are being deleted define or declare: they may wait for the end of all
    /// objects of those. As last seen.
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

    /// Whether there is a Manifest of this name that belongs to another Kyma, as last seen.
    pub fn is_of_another(&self, kyma: &str, manifest: &str) -> bool {
        self.manifests.get(manifest).is_some_and(|m| m.kyma_name().is_some_and(|owner| owner != kyma))
    }

    /// Another Manifest of a Kyma that has this object too and goes on managing it, as last seen.
    pub fn needed_by(&self, kyma: &str, manifest: &str, object: &ObjectRef) -> Option<String> {
        let managed = |name: &String| self.manifests.get(name).is_some_and(|m| !m.is_unmanaged());
        let others = self.other_claims(kyma, manifest, object).into_iter();
        others.filter(|claim| !claim.deleting).map(|claim| claim.manifest).find(managed)
    }

    /// Another Manifest of the same module and owner that is installed and there to stay, as last seen.
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
        // What it warns of later is no reason to leave the other's objects where they are. By an inventory that is not whole, objects of
        // its own would be removed.
        let settled = has_been_ready(&next, next.metadata.generation)
            && has_own_inventory(&next)
            && !self.suspicions.has(&format!("Manifest/{}", next.name_any()));
        Some(Successor { name: next.name_any(), settled: settled.then(synced) })
    }

    /// The Manifests that this one takes over from ([`KcpState::successor`]), as last seen: those that are being deleted, or were made
    /// before it.
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

    /// Whether a Manifest is Ready for its present spec, and there to stay, as last seen.
    pub fn is_ready(&self, manifest: &str) -> bool {
        self.manifests.get(manifest).is_some_and(|manifest| is_settled(&manifest))
    }

    /// Whether somebody else has written the status of a Manifest of a Kyma, and it was not set right yet.
    pub fn doubts_manifests_of(&self, kyma: &str) -> bool {
        !self.suspicions.is_empty()
            && self.by_kyma.of(kyma).any(|name| self.suspicions.has(&format!("Manifest/{name}")))
    }

    /// Whether a Kyma has Manifests, as last seen.
    pub fn has_manifests(&self, kyma: &str) -> bool {
        self.by_kyma.has_any(kyma)
    }

    /// The Manifests of a Kyma as last seen, without their specs and inventories.
    pub fn thin_manifests_of(&self, kyma: &str) -> impl Iterator<Item = Manifest> {
        let names = self.by_kyma.of(kyma);
        names.filter_map(|name| self.manifests.get(name))
    }

    /// The Manifests of a Kyma as last seen, without their inventories.
    pub fn manifests_of(&self, kyma: &str) -> Vec<Manifest> {
        let names = self.by_kyma.of(kyma);
        names.filter_map(|n| self.manifests.without_inventory(n)).collect()
    }
}

/// Whether a Manifest's status says all that that of one which is Ready says. Nobody may have been there to see what was taken away.
fn says_all(manifest: &Manifest) -> bool {
    let Some(status) = &manifest.status else { return false };
    let says = |type_: &str| status.conditions.iter().any(|condition| condition.type_ == type_);
    status.last_operation.is_some()
        && says(conditions::RESOURCES)
        && says(conditions::INSTALLATION)
        && (says(conditions::MODULE_CR) || !manifest.spec.creates_default_cr())
}

/// Whether a Manifest is Ready for its present spec, and neither being deleted nor given up.
pub(super) fn is_settled(manifest: &Manifest) -> bool {
    let Some(status) = &manifest.status else { return false };
    manifest.metadata.deletion_timestamp.is_none()
        && !manifest.is_unmanaged()
        && status.state == State::Ready
        && is_current(manifest, manifest.metadata.generation)
}
