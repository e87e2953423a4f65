//! A reconcile of a Manifest that stopped, and the status that says so.

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

/// What a reconcile found out before it stopped.
pub(super) struct Stopped {
    pub(super) message: String,
    /// Whether trying again can help without anybody changing anything.
    pub(super) retryable: bool,
    /// Whether the client should be built anew.
    pub(super) discredits_client: bool,
    /// The kind of failure.
    pub(super) class: &'static str,
    /// How long trying again is of no use at least, if anybody knows.
    pub(super) retry_after: Option<Duration>,
    /// It is no failure, such as if nothing may be written now: nothing is said of it.
    pub(super) lost: Option<Lost>,
    /// The API server asks to come back later, and nothing is wrong with the module.
    pub(super) passing: bool,
    /// Where it stopped, if more is said of that: at [`Stage::Render`] what there is to apply could not be found out.
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
            // A connection by which an answer has come is good.
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

    /// Whether what stopped it may be wrong with one object alone, so that others can be tried.
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
    /// Ends a reconcile that stopped before anything was applied: the inventory stays as it is, and whose it is.
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

    /// What a status says of a reconcile that stopped, and how that ends.
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
        // What is on its way out stays so, whatever goes wrong with it.
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
