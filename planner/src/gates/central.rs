//! Central policy.

use tidewatch_api::State;

use super::{Gate, Notes, View, removed};
use crate::policy::PolicyError;

/// Remark on modules that only the policy requires.
pub(crate) const REQUIRED: &str = "required by the platform's policy";

/// Removes forbidden modules; remarks on changed entries.
pub(super) fn judge(view: &View<'_>, notes: &mut Notes) -> Gate {
    let module = &view.choice.module.name;
    let ruled = match view.facts.ruled {
        Ok(None) => return Gate::Pass,
        Ok(Some(ruled)) => ruled,
        Err(why) => {
            return Gate::Keep {
                state: State::Warning,
                message: unread(why),
                maintenance: false,
                retry_at: None,
            };
        }
    };
    if ruled.forbidden.contains(module) {
        let message = "the platform's policy forbids the module".to_owned();
        return removed(view, notes, "ModuleForbidden", message);
    }
    if let Some(what) = ruled.overruled.get(module) {
        notes.remark(State::Ready, format!("set by the platform's policy: {what}"));
    } else if ruled.required.contains(module) {
        notes.remark(State::Ready, REQUIRED.to_owned());
    }
    Gate::Pass
}

/// Message for an unreadable policy.
pub(crate) fn unread(why: &PolicyError) -> String {
    format!("{why}; modules stay as they are until it is mended")
}
