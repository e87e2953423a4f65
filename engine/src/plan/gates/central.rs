//! What the central configuration says of the module.

use super::{Gate, Notes, View};

/// Nothing objects yet.
pub(super) fn judge(_: &View<'_>, _: &mut Notes) -> Gate {
    Gate::Pass
}
