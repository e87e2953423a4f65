//! Modules that are being removed follow their channel until they are gone: what keeps them from going may be mended by an upgrade.

use std::borrow::Cow;

use kube::ResourceExt;
use tidewatch_api::{Kyma, KymaSpec, Manifest, Module, names::labels};

use super::{Input, OfModule, Plan, orphan, plan_module};
use crate::{
    gates::{self, Gate, Notes, View},
    kyma::Decided,
};

/// A list of modules with those after it that are being removed and not on it, in the channels that they had.
#[must_use]
pub fn with_leaving<'a>(kyma: &Kyma, wanted: &'a KymaSpec, manifests: &[Manifest]) -> Cow<'a, KymaSpec> {
    let mut all = Cow::Borrowed(wanted);
    for manifest in manifests.iter().filter(|manifest| follows(kyma, manifest)) {
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

/// Whether a Manifest is a user's module on its way out. What nobody asks for is not offered to mandatory modules either, and what a
/// runtime's own template has made is not mixed with what KCP offers.
fn follows(kyma: &Kyma, manifest: &Manifest) -> bool {
    manifest.metadata.deletion_timestamp.is_some()
        && !manifest.is_unmanaged()
        && !manifest.is_mandatory()
        && !manifest.is_of_runtime_template()
        && orphan(kyma, manifest).is_none()
}

/// Upgrades a module that is being removed if its channel has moved and nothing stands against it. Its status goes on to say what its
/// removal waits for.
pub(super) fn follow(input: &Input<'_>, manifest: &Manifest, plan: &mut Plan) {
    let module = manifest.module_name();
    let Some(choice) = input.facts.leaving.iter().find(|choice| Some(choice.module.name.as_str()) == module)
    else {
        return;
    };
    let (kyma, wanted, facts, now) = (input.kyma, input.wanted, &input.facts, input.now);
    let view = View { choice, installed: Some(manifest), kyma, wanted, facts, now };
    // Notices are for modules that stay.
    let mut notes = Notes::default();
    let gate = gates::judge(&view, &mut notes);
    plan.look_at = [plan.look_at, notes.look_at].into_iter().flatten().min();
    if !follows(kyma, manifest) || !matches!(gate, Gate::Pass) {
        return;
    }
    let applied = plan.apply.len();
    let there = OfModule { current: Some(manifest), ..OfModule::default() };
    let status = plan_module(input, choice, &there, plan);
    if plan.apply.len() > applied {
        plan.decide(Decided::Upgrade, None, Some(manifest), &status);
    }
}
