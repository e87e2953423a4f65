//! Unmanages a module: its objects stay and lose the engine's marks, then its Manifest is deleted.

use futures::{StreamExt, TryStreamExt, stream};
use kube::ResourceExt;
use tidewatch_api::{Manifest, inventory, object::ObjectRef};
use tidewatch_deployer::release;
use tidewatch_planner::manifest::default_cr;

use crate::{
    clusters::{
        Gated,
        objects::{self, ObjectError},
    },
    error::Error,
    outcome::Outcome,
    reconcile::manifest::remove::Removal,
    stages::{Stage, stage},
};

/// Objects of one runtime that are processed concurrently.
const CONCURRENCY: usize = 4;

impl Removal {
    /// Unmanages a module's objects, then releases its Manifest.
    ///
    /// Never deletes or applies anything in the runtime. `forced`: objects that cannot be written keep their marks.
    pub(super) async fn unmanage(
        &self,
        kyma: &str,
        manifest: &Manifest,
        runtime: &Gated,
        forced: bool,
    ) -> Result<Outcome, Error> {
        let name = manifest.name_any();
        match stage(Stage::Apply, self.release(kyma, manifest, runtime)).await {
            Ok(()) => {}
            Err(error) if forced && error.held().is_none() => {
                tracing::warn!(kyma, manifest = name, error = error.message(), "marks are left, by force");
            }
            Err(error) => return self.failures.failed(manifest, error.into()).await,
        }
        tracing::info!(kyma, manifest = name, "the module is its user's; its objects stay");
        self.release_manifest(manifest).await?;
        if manifest.metadata.deletion_timestamp.is_none() {
            self.kcp.delete(&self.kcp.manifests(), &name).await?;
        }
        Ok(Outcome::done())
    }

    /// Removes the engine's marks from all objects of a Manifest, except those that a managed Manifest also has.
    async fn release(&self, kyma: &str, manifest: &Manifest, runtime: &Gated) -> Result<(), ObjectError> {
        let mut objects = inventory::inventory(&manifest.status.clone().unwrap_or_default().synced);
        objects.extend(default_cr(manifest));
        stream::iter(objects)
            .map(Ok)
            .try_for_each_concurrent(CONCURRENCY, |object| async move {
                self.release_one(kyma, manifest, runtime, &object).await
            })
            .await
    }

    async fn release_one(
        &self,
        kyma: &str,
        manifest: &Manifest,
        runtime: &Gated,
        object: &ObjectRef,
    ) -> Result<(), ObjectError> {
        let needed_by = self.kcp.index().needed_by(kyma, &manifest.name_any(), object);
        if let Some(other) = needed_by {
            self.remover.notify_sharer(kyma, &manifest.name_any(), other);
            return Ok(());
        }
        let Some(metadata) = objects::metadata(runtime, object).await? else { return Ok(()) };
        match release::unmark(&self.kcp.namespace, &metadata) {
            Some(patch) => objects::merge(runtime, object, &patch).await.map(drop),
            None => Ok(()),
        }
    }
}
