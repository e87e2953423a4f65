//! Whether the module is managed, or the user's.

use tidewatch_api::State;

use super::{Gate, Notes, View};

/// A module whose user manages it is left to them, whatever else would be said of it; but that they may not have it was asked before.
pub(super) fn judge(view: &View<'_>, _: &mut Notes) -> Gate {
    if view.choice.module.managed { Gate::Pass } else { Gate::Leave { state: State::Unmanaged } }
}
