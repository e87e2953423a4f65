//! Gates that may stop a module's installation or change; the first objection decides.
//!
//! They also run without a version ([`ResolvedModule::outcome`]); most then pass.

mod access;
mod managed;
mod policy;
mod requirements;
mod rollout;
mod versions;
mod windows;

pub(super) use policy::{REQUIRED, unreadable_policy};

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use tidewatch_api::{Kyma, KymaSpec, Manifest, ModuleTemplate, State};

use super::{
    mandatory::module::MandatoryModule,
    notice::{About, Notice},
    policy::{PolicyEffect, PolicyError},
    requirements::WaitReport,
    versions::ResolvedModule,
    windows::{MIN_WINDOW, Policy},
};

/// Answer of a gate: whether the module may change now.
#[derive(Clone, Debug, PartialEq)]
pub enum GateDecision {
    /// No objection.
    Pass,
    /// Installed modules and their Manifests stay unchanged; others wait.
    Keep {
        /// Module state.
        state: State,
        /// Cause and remedy.
        message: String,
        /// Waits for a maintenance window.
        maintenance: bool,
        /// Next check, if time matters.
        retry_at: Option<Timestamp>,
    },
    /// Installed modules are removed normally; others are in Error.
    Remove {
        /// Cause.
        message: String,
    },
    /// Nothing is done.
    Refuse {
        /// Module state.
        state: State,
        /// Cause and remedy.
        message: String,
    },
    /// User-owned: unmanaged if installed, then shown only by name and state.
    Unmanage {
        /// Module state.
        state: State,
    },
}

/// Further input, mostly central settings. All defaults pass.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Modules limited to Kymas selected by their ModuleReleaseMeta.
    pub restricted: &'a [String],
    /// Central policy for this Kyma, or why it is unreadable.
    pub policy: Result<Option<&'a PolicyEffect>, &'a PolicyError>,
    /// Maintenance window policy.
    pub windows: Option<&'a Policy>,
    /// Minimum rest of a window to begin an update.
    pub min_window: Duration,
    /// Unmet requirements by module.
    pub unmet_requirements: Option<&'a BTreeMap<String, WaitReport>>,
    /// Lost requirements of installed modules, described, by module.
    pub lost_requirements: Option<&'a BTreeMap<String, String>>,
    /// Mandatory modules. An installed module stays until it becomes the mandatory one.
    pub mandatory: &'a [Arc<MandatoryModule>],
    /// Future rollout turns by module.
    pub turns: Option<&'a BTreeMap<String, Timestamp>>,
    /// Templates of installed versions not chosen, by name; see [`super::access::staying_templates`].
    pub installed: Option<&'a BTreeMap<String, Arc<ModuleTemplate>>>,
    /// Versions of modules being removed, in their former channels.
    pub deleting: &'a [ResolvedModule],
}

impl Default for Facts<'_> {
    fn default() -> Self {
        Self {
            restricted: &[],
            policy: Ok(None),
            windows: None,
            min_window: MIN_WINDOW,
            unmet_requirements: None,
            lost_requirements: None,
            mandatory: &[],
            turns: None,
            installed: None,
            deleting: &[],
        }
    }
}

/// Input of a gate.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// User's entry, channel, release and version.
    pub module: &'a ResolvedModule,
    /// Module's Manifest.
    pub installed: Option<&'a Manifest>,
    /// Kyma in KCP.
    pub kyma: &'a Kyma,
    /// Spec of the runtime's Kyma.
    pub wanted: &'a KymaSpec,
    /// Further input.
    pub facts: &'a Facts<'a>,
    /// Current time.
    pub now: Timestamp,
}

/// Output besides the verdict.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Notes {
    /// Notices to the user.
    pub notices: Vec<Notice>,
    /// Earliest time at which a verdict may change by itself.
    pub recheck_at: Option<Timestamp>,
    /// State (Ready or Warning) and text for a Ready module.
    pub remark: Option<(State, String)>,
}

impl Notes {
    /// Adds a remark; the more serious state wins.
    pub fn remark(&mut self, state: State, message: String) {
        self.remark = Some(match self.remark.take() {
            None => (state, message),
            Some((before, text)) => {
                (if before == State::Ready { state } else { before }, format!("{text}; {message}"))
            }
        });
    }

    /// Requests a check at this time or earlier.
    pub fn recheck(&mut self, at: Timestamp) {
        self.recheck_at = Some(self.recheck_at.map_or(at, |before| before.min(at)));
    }
}

type Judge = fn(&View<'_>, &mut Notes) -> GateDecision;

/// Policy and access precede the user's choice: unmanaging cannot keep a forbidden module. Turns come last, to hide no other reason.
const GATES: [Judge; 7] = [
    policy::judge,
    access::judge,
    managed::judge,
    versions::judge,
    requirements::judge,
    windows::judge,
    rollout::judge,
];

/// Asks gates until one objects.
pub fn judge(view: &View<'_>, notes: &mut Notes) -> GateDecision {
    let verdict = first(&GATES, view, notes);
    versions::add_remarks(view, &verdict, notes);
    verdict
}

fn remove(view: &View<'_>, notes: &mut Notes, reason: &'static str, message: String) -> GateDecision {
    if view.installed.is_some_and(|m| m.metadata.deletion_timestamp.is_none()) {
        notes.notices.push(Notice::warning(
            About::RuntimeKyma,
            reason,
            format!("module '{}' is removed: {message}", view.module.entry.name),
        ));
    }
    GateDecision::Remove { message }
}

fn first(gates: &[Judge], view: &View<'_>, notes: &mut Notes) -> GateDecision {
    for gate in gates {
        match gate(view, notes) {
            GateDecision::Pass => {}
            verdict => {
                if let GateDecision::Keep { retry_at: Some(at), .. } = &verdict {
                    notes.recheck(*at);
                }
                return verdict;
            }
        }
    }
    GateDecision::Pass
}

#[cfg(test)]
mod tests;
