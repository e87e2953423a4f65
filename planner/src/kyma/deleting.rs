//! Modules being removed follow their channel: an upgrade may repair a blocked removal.

use std::borrow::Cow;

use kube::ResourceExt;
use tidewatch_api::{Kyma, KymaSpec, Manifest, Module, names::labels};

use super::{Input, ModuleObjects, Plan, orphan, plan_module};
use crate::{
    gates::{self, GateDecision, Notes, View},
    kyma::DecisionKind,
};

/// Appends unlisted modules that are being removed, in their former channels.
#[must_use]
pub fn with_deleting<'a>(kyma: &Kyma, wanted: &'a KymaSpec, manifests: &[Manifest]) -> Cow<'a, KymaSpec> {
    let mut all = Cow::Borrowed(wanted);
    for manifest in manifests.iter().filter(|manifest| follows_channel(kyma, manifest)) {
        let (Some(name), Some(channel)) = (manifest.module_name(), manifest.labels().get(labels::CHANNEL))
        else {
            continue;
        };
        if channel.is_empty() || all.modules.iter().any(|module| module.name == name) {
            continue;
        }
        all.to_mut().modules.push(Module {
            name: name.to_owned(),
            channel: Some(channel.clone()),
            custom_resource_policy: manifest.spec.custom_resource_policy,
            ..Module::default()
        });
    }
    all
}

/// Mandatory Manifests and those of a runtime's template do not follow KCP's channels.
fn follows_channel(kyma: &Kyma, manifest: &Manifest) -> bool {
    manifest.metadata.deletion_timestamp.is_some()
        && !manifest.is_unmanaged()
        && !manifest.is_mandatory()
        && !manifest.is_of_runtime_template()
        && orphan(kyma, manifest).is_none()
}

/// Upgrades a module being removed if all gates pass. Its status still shows the removal.
pub(super) fn upgrade_deleting(input: &Input<'_>, manifest: &Manifest, plan: &mut Plan) {
    let module = manifest.module_name();
    let Some(chosen_module) = input
        .facts
        .deleting
        .iter()
        .find(|resolved_module| Some(resolved_module.entry.name.as_str()) == module)
    else {
        return;
    };
    let (kyma, wanted, facts, now) = (input.kyma, input.wanted, &input.facts, input.now);
    let view = View { module: chosen_module, installed: Some(manifest), kyma, wanted, facts, now };
    // Notices are for modules that stay.
    let mut notes = Notes::default();
    let gate = gates::judge(&view, &mut notes);
    plan.recheck_at = [plan.recheck_at, notes.recheck_at].into_iter().flatten().min();
    if !follows_channel(kyma, manifest) || !matches!(gate, GateDecision::Pass) {
        return;
    }
    let applied = plan.apply.len();
    let objects = ModuleObjects { manifest: Some(manifest), ..ModuleObjects::default() };
    let status = plan_module(input, chosen_module, &objects, plan);
    if plan.apply.len() > applied {
        plan.decide(DecisionKind::Upgrade, None, Some(manifest), &status);
    }
}
