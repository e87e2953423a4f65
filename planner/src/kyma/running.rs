//! Running version during an upgrade: the last one that was Ready, because an incomplete rollout still runs it.
//!
//! A Manifest that is or was Ready runs its spec's version. A new spec notes the old version in an annotation, so KCP knows it without an
//! extra write.

use std::sync::Arc;

use kube::ResourceExt;
use tidewatch_api::{Manifest, ModuleStatus, State, marks::mark, names::annotations};

use crate::{
    manifest::has_been_ready,
    versions::{Direction, direction},
};

/// Running version; `None` before the first is Ready, or if unknown.
fn running_version(manifest: &Manifest) -> Option<&str> {
    let version = if has_been_ready(manifest, manifest.metadata.generation) {
        manifest.spec.version.as_str()
    } else {
        mark(manifest.annotations(), annotations::RUNNING_VERSION)?
    };
    Some(version).filter(|version| !version.is_empty())
}

pub(super) fn recorded_version(manifest: &Manifest) -> Option<&str> {
    mark(manifest.annotations(), annotations::RUNNING_VERSION)
}

/// Notes the running version in `old`'s replacement.
pub(crate) fn record_running_version(old: &Manifest, wanted: &mut Manifest) {
    let noted = if old.spec == wanted.spec {
        mark(old.annotations(), annotations::RUNNING_VERSION)
    } else {
        running_version(old)
    };
    if let Some(version) = noted {
        wanted.annotations_mut().insert(annotations::RUNNING_VERSION.into(), version.to_owned());
    }
}

/// Reports the running and wanted versions.
pub(super) fn report_running_version(status: &mut Arc<ModuleStatus>, installed: &Manifest, wanted: &str) {
    // Unmanaged or removed modules are reinstalled; an unreadable version shows its fault.
    if status.state == State::Ready
        || status.version != wanted
        || installed.is_unmanaged()
        || installed.metadata.deletion_timestamp.is_some()
    {
        return;
    }
    let Some(runs) = running_version(installed).filter(|runs| *runs != wanted) else { return };
    let direction_name =
        if direction(runs, wanted) == Some(Direction::Down) { "downgrade" } else { "upgrade" };
    let text = format!("{direction_name} in progress: {runs} runs, {wanted} is wanted");
    let status = Arc::make_mut(status);
    status.message = if status.message.is_empty() { text } else { format!("{text}; {}", status.message) };
}
