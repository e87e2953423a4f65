//! The module's requirements.

use tidewatch_api::State;

use super::{GateDecision, Notes, View};
use crate::{
    manifest::progress,
    notice::{About, Notice},
    requirements::UPDATE,
};

/// A module waits for its requirements; the installed version stays with its state. If up to date, lost requirements are only reported.
pub(super) fn judge(view: &View<'_>, notes: &mut Notes) -> GateDecision {
    let module = &view.module.entry.name;
    if let Some(lost) = view.facts.lost_requirements.and_then(|gone| gone.get(module)) {
        notes.remark(State::Warning, lost.clone());
    }
    let Some(waiting) = view.facts.unmet_requirements.and_then(|required| required.get(module)) else {
        return GateDecision::Pass;
    };
    if waiting.state == State::Warning {
        notes.notices.push(Notice::warning(
            About::RuntimeKyma,
            "ModuleWaits",
            format!("module '{module}' {}", waiting.message),
        ));
    }
    // Being deleted, it serves no user.
    let installed = view.installed.filter(|m| m.metadata.deletion_timestamp.is_none());
    let (state, message) = match installed.map(progress) {
        None => (waiting.state, waiting.message.clone()),
        Some((state, text)) => {
            let state =
                if state == State::Ready && waiting.state == State::Warning { waiting.state } else { state };
            let why = format!("{UPDATE} {}", waiting.message);
            (state, if text.is_empty() { why } else { format!("{text}; {why}") })
        }
    };
    GateDecision::Keep { state, message, maintenance: false, retry_at: waiting.recheck_at }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::Timestamp;
    use serde_json::json;
    use tidewatch_api::{Kyma, KymaSpec, Manifest};

    use super::*;
    use crate::{
        gates::Facts,
        requirements::WaitReport,
        versions::{choose, fixtures::catalog},
    };

    fn judged(waits: Option<State>, installed: Option<&Manifest>) -> (GateDecision, Notes) {
        let wanted: KymaSpec =
            serde_json::from_value(json!({"channel": "regular", "modules": [{"name": "lighthouse"}]}))
                .unwrap();
        let resolved_module = choose(&wanted, &catalog(), &[]).remove(0);
        let of = |state| WaitReport {
            state,
            message: "waits for x".into(),
            recheck_at: Some(Timestamp::UNIX_EPOCH),
        };
        let required: BTreeMap<String, WaitReport> =
            waits.map(|state| ("lighthouse".to_owned(), of(state))).into_iter().collect();
        let facts = Facts { unmet_requirements: Some(&required), ..Facts::default() };
        let (kyma, now) = (Kyma::default(), Timestamp::UNIX_EPOCH);
        let view =
            View { module: &resolved_module, installed, kyma: &kyma, wanted: &wanted, facts: &facts, now };
        let mut notes = Notes::default();
        (judge(&view, &mut notes), notes)
    }

    #[test]
    fn a_waiting_module_is_kept_and_later_warned_about() {
        assert_eq!(judged(None, None), (GateDecision::Pass, Notes::default()));
        let (gate, notes) = judged(Some(State::Processing), None);
        let GateDecision::Keep { state, message, retry_at: Some(_), .. } = gate else { panic!("{gate:?}") };
        assert_eq!((state, message.as_str(), notes.notices.len()), (State::Processing, "waits for x", 0));
        let (_, notes) = judged(Some(State::Warning), None);
        assert_eq!(notes.notices[0].reason, "ModuleWaits");
    }

    #[test]
    fn an_installed_module_keeps_its_state_until_the_limit() {
        let manifest: Manifest = serde_json::from_value(json!({"metadata": {"name": "m", "generation": 1},
            "spec": {"version": "0.9.0", "remote": false, "install": {"name": "raw-manifest", "source": {}}},
            "status": {"state": "Ready", "conditions": [{"type": "Installation", "status": "True", "reason": "Ready",
                "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1}]}}))
        .unwrap();
        for (waits, expected) in [(State::Processing, State::Ready), (State::Warning, State::Warning)] {
            let (gate, _) = judged(Some(waits), Some(&manifest));
            let GateDecision::Keep { state, message, .. } = gate else { panic!("{gate:?}") };
            assert_eq!((state, message.as_str()), (expected, "its update waits for x"));
        }
    }
}
