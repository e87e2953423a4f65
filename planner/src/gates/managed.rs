//! Managed or user-owned.

use tidewatch_api::State;

use super::{GateDecision, Notes, View};

/// User-owned modules skip later gates; access comes earlier.
pub(super) fn judge(view: &View<'_>, _: &mut Notes) -> GateDecision {
    if view.module.entry.managed {
        GateDecision::Pass
    } else {
        GateDecision::Unmanage { state: State::Unmanaged }
    }
}
