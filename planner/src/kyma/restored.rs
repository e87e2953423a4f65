//! The user's module list, rebuilt after its CRD was deleted.

use std::sync::Arc;

use tidewatch_api::{Kyma, KymaSpec, Manifest, Module, ModuleStatus, State};

use super::orphans::ORPHANED;
use crate::gates::REQUIRED;

/// Rebuilds the runtime Kyma's spec from KCP's status and Manifests. A list lost with its CRD is not an empty list. Fields unknown to KCP,
/// such as skipping windows, get defaults.
#[must_use]
pub fn restored(kyma: &Kyma, manifests: &[Manifest]) -> KymaSpec {
    let mut spec = kyma.spec.clone();
    let Some(status) = kyma.status.as_ref().filter(|status| !status.active_channel.is_empty()) else {
        return spec;
    };
    spec.channel.clone_from(&status.active_channel);
    let entry = |module: &Arc<ModuleStatus>| {
        let manifest = manifests.iter().find(|m| m.module_name() == Some(&module.name) && !m.is_mandatory());
        // The status has no channel for pinned versions.
        let pinned = module.channel.is_empty() && !module.version.is_empty();
        Module {
            name: module.name.clone(),
            channel: Some(module.channel.clone()).filter(|c| !c.is_empty() && *c != spec.channel),
            version: pinned.then(|| module.version.clone()),
            custom_resource_policy: manifest.map(|m| m.spec.custom_resource_policy).unwrap_or_default(),
            managed: module.state != State::Unmanaged,
            ..Module::default()
        }
    };
    // KCP's own modules were unlisted. Other text may precede the remark.
    let foreign = |m: &ModuleStatus| m.message.starts_with(ORPHANED) || m.message.contains(REQUIRED);
    let listed = status.modules.iter().filter(|m| m.state != State::Deleting && !foreign(m));
    spec.modules = listed.map(entry).collect();
    spec
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kyma(status: &serde_json::Value) -> Kyma {
        let spec = json!({"channel": "regular", "modules": [{"name": "anchor"}]});
        serde_json::from_value(json!({"metadata": {"name": "harbour"}, "spec": spec, "status": status}))
            .unwrap()
    }

    #[test]
    fn the_restored_list_is_the_last_known_one() {
        let status = json!({"state": "Ready", "activeChannel": "fast", "modules": [
            {"name": "beacon", "channel": "fast", "version": "2.0.0", "state": "Ready"},
            {"name": "buoy", "channel": "regular", "version": "1.0.0", "state": "Warning"},
            {"name": "crane", "version": "1.2.3", "state": "Ready"},
            {"name": "gauge", "channel": "fast", "version": "1.0.0", "state": "Unmanaged"},
            {"name": "raft", "channel": "fast", "version": "1.0.0", "state": "Deleting"},
            {"name": "stray", "state": "Warning", "message": "orphaned: the Manifest stray is owned by no Kyma"},
            {"name": "guard", "channel": "fast", "version": "1.0.0", "state": "Ready", "message": "required by the platform's policy"},
            {"name": "gate", "channel": "fast", "version": "1.0.0", "state": "Error", "message": "no pods; required by the platform's policy"},
        ]});
        let ignoring: Manifest = serde_json::from_value(json!({
            "metadata": {"name": "m", "labels": {"operator.kyma-project.io/module-name": "crane"}},
            "spec": {"customResourcePolicy": "Ignore", "version": "1.2.3", "install": {"name": "crane", "source": {}}}
        }))
        .unwrap();
        let spec = restored(&kyma(&status), &[ignoring]);
        let modules: Vec<_> = spec
            .modules
            .iter()
            .map(|m| {
                (
                    m.name.as_str(),
                    m.channel.as_deref(),
                    m.version.as_deref(),
                    m.managed,
                    m.custom_resource_policy,
                )
            })
            .collect();
        let create = tidewatch_api::CustomResourcePolicy::CreateAndDelete;
        let ignore = tidewatch_api::CustomResourcePolicy::Ignore;
        assert_eq!(spec.channel, "fast");
        assert_eq!(
            modules,
            [
                ("beacon", None, None, true, create),
                ("buoy", Some("regular"), None, true, create),
                ("crane", None, Some("1.2.3"), true, ignore),
                ("gauge", None, None, false, create),
            ]
        );
    }

    #[test]
    fn a_kyma_without_earlier_modules_gets_the_defaults() {
        for status in [json!(null), json!({"state": "Error"})] {
            assert_eq!(restored(&kyma(&status), &[]).modules[0].name, "anchor");
        }
        let emptied = json!({"state": "Ready", "activeChannel": "regular"});
        assert!(restored(&kyma(&emptied), &[]).modules.is_empty(), "its user had none");
    }
}
