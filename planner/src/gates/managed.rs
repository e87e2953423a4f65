//! Managed or user-owned.

use tidewatch_api::State;

use super::{Gate, Notes, View};

/// User-owned modules skip later gates; access comes earlier.
pub(super) fn judge(view: &View<'_>, _: &mut Notes) -> Gate {
    if view.module.entry.managed { Gate::Pass } else { Gate::Unmanage { state: State::Unmanaged } }
}
