//! Events about a Kyma's modules.
//!
//! Only differences from the previous status are reported, so a restart repeats none.

use std::{collections::BTreeSet, sync::Arc};

use tidewatch_api::{Kyma, KymaStatus, Manifest, ModuleStatus, State};

use super::running::recorded_version;
use crate::{
    manifest::progress_at,
    notice::{About, Notice},
    status::is_unreachable,
};

/// Reasons by words of API servers' errors.
const API_ERRORS: [(&[&str], &str); 3] = [
    (&["failed calling webhook"], "WebhookUnavailable"),
    (&["admission webhook", "denied the request"], "WebhookRefuses"),
    (&["namespaces \"", "not found"], "NamespaceMissing"),
];
const IN_PROGRESS: &str = " in progress: ";

/// Reason why a user must act. An unreachable runtime is no module's fault.
fn problem(module: &ModuleStatus, manifest: Option<&Manifest>) -> Option<&'static str> {
    if is_unreachable(&module.message) {
        return None;
    }
    let api_error =
        API_ERRORS.iter().find(|(parts, _)| parts.iter().all(|word| module.message.contains(word)));
    match (module.state, api_error) {
        (State::Error | State::Warning | State::Processing, Some((_, reason))) => Some(reason),
        (State::Error, None) => Some("ModuleError"),
        // Gates send their own notices.
        (State::Warning, None) => {
            let reported = manifest.map(|manifest| progress_at(manifest, manifest.metadata.generation));
            reported
                .is_some_and(|(state, why)| state == State::Warning && module.message.contains(why))
                .then_some("ModuleWarning")
        }
        _ => None,
    }
}

fn manifest_of<'a>(module: &ModuleStatus, manifests: &'a [Manifest]) -> Option<&'a Manifest> {
    let name = module.manifest.as_ref()?.metadata.as_ref()?.name.as_str();
    manifests.iter().find(|manifest| manifest.metadata.name.as_deref() == Some(name))
}

/// Notices about modules that differ from `kyma`'s status. `open`: modules with unreported recovery, because recovery passes through
/// Processing.
#[must_use]
pub fn module_notices(
    kyma: &Kyma,
    now: &KymaStatus,
    manifests: &[Manifest],
    open: &mut BTreeSet<String>,
) -> Vec<Notice> {
    let before = |name: &str| kyma.status.as_ref()?.modules.iter().find(|module| module.name == name);
    open.retain(|name| now.modules.iter().any(|module| module.name == *name));
    let notice = |module: &Arc<ModuleStatus>| {
        let manifest = manifest_of(module, manifests);
        module_notice(before(&module.name).map(Arc::as_ref), module, manifest, open)
    };
    now.modules.iter().filter_map(notice).collect()
}

fn module_notice(
    before: Option<&ModuleStatus>,
    now: &ModuleStatus,
    manifest: Option<&Manifest>,
    open: &mut BTreeSet<String>,
) -> Option<Notice> {
    let name = &now.name;
    let problem_before = before.and_then(|before| problem(before, manifest));
    if let Some(reason) = problem(now, manifest) {
        open.insert(name.clone());
        let message = format!("module '{name}' is in state {}: {}", now.state, now.message);
        return (problem_before != Some(reason))
            .then(|| Notice::warning(About::RuntimeKyma, reason, message));
    }
    if problem_before.is_some() {
        open.insert(name.clone());
    }
    let before = before.filter(|_| now.state == State::Ready)?;
    let was_open = open.remove(name);
    if before.version != now.version && !before.version.is_empty() || before.message.contains(IN_PROGRESS) {
        let from = manifest.and_then(recorded_version).filter(|from| *from != now.version);
        let from = from.map(|from| format!(" from {from}")).unwrap_or_default();
        let message = format!("module '{name}' was changed{from} to version {} and is ready", now.version);
        return Some(Notice::normal(About::RuntimeKyma, "ModuleUpgraded", message));
    }
    let message = format!("module '{name}' is ready again");
    was_open.then(|| Notice::normal(About::RuntimeKyma, "ModuleReady", message))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn module(version: &str, state: State, message: &str) -> ModuleStatus {
        ModuleStatus {
            name: "beam".into(),
            version: version.into(),
            state,
            message: message.into(),
            ..ModuleStatus::default()
        }
    }

    fn noticed(before: Option<ModuleStatus>, now: ModuleStatus) -> Option<(&'static str, String)> {
        let kyma = Kyma {
            status: before
                .map(|before| KymaStatus { modules: vec![Arc::new(before)], ..KymaStatus::default() }),
            ..Kyma::default()
        };
        let now = KymaStatus { modules: vec![Arc::new(now)], ..KymaStatus::default() };
        let mut noticed = module_notices(&kyma, &now, &[], &mut BTreeSet::new());
        assert!(noticed.len() < 2 && noticed.iter().all(|notice| notice.about == About::RuntimeKyma));
        noticed.pop().map(|notice| (notice.reason, notice.message))
    }

    fn reason(before: (State, &str), now: (State, &str)) -> Option<&'static str> {
        let of = |(state, message)| module("1.0.0", state, message);
        noticed(Some(of(before)), of(now)).map(|(reason, _)| reason)
    }

    const NAMESPACE: &str = "applying ConfigMap a/b: not found (namespaces \"a\" not found)";
    const REFUSED: &str = "applying it: refused (admission webhook \"v.x\" denied the request: no)";
    const SILENT: &str = "applying it: failed (Internal error occurred: failed calling webhook \"v.x\")";

    #[test]
    fn a_failing_module_and_its_recovery_are_notified() {
        let (ready, starts) = ((State::Ready, ""), (State::Processing, "it starts"));
        for (before, now, notice_reason) in [
            (ready, (State::Error, "broken"), Some("ModuleError")),
            (starts, (State::Error, "broken"), Some("ModuleError")),
            (starts, (State::Error, NAMESPACE), Some("NamespaceMissing")),
            (starts, (State::Error, REFUSED), Some("WebhookRefuses")),
            (starts, (State::Processing, SILENT), Some("WebhookUnavailable")),
            ((State::Error, NAMESPACE), (State::Error, REFUSED), Some("WebhookRefuses")),
            ((State::Error, "broken"), ready, Some("ModuleReady")),
            ((State::Processing, SILENT), ready, Some("ModuleReady")),
            // No user action.
            (ready, starts, None),
            (starts, ready, None),
            (ready, (State::Warning, "the version ends soon"), None),
            ((State::Error, "broken"), starts, None),
        ] {
            assert_eq!(reason(before, now), notice_reason, "{before:?} {now:?}");
        }
        let (_, message) = noticed(None, module("1.0.0", State::Error, "broken")).unwrap();
        assert_eq!(message, "module 'beam' is in state Error: broken");
    }

    #[test]
    fn a_gradual_recovery_is_notified_once_ready() {
        let (mut open, mut before) = (BTreeSet::new(), None);
        let mut noticed = Vec::new();
        for (state, message) in [
            (State::Error, "broken"),
            (State::Processing, "it starts"),
            (State::Processing, "it still starts"),
            (State::Ready, ""),
            (State::Processing, "a replica is missing"),
            (State::Ready, ""),
        ] {
            let now = module("1.0.0", state, message);
            noticed.extend(module_notice(before.as_ref(), &now, None, &mut open).map(|notice| notice.reason));
            before = Some(now);
        }
        assert_eq!(noticed, ["ModuleError", "ModuleReady"]);
        assert!(open.is_empty());
    }

    #[test]
    fn an_unchanged_state_is_not_notified_again() {
        for now in [
            (State::Error, "broken"),
            (State::Error, NAMESPACE),
            (State::Processing, SILENT),
            (State::Ready, ""),
        ] {
            assert_eq!(reason(now, now), None, "{now:?}");
        }
        assert_eq!(
            reason((State::Error, "broken"), (State::Error, "broken; next try within 5 minutes")),
            None
        );
        assert_eq!(noticed(None, module("1.0.0", State::Ready, "")), None, "it is new");
    }

    #[test]
    fn an_unreachable_runtime_causes_no_module_notices() {
        use crate::status::{TIMED_OUT, UNREACHABLE};
        for text in [UNREACHABLE, TIMED_OUT] {
            let why = format!("reading it: {text}; next try within 10 s");
            let out = (State::Error, why.as_str());
            assert_eq!((reason((State::Ready, ""), out), reason(out, (State::Ready, ""))), (None, None));
        }
    }

    #[test]
    fn an_upgrade_is_notified_when_ready() {
        let ready = |version| module(version, State::Ready, "");
        let text = "upgrade in progress: 1.0.0 runs, 1.1.0 is wanted";
        let upgrades = module("1.1.0", State::Processing, text);
        assert_eq!(noticed(Some(ready("1.0.0")), upgrades.clone()), None);
        let (reason, message) = noticed(Some(upgrades), ready("1.1.0")).unwrap();
        assert_eq!(
            (reason, message.as_str()),
            ("ModuleUpgraded", "module 'beam' was changed to version 1.1.0 and is ready")
        );
        let failed = module("1.1.0", State::Error, &format!("{text}; broken"));
        assert_eq!(noticed(Some(failed), ready("1.1.0")).unwrap().0, "ModuleUpgraded");
        assert_eq!(
            noticed(Some(ready("1.0.0")), ready("1.1.0")).unwrap().0,
            "ModuleUpgraded",
            "however fast"
        );
    }

    #[test]
    fn notices_name_the_old_version_and_manifest_warnings() {
        let manifest: Manifest = serde_json::from_value(json!({
            "metadata": {"name": "m", "generation": 2, "annotations": {tidewatch_api::names::annotations::RUNNING_VERSION: "1.0.0"}},
            "spec": {"version": "1.1.0", "install": {"name": "raw-manifest", "source": {}}},
            "status": {"state": "Warning", "lastOperation": {"operation": "its image cannot be pulled", "lastUpdateTime": null},
                       "conditions": [{"type": "Installation", "status": "False", "reason": "Ready", "message": "",
                                       "observedGeneration": 2, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}
        }))
        .unwrap();
        let warned = module("1.1.0", State::Warning, "its image cannot be pulled");
        let last_notice = module_notice(None, &warned, Some(&manifest), &mut BTreeSet::new()).unwrap();
        assert_eq!(last_notice.reason, "ModuleWarning");
        let starts = module("1.1.0", State::Processing, "upgrade in progress: 1.0.0 runs, 1.1.0 is wanted");
        let last_notice = module_notice(
            Some(&starts),
            &module("1.1.0", State::Ready, ""),
            Some(&manifest),
            &mut BTreeSet::new(),
        )
        .unwrap();
        assert_eq!(last_notice.message, "module 'beam' was changed from 1.0.0 to version 1.1.0 and is ready");
    }
}
