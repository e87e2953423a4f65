//! What was decided of a module, for the log: one line for each change.

use std::sync::Arc;

use kube::ResourceExt;
use tidewatch_api::{Manifest, ModuleStatus, State};

use super::Plan;
use crate::gates::Gate;

/// What was decided of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decided {
    /// Its Manifest is made.
    Install,
    /// Its Manifest gets another version.
    Upgrade,
    /// Its Manifest changes in another way.
    Change,
    /// Its Manifest is deleted.
    Remove,
    /// It is kept as it is.
    Keep,
    /// It is not installed.
    Refuse,
    /// It is left to its user.
    Leave,
    /// Nothing; its state is another one than before.
    Nothing,
}

impl Decided {
    /// One word for the log.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Install => "install",
            Self::Upgrade => "upgrade",
            Self::Change => "change",
            Self::Remove => "remove",
            Self::Keep => "keep",
            Self::Refuse => "refuse",
            Self::Leave => "leave",
            Self::Nothing => "state",
        }
    }
}

/// A change of one module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What was decided.
    pub what: Decided,
    /// The module.
    pub module: String,
    /// Version and state before; the version is empty if there was none.
    pub from: (String, State),
    /// Version and state now.
    pub to: (String, State),
    /// For people.
    pub reason: String,
}

impl Gate {
    /// What it decides, unless it lets pass.
    pub(super) const fn word(&self) -> Option<Decided> {
        match self {
            Self::Pass => None,
            Self::Keep { .. } => Some(Decided::Keep),
            Self::Remove { .. } => Some(Decided::Remove),
            Self::Refuse { .. } => Some(Decided::Refuse),
            Self::Leave { .. } => Some(Decided::Leave),
        }
    }
}

impl Plan {
    /// Notes a decision if something is written for it, or the module's state or version is another one than the
    /// status said `before`, or it waits for a window now.
    pub(super) fn decide(
        &mut self,
        what: Decided,
        before: Option<&Arc<ModuleStatus>>,
        existing: Option<&Manifest>,
        status: &ModuleStatus,
    ) {
        let state = before.map_or(State::Empty, |b| b.state);
        let writes = matches!(what, Decided::Install | Decided::Upgrade | Decided::Change);
        let told = before.map(|b| (b.state, &b.version, b.maintenance));
        if !writes && told == Some((status.state, &status.version, status.maintenance)) {
            return;
        }
        let reason = match (status.message.as_str(), status.channel.as_str()) {
            _ if what == Decided::Leave => "managed: false".to_owned(),
            ("", "") => "version asked for".to_owned(),
            ("", channel) => format!("channel {channel}"),
            (message, _) => message.to_owned(),
        };
        self.decisions.push(Decision {
            what,
            module: status.name.clone(),
            from: (existing.map(|m| m.spec.version.clone()).unwrap_or_default(), state),
            to: (status.version.clone(), status.state),
            reason,
        });
    }

    /// Deletes a Manifest and says so.
    pub(crate) fn remove(&mut self, manifest: &Manifest, reason: &str) {
        self.delete.push(manifest.name_any());
        let version = manifest.spec.version.clone();
        let state = manifest.status.as_ref().map_or(State::Empty, |s| s.state);
        self.decisions.push(Decision {
            what: Decided::Remove,
            module: manifest.module_name().unwrap_or_default().to_owned(),
            from: (version, state),
            to: (String::new(), State::Deleting),
            reason: reason.to_owned(),
        });
    }
}
