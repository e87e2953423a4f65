//! Statuses of Manifests whose default CR was not read.

use jiff::Timestamp;
use tidewatch_api::{Manifest, ManifestStatus, object::ObjectRef};
use tidewatch_planner::manifest_status::{self, Progress};

use super::default_cr::cr_condition;

/// Returns a status that keeps the previous state of the default CR. In a deletion, it omits that state.
pub(super) fn unread_status(
    manifest: &Manifest,
    progress: &Progress,
    objects: &[ObjectRef],
    now: Timestamp,
) -> ManifestStatus {
    let stays = manifest.metadata.deletion_timestamp.is_none();
    let there = cr_condition(manifest, None).filter(|_| stays);
    let status = manifest_status::manifest_status(manifest, progress, objects, there, now);
    if there.is_some() { manifest_status::with_cr_state_as_before(status, manifest) } else { status }
}

pub(super) fn operation(status: &ManifestStatus) -> String {
    status.last_operation.as_ref().map(|op| op.operation.clone()).unwrap_or_default()
}
