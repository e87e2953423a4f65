//! Takes the Go manager's watcher out of a runtime whose events are proven to arrive by our agent.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use tidewatch_api::object::ObjectRef;

use super::{
    Lost, Outcome, Shared,
    apply::{self, ObjectError},
};
use crate::{
    compat::legacy_watcher::{first, is_the_go_managers, last, objects},
    gate::{Gated, Mode},
    key::{Cause, WorkKey},
    queue::{Class, Push},
    stages::{Stage, stage},
};

/// Runtimes in which this process has seen to it. As many as there are.
#[derive(Debug, Default)]
pub(crate) struct Exchanged(Mutex<BTreeSet<String>>);

impl Exchanged {
    pub(crate) fn forget(&self, kyma: &str) {
        self.0.lock().remove(kyma);
    }

    /// Another process may have worked meanwhile.
    pub(crate) fn forget_all(&self) {
        self.0.lock().clear();
    }
}

impl Shared {
    /// Asks for the exchange in a runtime whose way is proven, unless it is known to be done. A dry run asks what it would be.
    pub(crate) fn want_exchange(&self, kyma: &str, cause: Option<Cause>) {
        let is_dry = matches!(self.gate.mode(), Mode::DryRun(_));
        let state = self.look();
        let is_proven = state.path(kyma).is_some_and(|path| path.proven);
        if self.config.keep_watcher || self.exchanged.0.lock().contains(kyma) || !(is_dry || is_proven) {
            return;
        }
        let push = Push { class: Class::Rollout, cause, guards: Vec::new() };
        self.queue.push(WorkKey::LegacyWatcher { kyma: kyma.to_owned() }, push);
    }

    pub(crate) async fn reconcile_exchange(&self, name: &str) -> Result<Outcome, Lost> {
        let (kyma, proven) = {
            let state = self.look();
            (state.kyma(name), state.path(name).is_some_and(|path| path.proven))
        };
        let Some(kyma) = kyma else {
            self.exchanged.forget(name);
            return Ok(Outcome::done());
        };
        let is_dry = matches!(self.gate.mode(), Mode::DryRun(_));
        // It may have been proven when this was asked for, and be it no more. Whoever proves it again asks again.
        if kyma.is_skipped() || kyma.metadata.deletion_timestamp.is_some() || !(is_dry || proven) {
            return Ok(Outcome::done());
        }
        let runtime = match self.access(name).await? {
            Ok(runtime) => runtime,
            // The Kyma's status says so, and its reconcile asks for this again.
            Err(why) => return Ok(Outcome::waiting(why.message())),
        };
        match stage(Stage::Delete, remove_watcher(name, &runtime)).await {
            Ok(()) => {
                if !is_dry {
                    self.exchanged.0.lock().insert(name.to_owned());
                }
                Ok(Outcome::done())
            }
            Err(error) => self.failed_at(name, error),
        }
    }
}

/// Deletes what is left of the watcher, if it is the Go manager's. Where its first and its last object are gone, all of it is.
pub(crate) async fn remove_watcher(kyma: &str, runtime: &Gated) -> Result<(), ObjectError> {
    let ends = [first(), last()];
    let mut is_there = false;
    for end in &ends {
        is_there |=
            apply::metadata(runtime, end).await?.is_some_and(|metadata| is_the_go_managers(&metadata));
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
    let Some(metadata) = apply::metadata(runtime, object).await? else { return Ok(false) };
    if !is_the_go_managers(&metadata) || metadata["deletionTimestamp"].is_string() {
        return Ok(false);
    }
    apply::delete(runtime, object, metadata["uid"].as_str().unwrap_or_default()).await?;
    Ok(true)
}
