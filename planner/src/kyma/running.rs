//! Which version of a module runs while another one is on its way.
//!
//! What runs is what was last Ready: a Deployment whose rollout is not complete still runs the version before. While the Manifest
//! says that it is Ready, or was, for its present spec, that is the spec's version. The spec that takes its place would make that
//! unknown, so it says it itself, in an annotation. So all that is known is in KCP, and nothing is written only to know it.

use std::sync::Arc;

use kube::ResourceExt;
use tidewatch_api::{Manifest, ModuleStatus, State, marks::mark, names::annotations};

use crate::{
    manifest::has_been_ready,
    versions::{Step, step},
};

/// The version that runs; `None` before the first one is Ready, and where nobody has noted it.
fn runs(manifest: &Manifest) -> Option<&str> {
    let version = if has_been_ready(manifest, manifest.metadata.generation) {
        manifest.spec.version.as_str()
    } else {
        mark(manifest.annotations(), annotations::RUNNING_VERSION)?
    };
    Some(version).filter(|version| !version.is_empty())
}

/// The version that ran before the present spec, if it was noted.
pub(super) fn ran(manifest: &Manifest) -> Option<&str> {
    mark(manifest.annotations(), annotations::RUNNING_VERSION)
}

/// Has the Manifest that takes the place of `old` say which version runs. With the same spec it says what it has said.
pub(crate) fn remember(old: &Manifest, wanted: &mut Manifest) {
    let noted = if old.spec == wanted.spec {
        mark(old.annotations(), annotations::RUNNING_VERSION)
    } else {
        runs(old)
    };
    if let Some(version) = noted {
        wanted.annotations_mut().insert(annotations::RUNNING_VERSION.into(), version.to_owned());
    }
}

/// Says which version runs and which is wanted, before the first cause, of a module that was planned over what is installed.
pub(super) fn tell(status: &mut Arc<ModuleStatus>, installed: &Manifest, wanted: &str) {
    // What is given up or removed first is installed from the beginning. And where a version cannot be read, its fault counts.
    if status.state == State::Ready
        || status.version != wanted
        || installed.is_unmanaged()
        || installed.metadata.deletion_timestamp.is_some()
    {
        return;
    }
    let Some(runs) = runs(installed).filter(|runs| *runs != wanted) else { return };
    let way = if step(runs, wanted) == Some(Step::Down) { "downgrade" } else { "upgrade" };
    let both = format!("{way} in progress: {runs} runs, {wanted} is wanted");
    let status = Arc::make_mut(status);
    status.message = if status.message.is_empty() { both } else { format!("{both}; {}", status.message) };
}
