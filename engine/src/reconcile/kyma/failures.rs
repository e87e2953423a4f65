//! Status of Kymas with a failed reconcile.

use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::Value;
use tidewatch_api::{Kyma, KymaStatus, Manifest};
use tidewatch_planner::{
    kyma::{crds_failed_status, failed_status},
    notice::{About, Notice},
};

use crate::{
    clusters::{Clusters, Gated, Suspension, objects::ObjectError},
    error::Error,
    events::Notifier,
    history::Observer,
    kcp::Kcp,
    outcome::{Outcome, error_report},
    reconcile::runtime_kyma::write_runtime_status,
    stages::{Stage, stage},
};

pub(crate) struct Failures {
    kcp: Kcp,
    clusters: Arc<Clusters>,
    notifier: Arc<Notifier>,
    observer: Arc<dyn Observer>,
}

type FailedStatus = fn(&Kyma, &[Manifest], String, Timestamp) -> KymaStatus;

impl Failures {
    pub(crate) fn new(
        kcp: Kcp,
        clusters: Arc<Clusters>,
        notifier: Arc<Notifier>,
        observer: Arc<dyn Observer>,
    ) -> Self {
        Self { kcp, clusters, notifier, observer }
    }

    pub(crate) fn reached(&self, kyma: &str) {
        self.observer.reachable(kyma, true);
    }

    /// Writes the status of a Kyma that waits for a change, which is an event.
    pub(crate) async fn blocked(&self, kyma: &Kyma, message: String) -> Result<Outcome, Error> {
        let status = self.status(kyma, message.clone());
        self.kcp.write_kyma_status(kyma, &status).await?;
        Ok(Outcome::failed(error_report(message)))
    }

    /// Reports an unreadable spec of the runtime's Kyma `remote` in both statuses and by an Event.
    pub(crate) async fn unreadable(
        &self,
        kyma: &Kyma,
        runtime: &Gated,
        remote: &Value,
        message: String,
    ) -> Result<Outcome, Error> {
        let status = self.status(kyma, message.clone());
        self.kcp.write_kyma_status(kyma, &status).await?;
        match stage(Stage::WriteRuntime, write_runtime_status(runtime, remote, &status)).await {
            Err(ObjectError::Held(held)) => return Err(held.into()),
            Err(error) => tracing::debug!(
                kyma = kyma.name_any(),
                error = error.message(),
                "the runtime's status stays as it is; the one in KCP says that its spec cannot be read"
            ),
            Ok(()) => {}
        }
        let uid = remote["metadata"]["uid"].as_str().unwrap_or_default();
        let notice = Notice::warning(About::RuntimeKyma, "KymaNotReadable", message.clone());
        let _alone = self.notifier.notify(&kyma.name_any(), Some((runtime, uid)), &[notice]).await;
        Ok(Outcome::failed(error_report(message)))
    }

    pub(crate) async fn runtime_failed(&self, kyma: &Kyma, error: &ObjectError) -> Result<Outcome, Error> {
        self.failed_with(kyma, error, failed_status).await
    }

    pub(crate) async fn crds_failed(&self, kyma: &Kyma, error: &ObjectError) -> Result<Outcome, Error> {
        self.failed_with(kyma, error, crds_failed_status).await
    }

    async fn failed_with(
        &self,
        kyma: &Kyma,
        error: &ObjectError,
        status: FailedStatus,
    ) -> Result<Outcome, Error> {
        let name = kyma.name_any();
        if let Some(held) = error.held() {
            return Err(held.into());
        }
        if error.discredits_client() {
            self.clusters.discredit(&name);
        }
        if error.is_not_found() {
            // The namespace was deleted again.
            self.clusters.records.change_existing(&name, |record| record.prepared.hash = None);
        }
        if error.is_unreachable() {
            self.observer.reachable(&name, false);
        }
        let next = self.clusters.next_try(&name, error.retry_after());
        let message = format!("{}; {next}", error.message());
        let manifests = self.kcp.index().manifests.list(&name);
        let status = status(kyma, &manifests, message.clone(), self.kcp.now());
        self.kcp.write_kyma_status(kyma, &status).await?;
        Ok(Outcome::retried(error_report(message), error.class(), error.retry_after()))
    }

    /// Reports a suspended runtime, unless the status does already.
    pub(crate) async fn suspended(&self, kyma: &str, suspension: &Suspension) -> Result<(), Error> {
        if !suspension.answers_reads {
            // A Manifest may have found this; the Kyma's reconcile does not get that far.
            self.observer.reachable(kyma, false);
        }
        if suspension.is_short() {
            return Ok(());
        }
        let read = self.kcp.kymas().get_opt(kyma).await;
        let read = read.map_err(|e| Error::kcp(format!("reading Kyma {kyma}"), e))?;
        let Some(kyma) = read.filter(|kyma| !kyma.is_skipped()) else { return Ok(()) };
        let present = kyma.status.as_ref().and_then(|status| status.last_operation.as_ref());
        let present =
            present.map(|last| last.operation.clone()).filter(|text| text.contains(&suspension.message));
        let message = present.unwrap_or_else(|| {
            tracing::warn!(kyma = kyma.metadata.name, why = suspension.message, "the runtime is suspended");
            suspension.message.clone()
        });
        let status = self.status(&kyma, message);
        self.kcp.write_kyma_status(&kyma, &status).await
    }

    fn status(&self, kyma: &Kyma, message: String) -> KymaStatus {
        let manifests = self.kcp.index().manifests.list(&kyma.name_any());
        failed_status(kyma, &manifests, message, self.kcp.now())
    }
}
