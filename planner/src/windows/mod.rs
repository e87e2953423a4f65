//! Maintenance windows: when an update that needs a downtime may be done.
//!
//! The policy is the file that the Go lifecycle manager reads (contract, section 5.11), read the same way:
//! patterns match anywhere in a value, the fields of a rule are alternatives, the first rule that matches
//! decides, and where none does (or all of its windows are over) the default. Three things are different, on
//! purpose:
//! - a window that began yesterday and goes past midnight is open after midnight;
//! - of several windows of a rule the next one counts, not the first one listed;
//! - a window that cannot be as long as the minimum is never said to be the next.
//!
//! Offsets are the only time zones of that format, so a window does not move when the clocks change; in our own field `timeZone` it does.
//!
//! Who calls it: the gate of windows in the Kyma's plan asks [`judge`] for each module; the receiver reads the
//! file ([`Policy::parse`]) at its start and when it changes, and keeps the policy it has where a new one cannot
//! be read; `tidewatch lint windows` calls [`lint()`].

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
pub use policy::{DayTime, MAX_POLICY, Policy, PolicyError, Rule, Times, When};

/// Least time that has to be left of a window for an update to begin in it, where nobody says otherwise.
pub const MIN_WINDOW: Duration = Duration::from_mins(20);
/// How long after its begin a window is looked at in the last runtimes, so that a fleet does not move in one second. How late one is differs
/// from runtime to runtime, and is the same each time.
pub const SPREAD: Duration = Duration::from_mins(5);

/// An update of one module, as far as windows care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update<'a> {
    /// The installed version; none for a module that is not installed yet.
    pub installed: Option<&'a str>,
    /// The version it should get.
    pub wanted: &'a str,
    /// Whether the template of that version says that the update needs a downtime.
    pub requires_downtime: bool,
    /// Whether the user of the runtime does not want to wait. Theirs is the Kyma in the runtime: the one in KCP
    /// does not know.
    pub skip: bool,
}

impl Update<'_> {
    /// Whether the update has to wait for a window.
    #[must_use]
    pub fn needs_window(&self) -> bool {
        self.requires_downtime && !self.skip && self.installed.is_some_and(|old| old != self.wanted)
    }
}

/// Whether an update may be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It needs no window.
    NotNeeded,
    /// A window is open, and long enough.
    Open(Window),
    /// It waits for this window; the old version stays until then.
    Waits(Window),
    /// The policy has no window for this Kyma any more; the old version stays.
    Never,
    /// There is no policy; the old version stays.
    NoPolicy,
}

impl Verdict {
    /// Whether the update may be done.
    #[must_use]
    pub fn passes(&self) -> bool {
        matches!(self, Self::NotNeeded | Self::Open(_))
    }

    /// When to look again without any other reason to.
    #[must_use]
    pub fn look_at(&self) -> Option<Timestamp> {
        match self {
            Self::Waits(window) => Some(window.begin),
            _ => None,
        }
    }

    /// For the user: why the old version stays, and what ends that. Nothing where the update may be done. The
    /// text stays the same for as long as its cause does.
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

/// Judges one update. `labels` are those of the Kyma in KCP.
#[must_use]
pub fn judge(
    update: &Update<'_>,
    policy: Option<&Policy>,
    labels: &BTreeMap<String, String>,
    now: Timestamp,
    min: Duration,
) -> Verdict {
    if !update.needs_window() {
        return Verdict::NotNeeded;
    }
    let Some(policy) = policy else { return Verdict::NoPolicy };
    match next(policy, labels, now, min) {
        Some(window) if window.open => Verdict::Open(window),
        Some(window) => Verdict::Waits(window),
        None => Verdict::Never,
    }
}
