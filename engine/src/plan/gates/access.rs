//! Whether this Kyma may have the module.

use kube::ResourceExt;

use super::{Gate, Notes, View, removed};
use crate::plan::access::{self, Denied};

/// Who loses access loses the module, by the ordinary way of a removal.
pub(super) fn judge(view: &View<'_>, notes: &mut Notes) -> Gate {
    let module = &view.choice.module.name;
    let template = view.choice.outcome.as_ref().ok().map(|chosen| chosen.template.as_ref());
    let release = view.choice.release.as_deref();
    let Err(why) = access::allowed(view.kyma.labels(), release, template, view.facts.restricted, module)
    else {
        return Gate::Pass;
    };
    // A ModuleReleaseMeta that is not there, or cannot be read, takes access from nobody: what is installed stays, as where a version is gone.
    let unknown = release.is_none() && (view.installed.is_some() || view.choice.outcome.is_err());
    if unknown && why == Denied::Restricted {
        return Gate::Pass;
    }
    removed(view, notes, "ModuleNotAvailable", why.to_string())
}
