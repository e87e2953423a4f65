//! Removes the Go manager's watcher from a runtime whose event path is proven.

use std::sync::Arc;

use tidewatch_api::object::ObjectRef;

use crate::{
    clusters::{
        Clusters, Gated,
        objects::{self, ObjectError},
    },
    compat::legacy_watcher::{first, is_applied_by_go_manager, last, objects},
    error::Error,
    gate::Mode,
    kcp::Kcp,
    outcome::Outcome,
    stages::{Stage, stage},
};

pub(crate) struct LegacyWatcherReconciler {
    pub(crate) kcp: Kcp,
    pub(crate) clusters: Arc<Clusters>,
}

impl LegacyWatcherReconciler {
    pub(crate) async fn reconcile(&self, name: &str) -> Result<Outcome, Error> {
        let (kyma, proven) = {
            let state = self.kcp.index();
            (state.kymas.get(name), state.kymas.event_path(name).is_some_and(|path| path.proven))
        };
        let Some(kyma) = kyma else {
            self.clusters.records.change_existing(name, |record| record.legacy_watcher_removed = false);
            return Ok(Outcome::done());
        };
        let is_dry = matches!(self.kcp.gate.mode(), Mode::DryRun(_));
        // The proof may be lost again; the next proof requests this again.
        if kyma.is_skipped() || kyma.metadata.deletion_timestamp.is_some() || !(is_dry || proven) {
            return Ok(Outcome::done());
        }
        let runtime = match self.clusters.access(name).await? {
            Ok(runtime) => runtime,
            // The Kyma's status reports this, and its reconcile requests this again.
            Err(why) => return Ok(Outcome::waiting(why.message())),
        };
        match stage(Stage::Delete, remove_watcher(name, &runtime)).await {
            Ok(()) => {
                if !is_dry {
                    self.clusters.records.change(name, |record| record.legacy_watcher_removed = true);
                }
                Ok(Outcome::done())
            }
            Err(error) => self.clusters.failed_at(name, error),
        }
    }
}

/// Deletes the Go manager's watcher. It is complete when its first and last object are gone.
pub(crate) async fn remove_watcher(kyma: &str, runtime: &Gated) -> Result<(), ObjectError> {
    let ends = [first(), last()];
    let mut is_there = false;
    for end in &ends {
        is_there |= objects::metadata(runtime, end)
            .await?
            .is_some_and(|metadata| is_applied_by_go_manager(&metadata));
    }
    if !is_there {
        return Ok(());
    }
    let mut removed = 0_usize;
    for object in objects() {
        removed += usize::from(remove(runtime, &object).await?);
    }
    tracing::info!(kyma, removed, "the Go manager's watcher was taken out of the runtime");
    Ok(())
}

async fn remove(runtime: &Gated, object: &ObjectRef) -> Result<bool, ObjectError> {
    let Some(metadata) = objects::metadata(runtime, object).await? else { return Ok(false) };
    if !is_applied_by_go_manager(&metadata) || metadata["deletionTimestamp"].is_string() {
        return Ok(false);
    }
    objects::delete(runtime, object, metadata["uid"].as_str().unwrap_or_default()).await?;
    Ok(true)
}
