//! Reconciles of Manifests that stopped early, and the status that reports them.

use std::{sync::Arc, time::Duration};

use tidewatch_api::{Manifest, ManifestStatus, State, inventory};
use tidewatch_planner::manifest_status::Progress;

use super::status::not_looked;
use crate::{
    clusters::{Clusters, objects::ObjectError},
    kcp::Kcp,
    key::Report,
    outcome::{Lost, Outcome},
    stages::Stage,
};

/// The reason why a reconcile stopped.
pub(super) struct Stopped {
    pub(super) message: String,
    /// Whether a retry can succeed without a change to the module or runtime.
    pub(super) retryable: bool,
    /// Whether the runtime client must be rebuilt.
    pub(super) discredits_client: bool,
    /// The failure class, a metric label.
    pub(super) class: &'static str,
    /// Minimum wait before a retry, if known.
    pub(super) retry_after: Option<Duration>,
    /// Set if this is not a failure, such as a dry run. Then no status is written.
    pub(super) lost: Option<Lost>,
    /// The API server asks to retry later. The module is not at fault.
    pub(super) passing: bool,
    /// The stage, if it matters to the status. [`Stage::Render`]: the wanted objects are unknown.
    pub(super) at: Option<Stage>,
}

impl From<ObjectError> for Stopped {
    fn from(error: ObjectError) -> Self {
        Self {
            lost: error.held().map(Lost::from),
            passing: error.is_passing(),
            retry_after: error.retry_after(),
            message: error.message(),
            retryable: error.is_retryable(),
            // A connection that delivered an answer works.
            discredits_client: error.discredits_client() && (!error.is_unreachable() || error.is_cut_off()),
            class: error.class(),
            at: None,
        }
    }
}

impl Stopped {
    pub(super) const fn for_good(message: String) -> Self {
        Self {
            message,
            retryable: false,
            discredits_client: false,
            class: "final",
            retry_after: None,
            lost: None,
            passing: false,
            at: None,
        }
    }

    /// Whether the failure may concern one object only, so that others can be tried.
    pub(super) const fn is_of_one_thing(&self) -> bool {
        self.lost.is_none() && !self.passing && !self.discredits_client
    }

    pub(super) const fn unrendered(mut self) -> Self {
        self.at = Some(Stage::Render);
        self
    }
}

/// Writes the status of Manifests whose reconcile stopped.
pub(crate) struct ManifestFailures {
    pub(crate) kcp: Kcp,
    pub(crate) clusters: Arc<Clusters>,
}

impl ManifestFailures {
    /// Ends a reconcile that stopped before it applied anything. The inventory and the owners stay.
    pub(super) async fn stopped(&self, manifest: &Manifest, stopped: Stopped) -> Result<Outcome, Lost> {
        let inventory = inventory::inventory(&manifest.status.clone().unwrap_or_default().synced);
        let write = |progress: Progress| not_looked(manifest, &progress, &inventory, self.kcp.now());
        let kyma = manifest.kyma_name().unwrap_or_default().to_owned();
        let (status, finish) = self.report(&kyma, manifest, stopped, write)?;
        self.kcp.write_manifest_status_unobserved(manifest, &status).await?;
        Ok(finish)
    }

    pub(super) async fn stopped_with(
        &self,
        kyma: &str,
        manifest: &Manifest,
        stopped: Stopped,
        write: impl FnOnce(Progress) -> ManifestStatus,
    ) -> Result<Outcome, Lost> {
        let (status, finish) = self.report(kyma, manifest, stopped, write)?;
        self.kcp.write_manifest_status(manifest, &status).await?;
        Ok(finish)
    }

    /// Returns the status and the outcome of a stopped reconcile.
    fn report(
        &self,
        kyma: &str,
        manifest: &Manifest,
        stopped: Stopped,
        write: impl FnOnce(Progress) -> ManifestStatus,
    ) -> Result<(ManifestStatus, Outcome), Lost> {
        if let Some(lost) = stopped.lost {
            return Err(lost);
        }
        if stopped.discredits_client {
            self.clusters.discredit(kyma);
        }
        let class = stopped.class;
        let next = if stopped.retryable {
            self.clusters.next_try(kyma, stopped.retry_after)
        } else {
            "tried again when the module or the runtime changes".to_owned()
        };
        let message = format!("{}; {next}", stopped.message);
        // A Manifest in deletion stays in state Deleting, whatever fails.
        let (state, progress) = if manifest.metadata.deletion_timestamp.is_some() {
            (State::Deleting, Progress::Deleting(message.clone()))
        } else if stopped.at == Some(Stage::Render) {
            (State::Error, Progress::Unrendered(message.clone()))
        } else {
            (State::Error, Progress::Failed { state: State::Error, message: message.clone() })
        };
        let report = Report { state, message, is_found: false };
        let finish = if stopped.retryable {
            Outcome::retried(report, class, stopped.retry_after)
        } else {
            Outcome::failed(report)
        };
        Ok((write(progress), finish))
    }
}
