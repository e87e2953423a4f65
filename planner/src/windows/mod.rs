//! Maintenance windows for updates with downtime.
//!
//! The file and its rules are the Go lifecycle manager's. Patterns match anywhere, fields are alternatives, the
//! first matching rule decides. The default applies without a match or remaining window. Intended differences:
//! - a window stays open past midnight;
//! - a rule's next window applies, not the first listed;
//! - a window shorter than the minimum is never next;
//! - with `timeZone`, windows follow clock changes; offsets do not.
//!
//! The window gate calls [`judge`]. The receiver reads the file with [`Policy::parse`] and keeps the old policy after an error.

mod document;
pub mod lint;
mod matching;
mod next;
mod policy;
mod read;
#[cfg(test)]
mod tests;
mod translate;

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
pub use lint::{Finding, Kind, Level, Values, lint};
pub use matching::{Field, Match, Pattern};
pub use next::{Window, next};
pub use policy::{DayTime, MAX_POLICY, Policy, PolicyError, Rule, When, WindowTimes};

/// Default minimum rest of a window to begin an update.
pub const MIN_WINDOW: Duration = Duration::from_mins(20);
/// Maximum delay after a window's begin, constant per runtime; it spreads the fleet.
pub const SPREAD: Duration = Duration::from_mins(5);

/// Update of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update<'a> {
    /// Installed version, if any.
    pub installed: Option<&'a str>,
    /// Wanted version.
    pub wanted: &'a str,
    /// The template requires downtime.
    pub requires_downtime: bool,
    /// The user skips windows; only the runtime's Kyma has this field.
    pub skip: bool,
}

impl Update<'_> {
    /// Returns whether a window is required.
    #[must_use]
    pub fn needs_window(&self) -> bool {
        self.requires_downtime && !self.skip && self.installed.is_some_and(|old| old != self.wanted)
    }
}

/// Decision on an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateDecision {
    /// No window required.
    NotNeeded,
    /// Open and long enough.
    Open(Window),
    /// The old version stays until this window.
    Waits(Window),
    /// No window left; the old version stays.
    Never,
    /// No policy; the old version stays.
    NoPolicy,
}

impl UpdateDecision {
    /// Returns whether the update may begin.
    #[must_use]
    pub fn passes(&self) -> bool {
        matches!(self, Self::NotNeeded | Self::Open(_))
    }

    /// Next check.
    #[must_use]
    pub fn recheck_at(&self) -> Option<Timestamp> {
        match self {
            Self::Waits(window) => Some(window.begin),
            _ => None,
        }
    }

    /// Cause and remedy for users, constant per cause; `None` if it passes.
    #[must_use]
    pub fn message(&self, update: &Update<'_>) -> Option<String> {
        let wanted = update.wanted;
        match self {
            Self::NotNeeded | Self::Open(_) => None,
            Self::Waits(window) => Some(format!(
                "the update to {wanted} needs a downtime and waits for the maintenance window from {} to {}; set \
                 skipMaintenanceWindows in the Kyma to have it now",
                window.begin, window.end
            )),
            Self::Never => Some(format!(
                "the update to {wanted} needs a downtime, and the maintenance policy has no window for this \
                 runtime; set skipMaintenanceWindows in the Kyma to have it now"
            )),
            Self::NoPolicy => Some(format!(
                "the update to {wanted} needs a downtime, and no maintenance policy is configured; tried again \
                 when there is one, or when skipMaintenanceWindows is set in the Kyma"
            )),
        }
    }
}

/// Judges an update by the Kyma's `labels` in KCP.
#[must_use]
pub fn judge(
    update: &Update<'_>,
    policy: Option<&Policy>,
    labels: &BTreeMap<String, String>,
    now: Timestamp,
    min: Duration,
) -> UpdateDecision {
    if !update.needs_window() {
        return UpdateDecision::NotNeeded;
    }
    let Some(policy) = policy else { return UpdateDecision::NoPolicy };
    match next(policy, labels, now, min) {
        Some(window) if window.open => UpdateDecision::Open(window),
        Some(window) => UpdateDecision::Waits(window),
        None => UpdateDecision::Never,
    }
}
