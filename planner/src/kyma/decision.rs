//! Decisions for the log: one line per change.

use std::sync::Arc;

use kube::ResourceExt;
use tidewatch_api::{Manifest, ModuleStatus, State};

use super::Plan;
use crate::gates::GateDecision;

/// Kind of decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionKind {
    /// Create the Manifest.
    Install,
    /// Change its version.
    Upgrade,
    /// Change it otherwise.
    Change,
    /// Delete it.
    Remove,
    /// Keep it.
    Keep,
    /// Refuse installation.
    Refuse,
    /// Leave it to the user.
    Unmanage,
    /// Only the state differs.
    StateOnly,
}

impl DecisionKind {
    /// Word for the log.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Install => "install",
            Self::Upgrade => "upgrade",
            Self::Change => "change",
            Self::Remove => "remove",
            Self::Keep => "keep",
            Self::Refuse => "refuse",
            Self::Unmanage => "leave",
            Self::StateOnly => "state",
        }
    }
}

/// Change of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Kind.
    pub kind: DecisionKind,
    /// Module name.
    pub module: String,
    /// Former version (empty: none) and state.
    pub from: (String, State),
    /// New version and state.
    pub to: (String, State),
    /// Cause.
    pub reason: String,
}

impl GateDecision {
    pub(super) const fn decision_kind(&self) -> Option<DecisionKind> {
        match self {
            Self::Pass => None,
            Self::Keep { .. } => Some(DecisionKind::Keep),
            Self::Remove { .. } => Some(DecisionKind::Remove),
            Self::Refuse { .. } => Some(DecisionKind::Refuse),
            Self::Unmanage { .. } => Some(DecisionKind::Unmanage),
        }
    }
}

impl Plan {
    /// Records decisions that write, or that change state, version or maintenance.
    pub(super) fn decide(
        &mut self,
        kind: DecisionKind,
        before: Option<&Arc<ModuleStatus>>,
        existing: Option<&Manifest>,
        status: &ModuleStatus,
    ) {
        let state = before.map_or(State::Empty, |b| b.state);
        let writes = matches!(kind, DecisionKind::Install | DecisionKind::Upgrade | DecisionKind::Change);
        let reported = before.map(|b| (b.state, &b.version, b.maintenance));
        if !writes && reported == Some((status.state, &status.version, status.maintenance)) {
            return;
        }
        let reason = match (status.message.as_str(), status.channel.as_str()) {
            _ if kind == DecisionKind::Unmanage => "managed: false".to_owned(),
            ("", "") => "version asked for".to_owned(),
            ("", channel) => format!("channel {channel}"),
            (message, _) => message.to_owned(),
        };
        self.decisions.push(Decision {
            kind,
            module: status.name.clone(),
            from: (existing.map(|m| m.spec.version.clone()).unwrap_or_default(), state),
            to: (status.version.clone(), status.state),
            reason,
        });
    }

    /// Deletes a Manifest and records it.
    pub(crate) fn remove(&mut self, manifest: &Manifest, reason: &str) {
        self.delete.push(manifest.name_any());
        let version = manifest.spec.version.clone();
        let state = manifest.status.as_ref().map_or(State::Empty, |s| s.state);
        self.decisions.push(Decision {
            kind: DecisionKind::Remove,
            module: manifest.module_name().unwrap_or_default().to_owned(),
            from: (version, state),
            to: (String::new(), State::Deleting),
            reason: reason.to_owned(),
        });
    }
}
