//! What goes: objects that are not wanted any more, and a Manifest that is being deleted (the default CR first, then its
//! objects in a safe order, then the finalizers).

use tidewatch_api::{CustomResourcePolicy, Manifest, ManifestStatus, names::finalizers};

use crate::{
    drive::{
        Finish, Lost, Shared,
        apply::{self, Deleted, ObjectError},
        gate::Gated,
    },
    kcp::state::default_cr,
    plan::{
        manifest::{self as plan, Progress},
        object::{Gvk, ObjectRef},
    },
    stages::{Stage, stage},
};

impl Shared {
    pub(super) async fn delete_manifest(
        &self,
        kyma: &str,
        manifest: &Manifest,
        runtime: &Gated,
    ) -> Result<Finish, Lost> {
        let inventory = plan::inventory(&manifest.status.clone().unwrap_or_default().synced);
        let status = |left: &[ObjectRef], what: &str| -> ManifestStatus {
            plan::manifest_status(manifest, &Progress::Deleting(what.to_owned()), left, None, self.now())
        };
        // The CR before its operator, which may have to clean up for it.
        let create = manifest.spec.custom_resource_policy == CustomResourcePolicy::CreateAndDelete;
        if let Some(cr) = default_cr(manifest).filter(|_| create) {
            match stage(Stage::Delete, apply::delete(runtime, &cr)).await {
                Ok(Deleted::Gone) => {}
                Ok(Deleted::Going) => {
                    let what = format!("waiting for the module's {cr} to be gone");
                    self.write_manifest_status(manifest, &status(&inventory, &what)).await?;
                    return Ok(Finish::Recheck(what));
                }
                Err(error) => {
                    let write =
                        |p: Progress| plan::manifest_status(manifest, &p, &inventory, None, self.now());
                    return self.stopped_with(kyma, manifest, error.into(), write).await;
                }
            }
        }
        // Everything of ours is to go; `prune` knows what never does.
        match stage(Stage::Delete, remove(runtime, plan::prune(&inventory, &[]))).await {
            Ok(left) => match left.first() {
                None => self.let_manifest_go(manifest).await,
                Some(first) => {
                    let what = format!("waiting for {first} to be gone ({} left)", left.len());
                    self.write_manifest_status(manifest, &status(&left, &what)).await?;
                    Ok(Finish::Recheck(what))
                }
            },
            Err(error) => {
                let write = |p: Progress| plan::manifest_status(manifest, &p, &inventory, None, self.now());
                self.stopped_with(kyma, manifest, error.into(), write).await
            }
        }
    }

    pub(super) async fn let_manifest_go(&self, manifest: &Manifest) -> Result<Finish, Lost> {
        let ours = [finalizers::MANIFEST, finalizers::DEFAULT_CR, finalizers::LABEL_REMOVAL];
        self.drop_finalizers(&self.manifests(), manifest, &ours).await?;
        Ok(Finish::Done)
    }
}

/// Removes objects in their order, a rank at a time: what is left of one rank holds back the next. Returns
/// what is not gone yet. A CRD that has instances is left alone.
pub(super) async fn remove(runtime: &Gated, objects: Vec<ObjectRef>) -> Result<Vec<ObjectRef>, ObjectError> {
    let mut left: Vec<ObjectRef> = Vec::new();
    let mut objects = objects.into_iter();
    let mut rank = None;
    while let Some(object) = objects.next() {
        let this = plan::removal_rank(&object.gvk);
        if rank.is_some_and(|rank| rank != this) && !left.is_empty() {
            left.push(object);
            left.extend(objects);
            return Ok(left);
        }
        rank = Some(this);
        if is_crd(&object.gvk)
            && let Some(crd) = apply::get(runtime, &object).await?
            && apply::has_instances(runtime, &crd).await?
        {
            left.push(object);
            continue;
        }
        if apply::delete(runtime, &object).await? == Deleted::Going {
            left.push(object);
        }
    }
    Ok(left)
}

fn is_crd(gvk: &Gvk) -> bool {
    gvk.group == "apiextensions.k8s.io" && gvk.kind == "CustomResourceDefinition"
}
