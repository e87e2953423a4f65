//! Whether the module is managed, or the user's.

use tidewatch_api::State;

use super::{Gate, Notes, View};

pub(super) fn judge(view: &View<'_>, _: &mut Notes) -> Gate {
    if view.choice.module.managed {
        return Gate::Pass;
    }
    Gate::Keep {
        state: State::Warning,
        message: "managed: false is not supported yet; the module is left as it is".to_owned(),
        maintenance: false,
        retry_at: None,
    }
}
