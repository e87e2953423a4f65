//! Whether anything may be written now. Every writer asks, whatever has brought it there.

use std::{collections::BTreeSet, fmt, sync::Arc};

use parking_lot::Mutex;
use serde_json::Value;

use crate::key::WorkKey;

/// What the engine may write.
#[derive(Clone, Default)]
pub enum Mode {
    /// Everything.
    #[default]
    Live,
    /// Nothing in runtimes. KCP is watched, and what is found may be written there. No event is acknowledged.
    Paused,
    /// Nothing anywhere: another engine works. KCP is watched. No event is acknowledged.
    Standby,
    /// Everything is tried (`dryRun=All`) and nothing is stored; the recorder hears of each write.
    DryRun(Arc<dyn Recorder>),
}

impl Mode {
    /// One word, for metrics and logs.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Paused => "paused",
            Self::Standby => "standby",
            Self::DryRun(_) => "dry_run",
        }
    }
}

impl fmt::Debug for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// Where something would be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Side {
    /// In KCP.
    Kcp,
    /// In a runtime.
    Runtime {
        /// Name of its Kyma.
        kyma: String,
    },
}

/// A write that was tried and not stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Tried {
    /// Where.
    pub side: Side,
    /// `apply`, `status`, `create`, `merge`, `delete` or `finalizers`.
    pub operation: &'static str,
    /// The object, as `Kind namespace/name`.
    pub object: String,
    /// What is stored; null if there is nothing. May hold Secret data: not for logs.
    pub before: Value,
    /// What the API server made of it; null for a deletion. May hold Secret data: not for logs.
    pub answer: Value,
}

/// Hears of the writes of a dry run. Called from reconciles: must not block.
pub trait Recorder: Send + Sync + 'static {
    /// A write was tried.
    fn tried(&self, write: Tried);
}

/// Nothing may be written there now. No failure: the work waits as it is, and nobody is told that it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine is {0} and writes nothing there; the work goes on when it is live")]
pub(crate) struct Held(&'static str);

/// Leave to write.
pub(crate) struct Permit(Option<Arc<dyn Recorder>>);

impl Permit {
    /// Whether the API server is to be asked to store nothing.
    pub(crate) const fn is_dry(&self) -> bool {
        self.0.is_some()
    }

    /// Tells the recorder, in a dry run.
    pub(crate) fn tried(&self, tried: impl FnOnce() -> Tried) {
        if let Some(recorder) = &self.0 {
            recorder.tried(tried());
        }
    }
}

#[derive(Debug, Default)]
struct Inner {
    mode: Mode,
    /// Work that was stopped, until the mode changes. At most the keys there are.
    held: BTreeSet<WorkKey>,
    /// Kymas that say that the engine is paused.
    told: BTreeSet<String>,
}

/// The engine's one gate. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate(Arc<Mutex<Inner>>);

impl Gate {
    /// Leave to write in runtimes.
    pub(crate) fn runtime(&self) -> Result<Permit, Held> {
        match &self.0.lock().mode {
            Mode::Live => Ok(Permit(None)),
            Mode::DryRun(recorder) => Ok(Permit(Some(Arc::clone(recorder)))),
            mode @ (Mode::Paused | Mode::Standby) => Err(Held(mode.label())),
        }
    }

    /// Leave to write in KCP.
    pub(crate) fn kcp(&self) -> Result<Permit, Held> {
        match &self.0.lock().mode {
            Mode::Live | Mode::Paused => Ok(Permit(None)),
            Mode::DryRun(recorder) => Ok(Permit(Some(Arc::clone(recorder)))),
            Mode::Standby => Err(Held(Mode::Standby.label())),
        }
    }

    /// Leave to begin a piece of work.
    pub(crate) fn begin(&self, key: &WorkKey) -> Result<Permit, Held> {
        match key {
            WorkKey::Kyma { .. }
            | WorkKey::Manifest { .. }
            | WorkKey::Catalog { .. }
            | WorkKey::LegacyWatcher { .. }
            | WorkKey::AgentConfig { .. }
            // What they write in KCP is what runtimes are to become: no pause would take it back.
            | WorkKey::Mandatory { .. }
            | WorkKey::Release { .. } => self.runtime(),
            WorkKey::EventPath { .. } | WorkKey::Watcher { .. } => self.kcp(),
        }
    }

    /// Remembers work that was stopped. `false` if it may go on by now.
    pub(crate) fn hold(&self, key: &WorkKey) -> bool {
        let held = self.begin(key).is_err();
        if held {
            self.0.lock().held.insert(key.clone());
        }
        held && self.begin(key).is_err()
    }

    /// Whether a Kyma does not say yet that the engine is paused, and is to.
    pub(crate) fn is_to_say(&self, kyma: &str) -> bool {
        let inner = self.0.lock();
        matches!(inner.mode, Mode::Paused) && !inner.told.contains(kyma)
    }

    /// A Kyma says that the engine is paused.
    pub(crate) fn has_said(&self, kyma: &str) {
        let mut inner = self.0.lock();
        if matches!(inner.mode, Mode::Paused) {
            inner.told.insert(kyma.to_owned());
        }
    }

    /// Changes the mode and gives back the work that was stopped, to be asked for again.
    pub(crate) fn set(&self, mode: Mode) -> BTreeSet<WorkKey> {
        let mut inner = self.0.lock();
        inner.mode = mode;
        inner.told.clear();
        std::mem::take(&mut inner.held)
    }

    /// The mode.
    pub(crate) fn mode(&self) -> Mode {
        self.0.lock().mode.clone()
    }
}

#[cfg(test)]
mod tests;
