//! Whether this Kyma may have the module.

use kube::ResourceExt;

use super::{Gate, Notes, View};
use crate::plan::{
    access,
    notice::{About, Kind, Notice},
};

/// Who loses access loses the module, by the ordinary way of a removal.
pub(super) fn judge(view: &View<'_>, notes: &mut Notes) -> Gate {
    let module = &view.choice.module.name;
    let template = view.choice.outcome.as_ref().ok().map(|chosen| chosen.template.as_ref());
    let release = view.choice.release.as_deref();
    let Err(why) = access::allowed(view.kyma.labels(), release, template, view.facts.restricted, module)
    else {
        return Gate::Pass;
    };
    if view.installed.is_some_and(|m| m.metadata.deletion_timestamp.is_none()) {
        notes.notices.push(Notice {
            about: About::RuntimeKyma,
            kind: Kind::Warning,
            reason: "ModuleNotAvailable",
            message: format!("module '{module}' is removed: {why}"),
        });
    }
    Gate::Remove { message: why.to_string() }
}
