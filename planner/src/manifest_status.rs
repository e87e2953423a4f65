//! What a Manifest's status says.

use std::collections::HashSet;

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
    manifest::{has_been_ready, is_as_left, reason, we_said},
    status::{self, Says},
};

/// What became of a Manifest in one reconcile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Its objects could not be found out: the cause and what ends it.
    Unrendered(String),
    /// Something failed before or while its objects were applied.
    Failed {
        /// Error, or Warning if what is installed still works.
        state: State,
        /// The cause and what ends it.
        message: String,
    },
    /// Objects are applied, but not everything is there yet.
    Waiting(String),
    /// All objects are applied; the workloads say this.
    Applied(Readiness),
    /// It is being removed.
    Deleting(String),
}

/// The status of a Manifest after a reconcile.
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
    let (state, text) = match progress {
        Progress::Failed { state, message } => (*state, message.clone()),
        Progress::Unrendered(message) => (State::Error, message.clone()),
        Progress::Applied(Readiness::Ready) => (State::Ready, "resources are ready".to_owned()),
        Progress::Waiting(what) | Progress::Applied(Readiness::Processing(what)) => {
            (State::Processing, what.clone())
        }
        Progress::Applied(Readiness::Warning(what)) => (State::Warning, what.clone()),
        Progress::Applied(Readiness::Error(what)) => (State::Error, what.clone()),
        Progress::Deleting(what) => (State::Deleting, what.clone()),
    };
    let said = before.conditions.iter().find(|c| c.type_ == conditions::RESOURCES);
    let (available, why) = match (progress, said) {
        (Progress::Unrendered(why), _) => (false, why),
        // A runtime that cannot be reached, or another's field, says nothing of them.
        (Progress::Failed { .. }, Some(said)) => (said.status == "True", &said.message),
        (Progress::Failed { message, .. }, None) => (false, message),
        _ => (true, &text),
    };
    let mut says = vec![
        Says {
            type_: conditions::RESOURCES,
            holds: available,
            reason: conditions::REASON_RESOURCES_AVAILABLE,
            message: if available { "resources are parsed and ready for use".into() } else { why.clone() },
        },
        Says {
            type_: conditions::INSTALLATION,
            holds: state == State::Ready,
            reason: conditions::REASON_READY,
            message: if state == State::Ready {
                "installation is ready and resources can be used".into()
            } else {
                text.clone()
            },
        },
    ];
    if let Some(created) = module_cr {
        says.push(Says {
            type_: conditions::MODULE_CR,
            holds: created,
            reason: conditions::REASON_MODULE_CR_CREATED,
            message: if created { "module CR was created" } else { "module CR is not created yet" }.into(),
        });
    }
    let leaves = manifest.metadata.deletion_timestamp.is_some();
    if state != State::Ready && !leaves && has_been_ready(manifest, generation) {
        says.push(Says {
            type_: conditions::WAS_READY,
            holds: true,
            reason: conditions::REASON_READY,
            message: "the module has been ready as it is asked for now".into(),
        });
    } else if state != State::Ready && !leaves && we_said(manifest, &[conditions::JOBS_COMPLETED], generation)
    {
        says.push(jobs_completed());
    }
    // Of what the Go manager has finished, nothing is written only to name another generation.
    let untouched = state == State::Ready && is_as_left(manifest);
    let of = |s| {
        let said = status::condition(&before.conditions, s, generation, now);
        let named = before.conditions.iter().find(|c| c.type_ == said.type_).filter(|_| untouched);
        let named =
            named.map(|before| Condition { observed_generation: before.observed_generation, ..said.clone() });
        named.filter(|named| before.conditions.contains(named)).unwrap_or(said)
    };
    ManifestStatus {
        state,
        conditions: says.into_iter().map(of).collect(),
        synced: in_order(before.synced, synced(objects)),
        last_operation: Some(status::operation(before.last_operation.as_ref(), text, now)),
    }
}

fn jobs_completed() -> Says<'static> {
    Says {
        type_: conditions::JOBS_COMPLETED,
        holds: true,
        reason: conditions::REASON_READY,
        message: "the module's Jobs that are removed after their end have completed".into(),
    }
}

/// The status of a Manifest of which each Job that is removed after its end has completed.
#[must_use]
pub fn with_jobs_completed(
    mut status: ManifestStatus,
    manifest: &Manifest,
    now: Timestamp,
) -> ManifestStatus {
    let says = |type_| status.conditions.iter().any(|c| c.type_ == type_);
    if status.state == State::Ready || says(conditions::WAS_READY) || says(conditions::JOBS_COMPLETED) {
        return status;
    }
    let before = manifest.status.iter().flat_map(|status| status.conditions.clone()).collect::<Vec<_>>();
    let (generation, now) = (manifest.metadata.generation, status::whole_seconds(now));
    status.conditions.push(status::condition(&before, jobs_completed(), generation, now));
    status
}

/// The inventory in the order in which it stands, if that is the same one: the Go manager orders it in another way.
fn in_order(before: Vec<Resource>, now: Vec<Resource>) -> Vec<Resource> {
    if before == now || before.len() != now.len() {
        return now;
    }
    let all = |objects: &[Resource]| -> HashSet<Resource> { objects.iter().cloned().collect() };
    if all(&before) == all(&now) { before } else { now }
}

/// The status with what the module's default custom resource says of itself. In Error or Warning it makes a module that is Ready a
/// Warning: what is installed works, and its user has something to do. Whatever else it says stands in a condition only, as it may
/// be on its way for as long as its operator needs.
#[must_use]
pub fn with_cr_state(
    mut status: ManifestStatus,
    manifest: &Manifest,
    cr: Option<&(ObjectRef, CrState)>,
    now: Timestamp,
) -> ManifestStatus {
    let Some((cr, said)) = cr.filter(|(_, said)| said.state != State::Empty) else { return status };
    let now = status::whole_seconds(now);
    let before = manifest.status.clone().unwrap_or_default();
    let text = match said.message.as_str() {
        "" => format!("{cr} is in state {}", said.state),
        why => format!("{cr} is in state {}: {why}", said.state),
    };
    let says = Says {
        type_: conditions::MODULE_CR_STATE,
        holds: said.state == State::Ready,
        reason: reason(said.state),
        message: text.clone(),
    };
    status.conditions.push(status::condition(&before.conditions, says, manifest.metadata.generation, now));
    if status.state == State::Ready && matches!(said.state, State::Error | State::Warning) {
        status.state = State::Warning;
        // Only what is Ready counts as the Go manager has left it.
        let generation = manifest.metadata.generation;
        status.conditions.iter_mut().for_each(|c| c.observed_generation = generation);
        status.last_operation = Some(status::operation(before.last_operation.as_ref(), text, now));
    }
    status
}

/// The status with what it said before of the state of the default CR, where nobody has looked.
#[must_use]
pub fn with_cr_state_as_before(mut status: ManifestStatus, manifest: &Manifest) -> ManifestStatus {
    let before = manifest.status.iter().flat_map(|status| &status.conditions);
    status.conditions.extend(before.filter(|c| c.type_ == conditions::MODULE_CR_STATE).cloned());
    status
}

#[cfg(test)]
mod tests;
