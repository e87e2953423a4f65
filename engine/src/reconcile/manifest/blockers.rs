//! What is in the way of a Manifest's deletion: objects of users, and the default CR.

use std::collections::{BTreeMap, btree_map::Entry};

use kube::ResourceExt;
use tidewatch_api::{
    Manifest, inventory,
    object::{Gvk, ObjectRef},
};
use tidewatch_deployer::bundle;
use tidewatch_planner::{
    blockers::{self, NAMED, Users},
    manifest::default_cr,
};

use super::{lineage::Lineage, stopped::Stopped};
use crate::{
    clusters::{
        Gated,
        objects::{self, Deleted, Listed, ObjectError, Page},
    },
    error::chain,
    reconcile::manifest::remove::Removal,
};

/// Objects of one kind that are listed beyond those that are named, at most: our own may be among them.
const OWN: usize = 200;
/// The same, where some are found that are of the module though nobody could know their names before.
const OWNED: u32 = 2_000;

/// What a deletion waits for.
pub(super) struct Obstacle {
    /// For the status.
    pub(super) what: String,
    /// The kinds whose objects have to go, whether or not there are any now.
    pub(super) kinds: Vec<Gvk>,
    /// Those of them of which there are some.
    pub(super) there: Vec<Gvk>,
    pub(super) of: Whose,
}

/// Whose objects a deletion waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// Users': nobody but them can end it.
    Users,
    /// The module's own.
    Own,
    /// Other modules', which are being deleted as well and may wait for objects of this one in turn.
    Leaving,
}

/// The default CR that goes with the module, as it is found in the runtime: its Manifest may name one of a kind without namespaces in
/// one.
async fn own_cr(runtime: &Gated, manifest: &Manifest) -> Result<Option<ObjectRef>, ObjectError> {
    let Some(mut cr) = default_cr(manifest) else { return Ok(None) };
    if !cr.namespace.is_empty()
        && matches!(objects::scope(runtime, &cr.gvk).await?, Some(bundle::Scope::Cluster))
    {
        cr.namespace.clear();
    }
    Ok(Some(cr))
}

/// Default CRs that earlier versions of a module have made, of kinds that its CRDs define, and that no later version names: they go with
/// the module like the present one, unless another module has them. Where there are more objects than a page has, of the first page.
async fn former_crs(
    runtime: &Gated,
    manifest: &Manifest,
    defined: impl IntoIterator<Item = &Gvk>,
    present: Option<&ObjectRef>,
) -> Result<Vec<ObjectRef>, ObjectError> {
    let mut former = Vec::new();
    // Where none is made, all of them are their users'.
    if !manifest.spec.creates_default_cr() {
        return Ok(former);
    }
    for gvk in defined {
        let page = objects::list(runtime, gvk, "", u32::try_from(OWN).unwrap_or(u32::MAX)).await?;
        let made = page.first.into_iter().filter(|listed| listed.made_as_default).map(|listed| listed.object);
        former.extend(made.filter(|object| present.is_none_or(|present| !present.same_object(object))));
    }
    Ok(former)
}

/// Kinds that the module's CRDs define, by group and kind, in a version that is served.
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

/// The kinds that a module declares, in versions that are served: the template's may not be, and the agent watches one that is.
async fn declared_kinds(runtime: &Gated, manifest: &Manifest) -> Result<Vec<Gvk>, Stopped> {
    let declared = blockers::declared(manifest).map_err(|e| Stopped::for_good(chain(&e)))?;
    let mut kinds = Vec::with_capacity(declared.len());
    for gvk in declared {
        kinds.push(objects::served(runtime, gvk).await?);
    }
    Ok(kinds)
}

/// Kinds whose objects are users' where the module does not have them itself: those that its CRDs define, and those that it declares.
async fn users_kinds(
    runtime: &Gated,
    manifest: &Manifest,
    inventory: &[ObjectRef],
) -> Result<BTreeMap<(String, String), Gvk>, ObjectError> {
    let mut kinds = defined_kinds(runtime, inventory).await?;
    // Terms that cannot be read declare nothing; whoever needs them says so.
    for gvk in blockers::declared(manifest).unwrap_or_default() {
        if let Entry::Vacant(none) = kinds.entry((gvk.group.clone(), gvk.kind.clone())) {
            none.insert(objects::served(runtime, gvk).await?);
        }
    }
    Ok(kinds)
}

/// What users have in a namespace of the kinds that a module defines or declares, in words; `None` if that is nothing.
pub(super) async fn users_in(
    runtime: &Gated,
    manifest: &Manifest,
    namespace: &str,
) -> Result<Option<String>, ObjectError> {
    let own = inventory::inventory(&manifest.status.clone().unwrap_or_default().synced);
    let kinds = users_kinds(runtime, manifest, &own).await?;
    // The default CR counts as its user's, who has changed it: it goes with the module, and not with a namespace.
    let mut owners_of_own = own.clone();
    owners_of_own.extend(own_cr(runtime, manifest).await?);
    let mut users = Users::default();
    for gvk in kinds.values() {
        let room = NAMED + 1 + own.len().min(OWN);
        let page = objects::list(runtime, gvk, namespace, u32::try_from(room).unwrap_or(u32::MAX)).await?;
        // Objects of a kind without namespaces are in none.
        let there = page.first.into_iter().filter(|Listed { object, owners, .. }| {
            let is_own = || own.iter().any(|own| own.names(object));
            object.namespace == namespace && !is_own() && !blockers::is_owned(object, owners, &owners_of_own)
        });
        let there: Vec<ObjectRef> = there.map(|listed| listed.object).collect();
        let count = there.len() as u64;
        users.add(gvk, there, count);
    }
    Ok(users.named())
}

/// Objects of these kinds that are not of the module itself.
async fn users_of(
    runtime: &Gated,
    kinds: impl IntoIterator<Item = &Gvk>,
    own: &[ObjectRef],
) -> Result<Users, ObjectError> {
    let mut users = Users::default();
    let mut lineage = Lineage::default();
    for gvk in kinds {
        let is_owned = |listed: &Listed| blockers::is_owned(&listed.object, &listed.owners, own);
        let mut of_kind: Vec<&ObjectRef> =
            own.iter().filter(|o| (&o.gvk.group, &o.gvk.kind) == (&gvk.group, &gvk.kind)).collect();
        // A page with room for our own always has as many of the others as are named.
        let limit = u32::try_from(NAMED + 1 + of_kind.len().min(OWN)).unwrap_or(u32::MAX);
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
        // Ours behind the page are counted in `more`, if they are there.
        for object in of_kind.into_iter().take(OWN) {
            if more > 0 && objects::look(runtime, object).await?.is_some() {
                more -= 1;
            }
        }
        let count = (others.len() as u64).saturating_add(more);
        users.add(gvk, others, count);
    }
    Ok(users)
}

impl Removal {
    /// What has to go before the module does; `None` if nothing is in the way any more. Deletes the default CR when no
    /// object of a user is left.
    pub(super) async fn obstacle(
        &self,
        kyma: &str,
        manifest: &Manifest,
        runtime: &Gated,
    ) -> Result<Option<Obstacle>, Stopped> {
        let name = manifest.name_any();
        let mut own = inventory::inventory(&manifest.status.clone().unwrap_or_default().synced);
        let defined = defined_kinds(runtime, &own).await?;
        let declared = declared_kinds(runtime, manifest).await?;
        // Before they are listed: an object that goes meanwhile is an event for this Manifest.
        self.kcp.index_mut().wait_for(kyma, &name, declared.iter().chain(defined.values()));
        self.watched.followups.agent_config(kyma, &[]);

        let crs = self.default_crs(kyma, manifest, runtime, &defined).await?;
        own.extend(crs.iter().cloned());
        let leaving = self.kcp.index().leaving_objects(kyma, &name);
        let modules = inventory::union(&own, &leaving);
        let users = users_of(runtime, &declared, &modules).await?;
        if let Some(what) = users.message() {
            return Ok(Some(Obstacle { what, kinds: declared, there: users.kinds, of: Whose::Users }));
        }
        for cr in self.without_anothers(kyma, runtime, crs).await? {
            if !self.is_needed(kyma, &name, &cr) && objects::remove(runtime, &cr).await? == Deleted::Going {
                // Its operator may have to clean up for it; or waits for objects that others, on their way out, have of its kinds.
                let what = format!("waiting for the module's {cr} to be gone");
                let of = if leaving.is_empty() { Whose::Own } else { Whose::Leaving };
                return Ok(Some(Obstacle { what, there: vec![cr.gvk.clone()], kinds: vec![cr.gvk], of }));
            }
        }
        let defined = self.alone(kyma, &name, runtime, defined).await;
        // Of kinds that nobody has declared, and that the module alone defines: with instances their CRDs could not go, and nobody
        // would be left to take care of them.
        let users = users_of(runtime, defined.values(), &modules).await?;
        if let Some(what) = users.message() {
            let kinds = defined.into_values().collect();
            return Ok(Some(Obstacle { what, kinds, there: users.kinds, of: Whose::Users }));
        }
        if leaving.is_empty() {
            return Ok(None);
        }
        let mut kinds = defined;
        for gvk in declared {
            kinds.entry((gvk.group.clone(), gvk.kind.clone())).or_insert(gvk);
        }
        let users = users_of(runtime, kinds.values(), &own).await?;
        let kinds = kinds.into_values().collect();
        Ok(users.message().map(|what| Obstacle { what, kinds, there: users.kinds, of: Whose::Leaving }))
    }

    /// Those of the kinds that a module defines whose CRDs go with it: one that a module has that stays is that one's to take care of.
    async fn alone(
        &self,
        kyma: &str,
        manifest: &str,
        runtime: &Gated,
        defined: BTreeMap<(String, String), Gvk>,
    ) -> BTreeMap<(String, String), Gvk> {
        let mut alone = BTreeMap::new();
        for (kind, gvk) in defined {
            let is_theirs = match objects::crd_of(runtime, &gvk).await {
                Some(crd) => self.is_needed(kyma, manifest, &crd),
                None => false,
            };
            if !is_theirs {
                alone.insert(kind, gvk);
            }
        }
        alone
    }

    /// The default CR that goes with the module, and those that no version names any more.
    async fn default_crs(
        &self,
        kyma: &str,
        manifest: &Manifest,
        runtime: &Gated,
        defined: &BTreeMap<(String, String), Gvk>,
    ) -> Result<Vec<ObjectRef>, ObjectError> {
        let present = own_cr(runtime, manifest).await?;
        let mut all: Vec<ObjectRef> = present.iter().cloned().collect();
        for former in former_crs(runtime, manifest, defined.values(), present.as_ref()).await? {
            // Where another module has the kind as well, it may have made it, or have left it to its user.
            let name = manifest.name_any();
            let claims = self.kcp.index().other_claims(kyma, &name, &former);
            let is_also_theirs = match objects::crd_of(runtime, &former.gvk).await {
                Some(crd) => self.is_needed(kyma, &name, &crd),
                None => false,
            };
            if claims.is_empty() && !is_also_theirs {
                all.push(former);
            }
        }
        Ok(all)
    }

    /// Those of a module's default CRs that no module of another Kyma has, which has the runtime by now: neither them nor their kind.
    pub(super) async fn without_anothers(
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
            let is_theirs = |object: &ObjectRef| !state.other_claims(&owner, "", object).is_empty();
            if !is_theirs(&cr) && !crd.as_ref().is_some_and(is_theirs) {
                left.push(cr);
            }
        }
        Ok(left)
    }

    /// The module's own default CRs, for a forced deletion. Without an answer about those of earlier versions, the present one.
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
            let defined = defined_kinds(runtime, &inventory).await?;
            self.default_crs(kyma, manifest, runtime, &defined).await
        };
        match all().await {
            Err(error) if error.is_passing() || error.is_cut_off() => Err(error),
            all => Ok(all.unwrap_or_else(|_| default_cr(manifest).into_iter().collect())),
        }
    }

    /// Whether another Manifest of the Kyma, which stays, has it too.
    pub(super) fn is_needed(&self, kyma: &str, manifest: &str, object: &ObjectRef) -> bool {
        let others = self.kcp.index().other_claims(kyma, manifest, object);
        others.iter().any(|claim| !claim.deleting)
    }

    /// What a forced deletion does not wait for, as far as it can be found out. `crs` are the module's own.
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
