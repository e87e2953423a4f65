//! Applies a bundle's objects and takes up what became of them.

use futures::{StreamExt, stream};
use jiff::Timestamp;
use serde_json::Value;
use tidewatch_api::names::field_managers;

use super::Stopped;
use crate::{
    drive::{apply, gate::Gated},
    plan::{
        object::ObjectRef,
        readiness::{self, Facts, ObjectReadiness},
    },
};

/// Objects applied to one runtime at the same time.
const CONCURRENCY: usize = 4;

/// What became of a set of objects.
#[derive(Default)]
pub(super) struct Applied {
    pub(super) judged: Vec<(ObjectRef, ObjectReadiness)>,
    /// A kind that is not served yet.
    pub(super) missing: Option<String>,
    pub(super) failed: Option<Stopped>,
}

impl Applied {
    pub(super) fn take(&mut self, other: Self) {
        self.judged.extend(other.judged);
        if self.missing.is_none() {
            self.missing = other.missing;
        }
        if self.failed.is_none() {
            self.failed = other.failed;
        }
    }

    /// Whether the agent reports the next change of all that is not ready. Of other kinds nobody does yet.
    pub(super) fn is_told(&self) -> bool {
        self.judged
            .iter()
            .all(|(object, readiness)| !readiness.is_unready() || object.gvk.kind == "Deployment")
    }
}

/// Applies objects side by side. One that fails does not hold the others back; the first failure is told.
pub(super) async fn apply_all(
    runtime: &Gated,
    objects: Vec<Value>,
    facts: &Facts<'_>,
    now: Timestamp,
) -> Applied {
    let mut results = stream::iter(objects)
        .map(|object| async move { apply::apply(runtime, &object, field_managers::APPLIER).await })
        .buffered(CONCURRENCY);
    let mut applied = Applied::default();
    while let Some(result) = results.next().await {
        match result {
            Ok(object) => applied
                .judged
                .extend(ObjectRef::of(&object).map(|id| (id, readiness::readiness(&object, facts, now)))),
            Err(error) if error.is_kind_missing() => applied.missing = Some(error.message()),
            Err(error) => {
                applied.failed.get_or_insert(error.into());
            }
        }
    }
    applied
}
