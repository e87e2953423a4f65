//! Maintenance windows.

use kube::ResourceExt;
use tidewatch_api::State;

use super::{GateDecision, Notes, View};
use crate::{
    manifest::progress,
    windows::{self, Update, UpdateDecision},
};

/// An update with downtime waits; the old version keeps its state.
pub(super) fn judge(view: &View<'_>, _: &mut Notes) -> GateDecision {
    let Ok(chosen) = &view.module.outcome else { return GateDecision::Pass };
    // Being deleted, it serves no user.
    let Some(installed) = view.installed.filter(|m| m.metadata.deletion_timestamp.is_none()) else {
        return GateDecision::Pass;
    };
    let update = Update {
        installed: Some(&installed.spec.version),
        wanted: &chosen.version,
        requires_downtime: chosen.template.spec.requires_downtime == Some(true),
        skip: view.wanted.skip_maintenance_windows == Some(true),
    };
    let facts = view.facts;
    let verdict = windows::judge(&update, facts.windows, view.kyma.labels(), view.now, facts.min_window);
    let Some(why) = verdict.message(&update) else { return GateDecision::Pass };
    let (state, text) = progress(installed);
    // A future window opens by itself; without one, Warning.
    let has_window = matches!(verdict, UpdateDecision::Waits(_));
    GateDecision::Keep {
        state: if state == State::Ready && !has_window { State::Warning } else { state },
        message: if text.is_empty() { why } else { format!("{text}; {why}") },
        maintenance: true,
        retry_at: verdict.recheck_at(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};
    use tidewatch_api::{Kyma, KymaSpec, Manifest, Module};

    use super::*;
    use crate::{
        gates::Facts,
        versions::{choose, fixtures::catalog},
        windows::Policy,
    };

    const POLICY: &str = r#"{"rules": [{"match": {"plan": "trial"}, "windows": []}],
        "default": {"days": ["Wed"], "begin": "20:00:00Z", "end": "00:00:00Z"}}"#;
    /// A Tuesday.
    const CLOSED: &str = "2026-03-03T12:00:00Z";
    const OPEN: &str = "2026-03-04T21:00:00Z";

    struct Case {
        policy: Option<&'static str>,
        skip: bool,
        downtime: bool,
        manifest: Value,
        now: &'static str,
    }

    fn case() -> Case {
        let manifest = json!({"metadata": {"name": "m", "generation": 1},
            "spec": {"version": "0.9.0", "remote": false, "install": {"name": "raw-manifest", "source": {}}},
            "status": {"state": "Ready", "conditions": [{"type": "Installation", "status": "True", "reason": "Ready",
                "message": "", "lastTransitionTime": CLOSED, "observedGeneration": 1}]}});
        Case { policy: Some(POLICY), skip: false, downtime: true, manifest, now: CLOSED }
    }

    fn judged(case: &Case) -> GateDecision {
        let mut catalog = catalog();
        for template in catalog.templates.values_mut() {
            Arc::make_mut(template).spec.requires_downtime = Some(case.downtime);
        }
        let wanted = KymaSpec {
            channel: "regular".into(),
            skip_maintenance_windows: Some(case.skip),
            modules: vec![Module { name: "lighthouse".into(), ..Module::default() }],
        };
        let listed_modules = choose(&wanted, &catalog, &[]);
        let policy = case.policy.map(|text| Policy::parse(text).unwrap());
        let manifest: Option<Manifest> = serde_json::from_value(case.manifest.clone()).unwrap();
        let view = View {
            module: &listed_modules[0],
            installed: manifest.as_ref(),
            kyma: &Kyma::default(),
            wanted: &wanted,
            facts: &Facts { windows: policy.as_ref(), ..Facts::default() },
            now: case.now.parse().unwrap(),
        };
        judge(&view, &mut Notes::default())
    }

    #[test]
    fn a_downtime_update_waits_and_keeps_the_old_state() {
        let GateDecision::Keep { state, message, maintenance, retry_at } = judged(&case()) else {
            panic!("it passes")
        };
        assert_eq!((state, maintenance), (State::Ready, true));
        assert_eq!(retry_at, Some("2026-03-04T20:00:00Z".parse().unwrap()));
        assert!(message.starts_with("the update to 1.0.0 needs a downtime and waits"), "{message}");

        let mut ill = case();
        ill.manifest["status"]["state"] = "Error".into();
        ill.manifest["status"]["lastOperation"] = json!({"operation": "no pods", "lastUpdateTime": CLOSED});
        let GateDecision::Keep { state, message, .. } = judged(&ill) else { panic!("it passes") };
        assert_eq!(state, State::Error);
        assert!(message.starts_with("no pods; the update to 1.0.0 needs a downtime"), "{message}");
    }

    #[test]
    fn updates_without_need_of_a_window_pass() {
        assert_eq!(judged(&Case { now: OPEN, ..case() }), GateDecision::Pass);
        assert_eq!(judged(&Case { skip: true, ..case() }), GateDecision::Pass);
        assert_eq!(judged(&Case { downtime: false, ..case() }), GateDecision::Pass);
        assert_eq!(
            judged(&Case { manifest: Value::Null, ..case() }),
            GateDecision::Pass,
            "it is installed at once"
        );
        let mut same = case();
        same.manifest["spec"]["version"] = "1.0.0".into();
        assert_eq!(judged(&same), GateDecision::Pass);
        let mut deleting = case();
        deleting.manifest["metadata"]["deletionTimestamp"] = CLOSED.into();
        assert_eq!(judged(&deleting), GateDecision::Pass, "an upgrade may be what lets it go");
    }

    #[test]
    fn a_missing_maintenance_window_is_a_warning() {
        let GateDecision::Keep { state, message, retry_at, .. } = judged(&Case { policy: None, ..case() })
        else {
            panic!("it passes")
        };
        assert_eq!((state, retry_at), (State::Warning, None));
        assert!(message.contains("no maintenance policy is configured"), "{message}");
        assert_eq!(judged(&Case { policy: None, skip: true, ..case() }), GateDecision::Pass);
        let none = Case { policy: Some(r#"{"rules": []}"#), ..case() };
        let GateDecision::Keep { state: State::Warning, message, .. } = judged(&none) else {
            panic!("it passes")
        };
        assert!(message.contains("has no window for this runtime"), "{message}");
    }
}
