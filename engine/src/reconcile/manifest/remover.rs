//! Deletes unwanted objects of a module.

use std::sync::Arc;

use kube::ResourceExt;
use tidewatch_api::{
    Manifest, names,
    object::{Gvk, ObjectRef},
};
use tidewatch_deployer::{
    ownership::{self, Disposition},
    prune,
};
use tidewatch_planner::force::Forced;

use super::blockers;
use crate::{
    clusters::{
        Gated,
        objects::{self, Deleted, ObjectError},
    },
    kcp::Kcp,
    key::{Queue, WorkKey},
    queue::{Class, Push},
    reconcile::applied::AppliedStates,
    trigger::{Change, Trigger},
};

/// Objects that remain after a removal.
#[derive(Default)]
pub(super) struct Remains {
    /// In deletion, or waiting for it, with a reason if any.
    pub(super) remaining: Vec<(ObjectRef, Option<String>)>,
    /// User-owned, with the reason: CRDs with instances, namespaces with user objects.
    pub(super) user_owned: Vec<(ObjectRef, String)>,
    /// The kinds in deletion.
    deleting: Vec<Gvk>,
    /// Whether more than deletions must happen.
    waits_for_more: bool,
}

impl Remains {
    /// Returns the kinds in deletion; `None`: the rest waits for more.
    pub(super) fn deleting(&self, users: UserObjects) -> Option<Vec<Gvk>> {
        let others = self.waits_for_more || users == UserObjects::Block && !self.user_owned.is_empty();
        (!others).then(|| self.deleting.clone())
    }

    /// Returns all, user-owned objects first, because the rest waits for them.
    pub(super) fn all(self) -> Vec<(ObjectRef, Option<String>)> {
        let user_owned = self.user_owned.into_iter().map(|(object, why)| (object, Some(why)));
        user_owned.chain(self.remaining).collect()
    }
}

/// Whether user-owned objects block later ranks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum UserObjects {
    /// The module is removed, so they must go first.
    Block,
    /// The module stays, so an upgrade completes without them.
    Ignore,
}

/// Why an object still exists.
enum Remaining {
    /// In deletion.
    Deleting,
    Instances,
    /// A namespace with user objects of the module's kinds, described.
    Users(String),
    /// A CRD without served versions, so its instances are unknown.
    Unserved,
    /// Another Manifest that is being deleted has it too.
    AwaitsOther(String),
}

/// Deletes modules' objects, unless they are shared or in use.
pub(crate) struct Remover {
    pub(crate) kcp: Kcp,
    pub(crate) queue: Queue,
    pub(crate) states: Arc<AppliedStates>,
}

impl Remover {
    /// Removes a Manifest's objects by rank: a rank waits for the one before.
    ///
    /// Shared objects and those without the engine's marks stay and are forgotten. CRDs with instances stay.
    pub(super) async fn remove(
        &self,
        kyma: &str,
        manifest: &Manifest,
        runtime: &Gated,
        objects: Vec<ObjectRef>,
        users: UserObjects,
    ) -> Result<Remains, ObjectError> {
        let mut remains = Remains::default();
        let mut objects = objects.into_iter();
        let mut rank = None;
        while let Some(object) = objects.next() {
            let this = prune::removal_rank(&object.gvk);
            let holds_back = !remains.remaining.is_empty()
                || users == UserObjects::Block && !remains.user_owned.is_empty();
            if rank.is_some_and(|rank| rank != this) && holds_back {
                remains.remaining.push((object, None));
                remains.remaining.extend(objects.map(|object| (object, None)));
                return Ok(remains);
            }
            rank = Some(this);
            match Box::pin(self.remove_one(kyma, manifest, runtime, &object)).await? {
                None => {}
                Some(Remaining::Deleting) => {
                    remains.deleting.push(object.gvk.clone());
                    remains.remaining.push((object, None));
                }
                Some(Remaining::AwaitsOther(other)) => {
                    let why = format!("the Manifest {other} has it too, and is being deleted");
                    remains.remaining.push((object, Some(why)));
                    remains.waits_for_more = true;
                }
                Some(Remaining::Instances) => {
                    remains.user_owned.push((object, "objects of its kind exist".to_owned()));
                }
                Some(Remaining::Users(users)) => {
                    remains.user_owned.push((object, format!("users have in it: {users}")));
                }
                Some(Remaining::Unserved) => {
                    let why = "none of its versions is served, so nobody can tell whether objects of its kind exist; \
                               serve one, or delete it";
                    remains.user_owned.push((object, why.to_owned()));
                }
            }
        }
        Ok(remains)
    }

    /// Removes objects without waiting, and describes those left.
    pub(super) async fn remove_by_force(
        &self,
        kyma: &str,
        manifest: &Manifest,
        runtime: &Gated,
        objects: Vec<ObjectRef>,
    ) -> Result<Vec<String>, ObjectError> {
        let mut remaining = Vec::new();
        for object in objects {
            match Box::pin(self.remove_one(kyma, manifest, runtime, &object)).await {
                Ok(None) => {}
                Err(error) if error.is_transient() || error.is_cut_off() => return Err(error),
                // Force covers failing webhooks and missing rights.
                Ok(Some(Remaining::Deleting)) => remaining.push(Forced::deleting_label(&object)),
                Ok(Some(_)) | Err(_) => remaining.push(object.to_string()),
            }
        }
        Ok(remaining)
    }

    /// Queues another Manifest that shares an object, so that it applies its own marks.
    pub(super) fn notify_sharer(&self, kyma: &str, manifest: &str, other: String) {
        let object = WorkKey::Manifest { kyma: kyma.to_owned(), name: manifest.to_owned() };
        let cause = Trigger::Kcp { object, change: Change::SharedObjectReleased };
        let push = Push { class: Class::Rollout, trigger: Some(cause), guards: Vec::new() };
        self.queue.push(WorkKey::Manifest { kyma: kyma.to_owned(), name: other }, push);
    }

    /// Returns the verdict on an existing object.
    pub(super) fn verdict(
        &self,
        kyma: &str,
        manifest: &Manifest,
        object: &ObjectRef,
        there: &objects::Present,
    ) -> Disposition {
        let name = manifest.name_any();
        let state = self.kcp.index();
        let others = state.other_claims(kyma, &name, object);
        let is_anothers = |other: &str| state.manifests.is_of_another(kyma, other);
        ownership::verdict((&self.kcp.namespace, &name), &there.marks, &others, is_anothers)
    }

    /// Removes one object. `None`: gone, or not to be removed.
    async fn remove_one(
        &self,
        kyma: &str,
        manifest: &Manifest,
        runtime: &Gated,
        object: &ObjectRef,
    ) -> Result<Option<Remaining>, ObjectError> {
        let key = WorkKey::Manifest { kyma: kyma.to_owned(), name: manifest.name_any() };
        self.states.change_history(&key, |history| history.forget(object.into()));
        if runtime.is_own_cluster() && is_of_product(&self.kcp.namespace, object) {
            tracing::warn!(kyma, manifest = manifest.name_any(), %object, "not removed: the receiver needs it");
            return Ok(None);
        }
        let Some(there) = objects::find(runtime, object).await? else { return Ok(None) };
        let name = manifest.name_any();
        match self.verdict(kyma, manifest, object, &there) {
            Disposition::Delete => {}
            Disposition::Shared(other) => {
                tracing::info!(kyma, manifest = name, %object, other, "not removed: another Manifest has it too");
                self.notify_sharer(kyma, &name, other);
                return Ok(None);
            }
            Disposition::UserOwned => {
                let owner = there.marks.owned_by;
                tracing::warn!(kyma, manifest = name, %object, owner, "not removed: it carries no marks of ours");
                return Ok(None);
            }
            Disposition::Await(other) => return Ok(Some(Remaining::AwaitsOther(other))),
        }
        if there.deleting {
            return Ok(Some(Remaining::Deleting));
        }
        // The deletion of a CRD deletes all objects of its kind.
        if object.gvk.is_crd()
            && let Some(crd) = objects::get(runtime, object).await?
        {
            let Some(gvk) = objects::defined_kind(&crd) else { return Ok(Some(Remaining::Unserved)) };
            if !objects::list(runtime, &gvk, "", 1).await?.first.is_empty() {
                return Ok(Some(Remaining::Instances));
            }
        }
        if object.gvk.is_namespace()
            && let Some(users) = blockers::users_in(runtime, manifest, &object.name).await?
        {
            return Ok(Some(Remaining::Users(users)));
        }
        let deleted = objects::delete(runtime, object, &there.uid).await?;
        tracing::info!(kyma, manifest = name, %object, "deleted");
        Ok((deleted == Deleted::Going).then_some(Remaining::Deleting))
    }
}

/// Whether the receiver needs an object of its own cluster: its `namespace` and the CRDs. A module may contain them, too.
fn is_of_product(namespace: &str, object: &ObjectRef) -> bool {
    let group = object.name.split_once('.').map(|(_, group)| group);
    object.gvk.is_namespace() && object.name == namespace
        || object.gvk.is_crd() && group == Some(names::GROUP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_receivers_namespace_and_crds_are_never_removed_from_its_cluster() {
        let is_kept = |api_version: &str, kind: &str, name: &str| {
            let (gvk, namespace) = (Gvk::of(api_version, kind), String::new());
            is_of_product("tidewatch-system", &ObjectRef { gvk, namespace, name: name.to_owned() })
        };
        assert!(is_kept("v1", "Namespace", "tidewatch-system"));
        assert!(!is_kept("v1", "Namespace", "lighthouse-system"));
        let crd = |name: &str| is_kept("apiextensions.k8s.io/v1", "CustomResourceDefinition", name);
        assert!(crd("manifests.operator.kyma-project.io") && crd("kymas.operator.kyma-project.io"));
        assert!(!crd("beacons.lighthouse.tidewatch.dev") && !crd("serverlesses.x.operator.kyma-project.io"));
    }
}
