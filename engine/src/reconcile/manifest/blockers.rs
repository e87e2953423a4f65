//! Finds objects that block a Manifest's deletion: user objects and the default CR.

use std::collections::{BTreeMap, btree_map::Entry};

use kube::ResourceExt;
use tidewatch_api::{
    Manifest, inventory,
    object::{Gvk, ObjectRef},
};
use tidewatch_deployer::bundle;
use tidewatch_planner::{
    blockers::{self, MAX_NAMED, UserObjects},
    manifest::default_cr,
};

use super::lineage::Lineage;
use crate::{
    clusters::{
        Gated,
        objects::{self, Deleted, Listed, ObjectError, Page},
    },
    error::{Error, chain},
    reconcile::manifest::remove::Removal,
};

/// Limit of listed objects per kind beyond the named ones: the module's own may be among them.
const OWN: usize = 200;
/// The limit if some objects belong to the module through their owners.
const OWNED: u32 = 2_000;

pub(super) struct Obstacle {
    pub(super) message: String,
    /// The kinds to empty, even if they have no objects.
    pub(super) kinds: Vec<Gvk>,
    /// Kinds that still have objects.
    pub(super) existing: Vec<Gvk>,
    pub(super) of: BlockedBy,
}

/// The owner of the objects that a deletion waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockedBy {
    /// Users: only they can end the wait.
    Users,
    /// The module.
    Own,
    /// Other modules in deletion, which may wait for this one in turn.
    OtherModules,
}

/// Returns the module's default CR as found in the runtime: the Manifest may give a namespace to a cluster-scoped kind.
async fn own_cr(runtime: &Gated, manifest: &Manifest) -> Result<Option<ObjectRef>, ObjectError> {
    let Some(mut cr) = default_cr(manifest) else { return Ok(None) };
    if !cr.namespace.is_empty()
        && matches!(objects::scope(runtime, &cr.gvk).await?, Some(bundle::Scope::Cluster))
    {
        cr.namespace.clear();
    }
    Ok(Some(cr))
}

/// Returns default CRs of earlier versions that the present version does not name. They are deleted with the module, unless another module
/// has them.
/// Reads one page per kind.
async fn former_crs(
    runtime: &Gated,
    manifest: &Manifest,
    definitions_changed: impl IntoIterator<Item = &Gvk>,
    present: Option<&ObjectRef>,
) -> Result<Vec<ObjectRef>, ObjectError> {
    let mut former = Vec::new();
    // If the module creates none, all belong to users.
    if !manifest.spec.creates_default_cr() {
        return Ok(former);
    }
    for gvk in definitions_changed {
        let page = objects::list(runtime, gvk, "", u32::try_from(OWN).unwrap_or(u32::MAX)).await?;
        let made = page.first.into_iter().filter(|listed| listed.made_as_default).map(|listed| listed.object);
        former.extend(made.filter(|object| present.is_none_or(|present| !present.same_object(object))));
    }
    Ok(former)
}

/// Returns the served kinds of the module's CRDs, by group and kind.
async fn defined_kinds(
    runtime: &Gated,
    inventory: &[ObjectRef],
) -> Result<BTreeMap<(String, String), Gvk>, ObjectError> {
    let mut kinds = BTreeMap::new();
    for object in inventory.iter().filter(|object| object.gvk.is_crd()) {
        let crd = objects::get(runtime, object).await?;
        if let Some(gvk) = crd.as_ref().and_then(objects::defined_kind) {
            kinds.insert((gvk.group.clone(), gvk.kind.clone()), gvk);
        }
    }
    Ok(kinds)
}

/// Returns the declared kinds in served versions: the template's may not be served, and the agent watches a served one.
async fn declared_kinds(runtime: &Gated, manifest: &Manifest) -> Result<Vec<Gvk>, Error> {
    let declared = blockers::declared(manifest).map_err(|e| Error::Final(chain(&e)))?;
    let mut kinds = Vec::with_capacity(declared.len());
    for gvk in declared {
        kinds.push(objects::served(runtime, gvk).await?);
    }
    Ok(kinds)
}

/// Returns the kinds that the module's CRDs define or that it declares.
async fn users_kinds(
    runtime: &Gated,
    manifest: &Manifest,
    inventory: &[ObjectRef],
) -> Result<BTreeMap<(String, String), Gvk>, ObjectError> {
    let mut kinds = defined_kinds(runtime, inventory).await?;
    // Unreadable terms declare nothing here; other callers report them.
    for gvk in blockers::declared(manifest).unwrap_or_default() {
        if let Entry::Vacant(none) = kinds.entry((gvk.group.clone(), gvk.kind.clone())) {
            none.insert(objects::served(runtime, gvk).await?);
        }
    }
    Ok(kinds)
}

/// Describes user objects of the module's kinds in a namespace; `None`: there are none.
pub(super) async fn users_in(
    runtime: &Gated,
    manifest: &Manifest,
    namespace: &str,
) -> Result<Option<String>, ObjectError> {
    let own = inventory::inventory(&manifest.status.clone().unwrap_or_default().synced);
    let kinds = users_kinds(runtime, manifest, &own).await?;
    // The default CR is user-owned and may be changed, so it must not be deleted with the namespace.
    let mut owners_of_own = own.clone();
    owners_of_own.extend(own_cr(runtime, manifest).await?);
    let mut users = UserObjects::default();
    for gvk in kinds.values() {
        let room = MAX_NAMED + 1 + own.len().min(OWN);
        let page = objects::list(runtime, gvk, namespace, u32::try_from(room).unwrap_or(u32::MAX)).await?;
        // Cluster-scoped objects are in no namespace.
        let existing = page.first.into_iter().filter(|Listed { object, owners, .. }| {
            let is_own = || own.iter().any(|own| own.names(object));
            object.namespace == namespace && !is_own() && !blockers::is_owned(object, owners, &owners_of_own)
        });
        let existing: Vec<ObjectRef> = existing.map(|listed| listed.object).collect();
        let count = existing.len() as u64;
        users.add(gvk, existing, count);
    }
    Ok(users.named())
}

/// Returns objects of these kinds that the module does not own.
async fn users_of(
    runtime: &Gated,
    kinds: impl IntoIterator<Item = &Gvk>,
    own: &[ObjectRef],
) -> Result<UserObjects, ObjectError> {
    let mut users = UserObjects::default();
    let mut lineage = Lineage::default();
    for gvk in kinds {
        let is_owned = |listed: &Listed| blockers::is_owned(&listed.object, &listed.owners, own);
        let mut of_kind: Vec<&ObjectRef> =
            own.iter().filter(|o| (&o.gvk.group, &o.gvk.kind) == (&gvk.group, &gvk.kind)).collect();
        // The page has room for the module's own objects and all named ones.
        let limit = u32::try_from(MAX_NAMED + 1 + of_kind.len().min(OWN)).unwrap_or(u32::MAX);
        let mut page = objects::list(runtime, gvk, "", limit).await?;
        if page.more > 0 && page.first.iter().any(|listed| !listed.owners.is_empty()) {
            page = objects::list(runtime, gvk, "", OWNED).await?;
        }
        let Page { first, mut more } = page;
        let mut others = Vec::new();
        for found in first {
            match of_kind.iter().position(|o| o.names(&found.object)) {
                Some(at) => drop(of_kind.swap_remove(at)),
                None if is_owned(&found) => {}
                None if lineage.is_of(runtime, &found.object, &found.owners, own).await? => {}
                None => others.push(found.object),
            }
        }
        // Own objects beyond the page are counted in `more`.
        for object in of_kind.into_iter().take(OWN) {
            if more > 0 && objects::find(runtime, object).await?.is_some() {
                more -= 1;
            }
        }
        let count = (others.len() as u64).saturating_add(more);
        users.add(gvk, others, count);
    }
    Ok(users)
}

impl Removal {
    /// Returns the next obstacle, or `None`. Deletes the default CR when no user object is left.
    pub(super) async fn obstacle(
        &self,
        kyma: &str,
        manifest: &Manifest,
        runtime: &Gated,
    ) -> Result<Option<Obstacle>, Error> {
        let name = manifest.name_any();
        let mut own = inventory::inventory(&manifest.status.clone().unwrap_or_default().synced);
        let definitions_changed = defined_kinds(runtime, &own).await?;
        let declared = declared_kinds(runtime, manifest).await?;
        // Watch before listing: a deletion meanwhile is then an event.
        self.kcp.index_mut().wait_for(kyma, &name, declared.iter().chain(definitions_changed.values()));
        self.watched.followups.agent_config(kyma, &[]);

        let crs = self.default_crs(kyma, manifest, runtime, &definitions_changed).await?;
        own.extend(crs.iter().cloned());
        let leaving = self.kcp.index().leaving_objects(kyma, &name);
        let modules = inventory::union(&own, &leaving);
        let users = users_of(runtime, &declared, &modules).await?;
        if let Some(message) = users.message() {
            return Ok(Some(Obstacle {
                message,
                kinds: declared,
                existing: users.kinds,
                of: BlockedBy::Users,
            }));
        }
        for cr in self.without_others(kyma, runtime, crs).await? {
            if !self.is_needed(kyma, &name, &cr) && objects::remove(runtime, &cr).await? == Deleted::Going {
                // Its operator may be cleaning up, or waiting for objects of other leaving modules.
                let message = format!("waiting for the module's {cr} to be gone");
                let of = if leaving.is_empty() { BlockedBy::Own } else { BlockedBy::OtherModules };
                return Ok(Some(Obstacle {
                    message,
                    existing: vec![cr.gvk.clone()],
                    kinds: vec![cr.gvk],
                    of,
                }));
            }
        }
        let definitions_changed = self.alone(kyma, &name, runtime, definitions_changed).await;
        // Undeclared kinds that only this module defines: their CRDs cannot go with instances, and no operator would remain.
        let users = users_of(runtime, definitions_changed.values(), &modules).await?;
        if let Some(message) = users.message() {
            let kinds = definitions_changed.into_values().collect();
            return Ok(Some(Obstacle { message, kinds, existing: users.kinds, of: BlockedBy::Users }));
        }
        if leaving.is_empty() {
            return Ok(None);
        }
        let mut kinds = definitions_changed;
        for gvk in declared {
            kinds.entry((gvk.group.clone(), gvk.kind.clone())).or_insert(gvk);
        }
        let users = users_of(runtime, kinds.values(), &own).await?;
        let kinds = kinds.into_values().collect();
        Ok(users.message().map(|message| Obstacle {
            message,
            kinds,
            existing: users.kinds,
            of: BlockedBy::OtherModules,
        }))
    }

    /// Returns the defined kinds whose CRDs are deleted: a remaining module keeps its shared CRDs.
    async fn alone(
        &self,
        kyma: &str,
        manifest: &str,
        runtime: &Gated,
        definitions_changed: BTreeMap<(String, String), Gvk>,
    ) -> BTreeMap<(String, String), Gvk> {
        let mut alone = BTreeMap::new();
        for (kind, gvk) in definitions_changed {
            let is_shared = match objects::crd_of(runtime, &gvk).await {
                Some(crd) => self.is_needed(kyma, manifest, &crd),
                None => false,
            };
            if !is_shared {
                alone.insert(kind, gvk);
            }
        }
        alone
    }

    async fn default_crs(
        &self,
        kyma: &str,
        manifest: &Manifest,
        runtime: &Gated,
        definitions_changed: &BTreeMap<(String, String), Gvk>,
    ) -> Result<Vec<ObjectRef>, ObjectError> {
        let present = own_cr(runtime, manifest).await?;
        let mut all: Vec<ObjectRef> = present.iter().cloned().collect();
        for former in former_crs(runtime, manifest, definitions_changed.values(), present.as_ref()).await? {
            // Another module with the kind may have created it or left it to its user.
            let name = manifest.name_any();
            let claims = self.kcp.index().other_claims(kyma, &name, &former);
            let is_shared = match objects::crd_of(runtime, &former.gvk).await {
                Some(crd) => self.is_needed(kyma, &name, &crd),
                None => false,
            };
            if claims.is_empty() && !is_shared {
                all.push(former);
            }
        }
        Ok(all)
    }

    /// Returns the default CRs that no other Kyma in the runtime has, by object or kind.
    pub(super) async fn without_others(
        &self,
        kyma: &str,
        runtime: &Gated,
        crs: Vec<ObjectRef>,
    ) -> Result<Vec<ObjectRef>, ObjectError> {
        if crs.is_empty() {
            return Ok(crs);
        }
        let Some(owner) = self.owners.owner(kyma, runtime).await? else { return Ok(crs) };
        let mut left = Vec::new();
        for cr in crs {
            let crd = objects::crd_of(runtime, &cr.gvk).await;
            let state = self.kcp.index();
            let is_shared = |object: &ObjectRef| !state.other_claims(&owner, "", object).is_empty();
            if !is_shared(&cr) && !crd.as_ref().is_some_and(is_shared) {
                left.push(cr);
            }
        }
        Ok(left)
    }

    /// Returns the default CRs for a forced deletion, or only the present one if former ones are unreadable.
    ///
    /// # Errors
    /// The runtime cannot be asked at the moment.
    pub(super) async fn default_crs_or_present(
        &self,
        kyma: &str,
        manifest: &Manifest,
        runtime: &Gated,
    ) -> Result<Vec<ObjectRef>, ObjectError> {
        let inventory = inventory::inventory(&manifest.status.clone().unwrap_or_default().synced);
        let all = async || {
            let definitions_changed = defined_kinds(runtime, &inventory).await?;
            self.default_crs(kyma, manifest, runtime, &definitions_changed).await
        };
        match all().await {
            Err(error) if error.is_transient() || error.is_cut_off() => Err(error),
            all => Ok(all.unwrap_or_else(|_| default_cr(manifest).into_iter().collect())),
        }
    }

    /// Whether a remaining Manifest of the Kyma has it too.
    pub(super) fn is_needed(&self, kyma: &str, manifest: &str, object: &ObjectRef) -> bool {
        let others = self.kcp.index().other_claims(kyma, manifest, object);
        others.iter().any(|claim| !claim.deleting)
    }

    /// Returns user objects that a forced deletion skips. `crs` are the module's own.
    pub(super) async fn skipped(
        &self,
        manifest: &Manifest,
        runtime: &Gated,
        crs: &[ObjectRef],
    ) -> Result<Vec<ObjectRef>, ObjectError> {
        let mut own = inventory::inventory(&manifest.status.clone().unwrap_or_default().synced);
        let kinds = users_kinds(runtime, manifest, &own).await?;
        own.extend_from_slice(crs);
        Ok(users_of(runtime, kinds.values(), &own).await?.first)
    }
}

#[cfg(test)]
mod tests;
