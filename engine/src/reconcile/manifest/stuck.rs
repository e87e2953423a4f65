//! Leaves out objects whose namespace is terminating, and continues with the others.
//!
//! The agent watches namespaces meanwhile, so their end and their changed conditions are events. The reported remaining objects are as of
//! the last such event.

use std::collections::BTreeSet;

use jiff::Timestamp;
use kube::ResourceExt;
use tidewatch_api::{Manifest, ManifestStatus, State, object::ObjectRef};
use tidewatch_deployer::namespace::stuck;
use tidewatch_planner::manifest_status::Progress;

use super::{apply::Applied, told::namespace_kind};
use crate::{
    clusters::{Gated, objects},
    error::Error,
    outcome::{Outcome, found_report},
    reconcile::manifest::ManifestReconciler,
    stages::{Stage, stage},
};

/// Maximum number of namespaces to read per module.
const NAMESPACES: usize = 4;

impl ManifestReconciler {
    /// Ends a reconcile that left objects out. `rest` is its outcome without them.
    ///
    /// Rechecks, quickly at first and then rarely, until the agent watches namespaces.
    pub(super) async fn left_out(
        &self,
        manifest: &Manifest,
        runtime: &Gated,
        applied: &Applied,
        rest: Outcome,
        write: impl Fn(Progress) -> ManifestStatus + Send,
    ) -> Result<Outcome, Error> {
        let mut said = Vec::new();
        let (mut unread, mut gone, mut for_long) = (false, false, false);
        let mut again: Vec<Timestamp> = applied.parked.iter().map(|parked| parked.until).collect();
        let namespaces: BTreeSet<&str> =
            applied.stuck.iter().map(|object| object.namespace.as_str()).collect();
        for name in namespaces.into_iter().take(NAMESPACES) {
            let id = ObjectRef { gvk: namespace_kind(), namespace: String::new(), name: name.to_owned() };
            // If the namespace cannot be read, only its name is reported.
            let live = stage(Stage::ReadRuntime, objects::get(runtime, &id)).await;
            unread |= live.is_err();
            let found = live.ok().flatten().and_then(|live| stuck(name, &live));
            match found.as_ref().map(|found| found.long_at) {
                Some(Some(at)) if at > self.kcp.now() => again.push(at),
                Some(_) => for_long = true,
                None => gone = true,
            }
            said.push(
                found.map_or_else(|| format!("namespace {name} was being deleted"), |found| found.message),
            );
        }
        let objects = match applied.stuck.as_slice() {
            [one] => format!("{one} waits for its end"),
            [first, ..] => format!("{first} and {} more objects wait for its end", applied.stuck.len() - 1),
            [] => String::new(),
        };
        let message = format!("{}; {objects}; everything else goes on", said.join("; "));
        let mut held = None;
        if for_long {
            let report = found_report(State::Warning, message.clone());
            let status = write(Progress::Failed { state: report.state, message: report.message });
            self.kcp.write_manifest_status(manifest, &status).await?;
        } else {
            held = self.write_status(manifest, &write(Progress::Waiting(message.clone())), false).await?;
        }
        tracing::debug!(manifest = manifest.name_any(), detail = message, "objects were left out");
        again.extend(held.map(|left| self.kcp.now() + left));
        let kyma = manifest.kyma_name().unwrap_or_default();
        let told = rest.waits_for_event();
        again.extend(rest.due.filter(|_| told));
        if unread || !told || !self.watched.watches_status_of_all(kyma, runtime, &[namespace_kind()]).await {
            return Ok(Outcome::recheck_rarely(message).due_at(again.into_iter().min()));
        }
        if gone {
            // The namespace's end may have been reported before this Manifest waited for it.
            return Ok(Outcome::recheck_soon(message));
        }
        Ok(Outcome::waiting(message).due_at(again.into_iter().min()))
    }
}
