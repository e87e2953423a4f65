//! Central policy.

use tidewatch_api::State;

use super::{GateDecision, Notes, View, remove};
use crate::policy::PolicyError;

/// Remark on modules that only the policy requires.
pub(crate) const REQUIRED: &str = "required by the platform's policy";

/// Removes forbidden modules; remarks on changed entries.
pub(super) fn judge(view: &View<'_>, notes: &mut Notes) -> GateDecision {
    let module = &view.module.entry.name;
    let policy = match view.facts.policy {
        Ok(None) => return GateDecision::Pass,
        Ok(Some(ruled)) => ruled,
        Err(why) => {
            return GateDecision::Keep {
                state: State::Warning,
                message: unreadable_policy(why),
                maintenance: false,
                retry_at: None,
            };
        }
    };
    if policy.forbidden.contains(module) {
        let message = "the platform's policy forbids the module".to_owned();
        return remove(view, notes, "ModuleForbidden", message);
    }
    if let Some(change) = policy.overruled.get(module) {
        notes.remark(State::Ready, format!("set by the platform's policy: {change}"));
    } else if policy.required.contains(module) {
        notes.remark(State::Ready, REQUIRED.to_owned());
    }
    GateDecision::Pass
}

/// Message for an unreadable policy.
pub(crate) fn unreadable_policy(why: &PolicyError) -> String {
    format!("{why}; modules stay as they are until it is mended")
}
