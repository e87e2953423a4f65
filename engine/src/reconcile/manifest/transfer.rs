//! Transfers a Manifest's objects to its successor, for example after a component was renamed.

use kube::ResourceExt;
use tidewatch_api::{Manifest, inventory, object::ObjectRef};
use tidewatch_deployer::prune;
use tidewatch_planner::manifest_status::{self, Progress};

use super::remover::UserObjects;
use crate::{
    clusters::Gated,
    error::Error,
    index::Successor,
    outcome::Outcome,
    reconcile::manifest::remove::Removal,
    stages::{Stage, stage},
};

impl Removal {
    /// Transfers a Manifest's objects. Objects that the successor lacks are removed once the successor is Ready.
    ///
    /// User objects do not block this. The default CR stays, because it is user-owned after its creation.
    pub(super) async fn transfer(
        &self,
        kyma: &str,
        manifest: &Manifest,
        successor: &Successor,
        runtime: &Gated,
    ) -> Result<Outcome, Error> {
        let inventory = inventory::inventory(&manifest.status.clone().unwrap_or_default().synced);
        let Some(user_owned) = &successor.settled else {
            let message =
                format!("waiting for the Manifest {}, which takes over, to be Ready", successor.name);
            self.report_transfer(manifest, &inventory, &message).await?;
            return Ok(Outcome::recheck_soon(message));
        };
        let gone = prune::prune(&inventory, user_owned);
        let removing = self.remover.remove(kyma, manifest, runtime, gone, UserObjects::Ignore);
        let (deleting, left): (_, Vec<ObjectRef>) = match stage(Stage::Delete, removing).await {
            Ok(remains) => (
                remains.deleting(UserObjects::Ignore),
                remains.remaining.into_iter().map(|(object, _)| object).collect(),
            ),
            Err(error) => return self.failures.failed(manifest, error.into()).await,
        };
        if let Some(first) = left.first() {
            let message = format!("waiting for {first}, which {} does not have, to be gone", successor.name);
            self.report_transfer(manifest, &left, &message).await?;
            return Ok(self.watched.deletion_outcome(kyma, runtime, deleting.as_deref(), message).await);
        }
        let name = manifest.name_any();
        tracing::info!(kyma, manifest = name, successor = successor.name, "its objects are handed over");
        // The successor marks the shared objects as its own.
        self.remover.notify_sharer(kyma, &name, successor.name.clone());
        self.release_manifest(manifest).await
    }

    async fn report_transfer(
        &self,
        manifest: &Manifest,
        left: &[ObjectRef],
        message: &str,
    ) -> Result<(), Error> {
        let progress = Progress::Deleting(message.to_owned());
        let status = manifest_status::manifest_status(manifest, &progress, left, None, self.kcp.now());
        self.kcp.write_manifest_status(manifest, &status).await
    }
}
