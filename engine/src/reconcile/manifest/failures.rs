//! Statuses of Manifests whose reconcile has failed.

use std::sync::Arc;

use tidewatch_api::{Manifest, ManifestStatus, State, inventory};
use tidewatch_planner::manifest_status::Progress;

use super::status::unread_status;
use crate::{
    clusters::Clusters,
    error::Error,
    kcp::Kcp,
    key::Report,
    outcome::{Ending, Next, Outcome},
};

/// Writes the status of Manifests whose reconcile has failed.
///
/// An error that is not [reported](Error::is_reported) leaves the status as it is, and is returned.
pub(crate) struct ManifestFailures {
    pub(crate) kcp: Kcp,
    pub(crate) clusters: Arc<Clusters>,
}

impl ManifestFailures {
    /// Ends a reconcile that failed before it applied anything. The inventory and the owners stay.
    pub(super) async fn failed(&self, manifest: &Manifest, error: Error) -> Result<Outcome, Error> {
        self.unapplied(manifest, error, failed_progress).await
    }

    /// Ends a reconcile whose wanted objects are unknown.
    pub(super) async fn unrendered(&self, manifest: &Manifest, error: Error) -> Result<Outcome, Error> {
        self.unapplied(manifest, error, Progress::Unrendered).await
    }

    async fn unapplied(
        &self,
        manifest: &Manifest,
        error: Error,
        progress: fn(String) -> Progress,
    ) -> Result<Outcome, Error> {
        let inventory = inventory::inventory(&manifest.status.clone().unwrap_or_default().synced);
        let kyma = manifest.kyma_name().unwrap_or_default().to_owned();
        let (progress, outcome) = self.report(&kyma, manifest, error, progress)?;
        let status = unread_status(manifest, &progress, &inventory, self.kcp.now());
        self.kcp.write_manifest_status_unobserved(manifest, &status).await?;
        Ok(outcome)
    }

    /// Ends a reconcile that failed after it applied objects. `write` makes the status of a progress.
    pub(super) async fn failed_with(
        &self,
        kyma: &str,
        manifest: &Manifest,
        error: Error,
        write: impl FnOnce(Progress) -> ManifestStatus,
    ) -> Result<Outcome, Error> {
        let (progress, outcome) = self.report(kyma, manifest, error, failed_progress)?;
        self.kcp.write_manifest_status(manifest, &write(progress)).await?;
        Ok(outcome)
    }

    /// Returns the progress to report, and the outcome.
    fn report(
        &self,
        kyma: &str,
        manifest: &Manifest,
        error: Error,
        progress: fn(String) -> Progress,
    ) -> Result<(Progress, Outcome), Error> {
        if !error.is_reported() {
            return Err(error);
        }
        if error.discredits_client() {
            self.clusters.discredit(kyma);
        }
        let next = error.retry();
        let then = if next == Next::OnEvent {
            "tried again when the module or the runtime changes".to_owned()
        } else {
            self.clusters.next_try(kyma, error.retry_after())
        };
        let message = format!("{error}; {then}");
        // A Manifest in deletion stays in state Deleting, whatever fails.
        let (state, progress) = if manifest.metadata.deletion_timestamp.is_some() {
            (State::Deleting, Progress::Deleting(message.clone()))
        } else {
            (State::Error, progress(message.clone()))
        };
        let state = Ending::Failed(Report { state, message, is_found: false });
        Ok((progress, Outcome { state, next, due: None }))
    }
}

const fn failed_progress(message: String) -> Progress {
    Progress::Failed { state: State::Error, message }
}
