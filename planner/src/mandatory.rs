//! Mandatory modules: every Kyma gets them, regardless of labels.
//!
//! They are planned from KCP alone, so a broken runtime or Kyma cannot block them. Modules that require an unserved kind are left
//! out.

pub(crate) mod module;

use std::{collections::BTreeSet, sync::Arc};

use kube::ResourceExt;
use tidewatch_api::{
    Kyma, Manifest, Module, State,
    names::{annotations, labels},
};

pub use self::module::{MandatoryModule, is_legacy, is_withdrawn};
use super::{
    kyma::{
        Decision, DecisionKind, Plan, Sources, is_up_to_date, keep_default_cr, manifest_for, orphan,
        record_running_version, take_over,
    },
    naming::manifest_name,
    notice::{About, Notice},
    versions::may_replace,
};

/// Planner input, all from KCP.
pub struct Input<'a> {
    /// Kyma.
    pub kyma: &'a Kyma,
    /// All mandatory modules.
    pub modules: &'a [Arc<MandatoryModule>],
    /// Descriptors of chosen versions.
    pub sources: &'a Sources,
    /// Manifests with this Kyma's name.
    pub manifests: &'a [Manifest],
    /// Optional modules: a formerly mandatory Manifest is deleted unless in `requested`.
    pub optional: &'a BTreeSet<String>,
    /// Modules in the Kyma's list; `None` (unread) deletes nothing.
    pub requested: Option<&'a BTreeSet<String>>,
}

/// Planned actions; the plan's status stays empty.
#[derive(Debug, Default)]
pub struct MandatoryPlan {
    /// Manifests, notices and decisions.
    pub plan: Plan,
    /// Faults of modules.
    pub faults: Vec<String>,
}

/// Plans mandatory modules. A Manifest unknown to KCP's catalog stays, because incomplete reads must not remove modules; deleting the
/// release meta does.
#[must_use]
pub fn plan(input: &Input<'_>) -> MandatoryPlan {
    let mut result = MandatoryPlan::default();
    for module in input.modules.iter().filter(|module| !module.deleting) {
        plan_module(input, module, &mut result);
    }
    let installed =
        input.manifests.iter().filter(|m| m.is_mandatory() && m.metadata.deletion_timestamp.is_none());
    for manifest in installed {
        let module = manifest.module_name().unwrap_or_default();
        if input.optional.contains(module)
            && input.requested.is_some_and(|requested| !requested.contains(module))
        {
            result.plan.remove(manifest, "the module is not mandatory any more");
        }
    }
    result
}

fn plan_module(input: &Input<'_>, mandatory: &MandatoryModule, result: &mut MandatoryPlan) {
    let module = mandatory.module.as_str();
    let mut of_module: Vec<&Manifest> = input
        .manifests
        .iter()
        .filter(|m| m.module_name() == Some(module) && orphan(input.kyma, m).is_none())
        .collect();
    let chosen = match &mandatory.outcome {
        Ok(chosen) => chosen,
        Err(why) => return result.fault(module, why.to_string()),
    };
    let planned = manifest_name(&input.kyma.name_any(), &chosen.component, module);
    of_module.sort_by_key(|m| (m.name_any() != planned, m.metadata.deletion_timestamp.is_some()));
    let existing = of_module.first().copied();
    let installed = existing.filter(|m| m.metadata.deletion_timestamp.is_none());
    let allowed = mandatory.release.as_ref().is_some_and(|r| r.spec.allow_downgrade == Some(true));
    if let Err(why) = may_replace(installed.map(|m| m.spec.version.as_str()), &chosen.version, allowed) {
        return result.fault(module, why.to_string());
    }
    let source = match input.sources.of_or_noted(chosen, installed) {
        Some(Ok(source)) => source,
        Some(Err(why)) => {
            result.plan.retry |= why.retryable;
            return result.fault(module, why.message.clone());
        }
        None => {
            result.plan.retry = true;
            return;
        }
    };
    // Formerly optional: the user's own CR stays user-owned.
    let managed = installed.filter(|old| !old.is_unmanaged());
    let custom_resource_policy = managed.map(|old| old.spec.custom_resource_policy).unwrap_or_default();
    let entry = Module { name: module.to_owned(), custom_resource_policy, ..Module::default() };
    let mut wanted = match manifest_for(input.kyma, &entry, "", chosen, &source) {
        Ok(wanted) => wanted,
        Err(why) => return result.fault(module, why),
    };
    if let Some(old) = managed {
        keep_default_cr(old, &mut wanted);
    }
    wanted.labels_mut().remove(labels::CHANNEL);
    wanted.labels_mut().insert(labels::MANDATORY_MODULE.to_owned(), "true".to_owned());
    if let Some(old) = existing.filter(|m| m.name_any() == planned) {
        let needs_no_apply = old.is_unmanaged()
            // Follows versions until gone: an upgrade may repair its removal.
            || old.metadata.deletion_timestamp.is_some() && old.spec == wanted.spec;
        // Installed versions are immutable.
        if old.spec.version == wanted.spec.version && old.is_mandatory() {
            take_over(old, &mut wanted);
        }
        if needs_no_apply || is_up_to_date(old, &wanted) {
            delete_duplicates(&of_module, old, result);
            return;
        }
        if !wanted.annotations().contains_key(annotations::TEMPLATE_UID) {
            // Without an engine annotation, the Go manager's status would count as final.
            record_running_version(old, &mut wanted);
        }
    }
    result.plan.decisions.push(Decision {
        kind: match existing {
            None => DecisionKind::Install,
            Some(old) if old.spec.version != wanted.spec.version => DecisionKind::Upgrade,
            Some(_) => DecisionKind::Change,
        },
        module: module.to_owned(),
        from: (existing.map(|m| m.spec.version.clone()).unwrap_or_default(), State::Empty),
        to: (chosen.version.clone(), State::Processing),
        reason: "mandatory".to_owned(),
    });
    result.plan.apply.push(wanted);
}

/// Deletes duplicates left by a renamed component.
fn delete_duplicates(of_module: &[&Manifest], current: &Manifest, result: &mut MandatoryPlan) {
    if current.metadata.deletion_timestamp.is_some() || current.is_unmanaged() {
        return;
    }
    for other in of_module.iter().filter(|m| m.is_mandatory() && m.metadata.deletion_timestamp.is_none()) {
        if other.metadata.name != current.metadata.name {
            result.plan.remove(other, "another Manifest of the module has taken its place");
        }
    }
}

impl MandatoryPlan {
    fn fault(&mut self, module: &str, why: String) {
        let message = format!("mandatory module '{module}': {why}");
        self.plan.notices.push(Notice::warning(About::Kyma, "MandatoryModuleFailed", message.clone()));
        self.faults.push(message);
    }
}

#[cfg(test)]
mod tests;
