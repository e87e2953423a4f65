//! Manifest status.

use std::{collections::HashSet, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use tidewatch_api::{
    Manifest, ManifestStatus, Resource, State,
    inventory::synced,
    names::conditions,
    object::ObjectRef,
    readiness::{CrState, Readiness},
};

use crate::{
    manifest::{cr_state_reason, engine_condition_holds, has_been_ready, is_ready_by_go_manager},
    status::{self, ConditionValue},
};

/// Result of a Manifest's reconcile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Objects are unknown: cause and remedy.
    Unrendered(String),
    /// Failed before or during apply.
    Failed {
        /// Error, or Warning if installed objects work.
        state: State,
        /// Cause and remedy.
        message: String,
    },
    /// Applied, but incomplete.
    Waiting(String),
    /// Applied, with the workloads' readiness.
    Applied(Readiness),
    /// Being removed.
    Deleting(String),
}

/// Returns the status after a reconcile.
#[must_use]
pub fn manifest_status(
    manifest: &Manifest,
    progress: &Progress,
    objects: &[ObjectRef],
    module_cr: Option<bool>,
    now: Timestamp,
) -> ManifestStatus {
    let before = manifest.status.clone().unwrap_or_default();
    let generation = manifest.metadata.generation;
    let now = status::whole_seconds(now);
    let (state, text) = state_of(progress);
    let mut values = installation(&before, progress, state, &text);
    values.extend(module_cr.map(module_cr_exists));
    values.extend(history(manifest, state));
    // A new generation alone justifies no write over the Go manager's result.
    let untouched = state == State::Ready && is_ready_by_go_manager(manifest);
    let condition = |value| {
        let condition = status::condition(&before.conditions, value, generation, now);
        let unchanged = before.conditions.iter().find(|c| c.type_ == condition.type_).filter(|_| untouched);
        let unchanged = unchanged
            .map(|before| Condition { observed_generation: before.observed_generation, ..condition.clone() });
        unchanged.filter(|unchanged| before.conditions.contains(unchanged)).unwrap_or(condition)
    };
    ManifestStatus {
        state,
        conditions: values.into_iter().map(condition).collect(),
        synced: in_order(before.synced, synced(objects)),
        last_operation: Some(status::operation(before.last_operation.as_ref(), text, now)),
    }
}

fn state_of(progress: &Progress) -> (State, String) {
    match progress {
        Progress::Failed { state, message } => (*state, message.clone()),
        Progress::Unrendered(message) => (State::Error, message.clone()),
        Progress::Applied(Readiness::Ready) => (State::Ready, "resources are ready".to_owned()),
        Progress::Waiting(cause) | Progress::Applied(Readiness::Processing(cause)) => {
            (State::Processing, cause.clone())
        }
        Progress::Applied(Readiness::Warning(cause)) => (State::Warning, cause.clone()),
        Progress::Applied(Readiness::Error(cause)) => (State::Error, cause.clone()),
        Progress::Deleting(cause) => (State::Deleting, cause.clone()),
    }
}

/// Conditions of every status: known objects, and their installation.
fn installation(
    before: &ManifestStatus,
    progress: &Progress,
    state: State,
    text: &str,
) -> Vec<ConditionValue<'static>> {
    let resources_before = before.conditions.iter().find(|c| c.type_ == conditions::RESOURCES);
    let (available, why) = match (progress, resources_before) {
        (Progress::Unrendered(why), _) => (false, why.as_str()),
        // Unreachable runtimes and field conflicts prove nothing about rendering.
        (Progress::Failed { .. }, Some(condition)) => {
            (condition.status == "True", condition.message.as_str())
        }
        (Progress::Failed { message, .. }, None) => (false, message.as_str()),
        _ => (true, text),
    };
    vec![
        ConditionValue {
            type_: conditions::RESOURCES,
            holds: available,
            reason: conditions::REASON_RESOURCES_AVAILABLE,
            message: if available { "resources are parsed and ready for use" } else { why }.into(),
        },
        ConditionValue {
            type_: conditions::INSTALLATION,
            holds: state == State::Ready,
            reason: conditions::REASON_READY,
            message: if state == State::Ready {
                "installation is ready and resources can be used"
            } else {
                text
            }
            .into(),
        },
    ]
}

fn module_cr_exists(created: bool) -> ConditionValue<'static> {
    ConditionValue {
        type_: conditions::MODULE_CR,
        holds: created,
        reason: conditions::REASON_MODULE_CR_CREATED,
        message: if created { "module CR was created" } else { "module CR is not created yet" }.into(),
    }
}

/// Facts about the generation that an unready status would lose.
fn history(manifest: &Manifest, state: State) -> Option<ConditionValue<'static>> {
    let generation = manifest.metadata.generation;
    if state == State::Ready || manifest.metadata.deletion_timestamp.is_some() {
        None
    } else if has_been_ready(manifest, generation) {
        Some(ConditionValue {
            type_: conditions::WAS_READY,
            holds: true,
            reason: conditions::REASON_READY,
            message: "the module has been ready as it is asked for now".into(),
        })
    } else {
        engine_condition_holds(manifest, &[conditions::JOBS_COMPLETED], generation).then(jobs_completed)
    }
}

fn jobs_completed() -> ConditionValue<'static> {
    ConditionValue {
        type_: conditions::JOBS_COMPLETED,
        holds: true,
        reason: conditions::REASON_READY,
        message: "the module's Jobs that are removed after their end have completed".into(),
    }
}

/// Adds the completion of all Jobs with removal after their end.
#[must_use]
pub fn with_jobs_completed(
    mut status: ManifestStatus,
    manifest: &Manifest,
    now: Timestamp,
) -> ManifestStatus {
    let has = |type_| status.conditions.iter().any(|c| c.type_ == type_);
    if status.state == State::Ready || has(conditions::WAS_READY) || has(conditions::JOBS_COMPLETED) {
        return status;
    }
    let before = manifest.status.iter().flat_map(|status| status.conditions.clone()).collect::<Vec<_>>();
    let (generation, now) = (manifest.metadata.generation, status::whole_seconds(now));
    status.conditions.push(status::condition(&before, jobs_completed(), generation, now));
    status
}

/// Ignores order, which differs in the Go manager.
fn in_order(before: Arc<Vec<Resource>>, now: Vec<Resource>) -> Arc<Vec<Resource>> {
    if *before == now {
        return before;
    }
    if before.len() != now.len() {
        return Arc::new(now);
    }
    let all = |objects: &[Resource]| -> HashSet<Resource> { objects.iter().cloned().collect() };
    if all(&before) == all(&now) { before } else { Arc::new(now) }
}

/// Adds the default CR's state. Error or Warning turns Ready into Warning: the user must act. Other states are only a condition.
#[must_use]
pub fn with_cr_state(
    mut status: ManifestStatus,
    manifest: &Manifest,
    cr: Option<&(ObjectRef, CrState)>,
    now: Timestamp,
) -> ManifestStatus {
    let Some((cr, reported)) = cr.filter(|(_, reported)| reported.state != State::Empty) else {
        return status;
    };
    let now = status::whole_seconds(now);
    let before = manifest.status.clone().unwrap_or_default();
    let text = match reported.message.as_str() {
        "" => format!("{cr} is in state {}", reported.state),
        why => format!("{cr} is in state {}: {why}", reported.state),
    };
    let value = ConditionValue {
        type_: conditions::MODULE_CR_STATE,
        holds: reported.state == State::Ready,
        reason: cr_state_reason(reported.state),
        message: text.clone(),
    };
    status.conditions.push(status::condition(&before.conditions, value, manifest.metadata.generation, now));
    if status.state == State::Ready && matches!(reported.state, State::Error | State::Warning) {
        status.state = State::Warning;
        // Only a Ready Manifest counts as the Go manager's.
        let generation = manifest.metadata.generation;
        status.conditions.iter_mut().for_each(|c| c.observed_generation = generation);
        status.last_operation = Some(status::operation(before.last_operation.as_ref(), text, now));
    }
    status
}

/// Keeps the default CR's unread state.
#[must_use]
pub fn with_cr_state_as_before(mut status: ManifestStatus, manifest: &Manifest) -> ManifestStatus {
    let before = manifest.status.iter().flat_map(|status| &status.conditions);
    status.conditions.extend(before.filter(|c| c.type_ == conditions::MODULE_CR_STATE).cloned());
    status
}

#[cfg(test)]
mod tests;
