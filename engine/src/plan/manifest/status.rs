//! What a Manifest's status says.

use std::collections::HashSet;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use tidewatch_api::{Manifest, ManifestStatus, Resource, State, names::conditions};

use super::inventory::synced;
use crate::plan::{
    object::ObjectRef,
    readiness::Readiness,
    status::{self, Says},
};

/// What is said while the objects of a new version are brought there. It names no cause, so nobody has to be told of it.
pub const APPLYING: &str = "the module's objects are being applied";

/// Whether it can wait a moment to say this of a Manifest, as it was last read: that it is on its way. What stands there must not
/// say that it is Ready as it is asked for now, since after a restart nobody would look at it again; and no object may be missing in
/// its inventory.
#[must_use]
pub fn may_wait(manifest: &Manifest, status: &ManifestStatus) -> bool {
    let Some(before) = &manifest.status else { return false };
    let current = |c: &Condition| c.observed_generation == manifest.metadata.generation;
    let known: HashSet<_> = before.synced.iter().map(identity).collect();
    status.state == State::Processing
        && manifest.metadata.deletion_timestamp.is_none()
        && match before.state {
            State::Processing => true,
            State::Ready => !before.conditions.iter().any(current),
            _ => false,
        }
        && before != status
        && status.synced.iter().all(|object| known.contains(&identity(object)))
}

fn identity(object: &Resource) -> (&str, &str, &str, &str) {
    (&object.group, &object.kind, &object.namespace, &object.name)
}

/// What became of a Manifest in one reconcile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
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
        Progress::Applied(Readiness::Ready) => (State::Ready, "resources are ready".to_owned()),
        Progress::Waiting(what) | Progress::Applied(Readiness::Processing(what)) => {
            (State::Processing, what.clone())
        }
        Progress::Applied(Readiness::Error(what)) => (State::Error, what.clone()),
        Progress::Deleting(what) => (State::Deleting, what.clone()),
    };
    let available = !matches!(progress, Progress::Failed { .. });
    let mut says = vec![
        Says {
            type_: conditions::RESOURCES,
            holds: available,
            reason: conditions::REASON_RESOURCES_AVAILABLE,
            message: if available { "resources are parsed and ready for use".into() } else { text.clone() },
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
    ManifestStatus {
        state,
        conditions: says
            .into_iter()
            .map(|s| status::condition(&before.conditions, s, generation, now))
            .collect(),
        synced: synced(objects),
        last_operation: Some(status::operation(before.last_operation.as_ref(), text, now)),
    }
}
