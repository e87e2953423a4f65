//! Decides whether writes are allowed. Every writer asks the gate.

use std::{collections::BTreeSet, fmt, sync::Arc};

use parking_lot::Mutex;
use serde_json::Value;

use crate::key::WorkKey;

/// The engine's permission to write.
#[derive(Clone, Default)]
pub enum Mode {
    /// All writes.
    #[default]
    Live,
    /// No writes in runtimes, except the condition `Paused`. KCP is watched and may be written. No event is acknowledged.
    Paused,
    /// No writes: another engine is active. KCP is watched. No event is acknowledged.
    Standby,
    /// All writes are tried with `dryRun=All`, stored nowhere, and reported to the recorder.
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

/// Target of a write.
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

/// A write that a dry run has tried.
#[derive(Clone, Debug, PartialEq)]
pub struct DryRunWrite {
    /// The target.
    pub side: Side,
    /// `apply`, `status`, `create`, `merge`, `delete` or `finalizers`.
    pub operation: &'static str,
    /// The object, as `Kind namespace/name`.
    pub object: String,
    /// The stored object; null if there is none. May hold Secret data: never log it.
    pub before: Value,
    /// The API server's result; null for a deletion. May hold Secret data: never log it.
    pub after: Value,
}

/// Receives the writes of a dry run. Called from reconciles: must not block.
pub trait Recorder: Send + Sync + 'static {
    /// Records a write.
    fn record(&self, write: DryRunWrite);
}

/// Writes are held, which is no failure. The reconcile is postponed, and nothing is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine is {0} and writes nothing there; the work goes on when it is live")]
pub(crate) struct Held(&'static str);

pub(crate) struct Permit(Option<Arc<dyn Recorder>>);

impl Permit {
    pub(crate) const fn is_dry(&self) -> bool {
        self.0.is_some()
    }

    /// Reports a dry-run write to the recorder. Otherwise does nothing.
    pub(crate) fn record(&self, write: impl FnOnce() -> DryRunWrite) {
        if let Some(recorder) = &self.0 {
            recorder.record(write());
        }
    }
}

#[derive(Debug, Default)]
struct Inner {
    mode: Mode,
    /// Held keys until the mode changes. Bounded by the number of keys.
    held: BTreeSet<WorkKey>,
    /// Kymas whose status reports the pause.
    pause_reported: BTreeSet<String>,
}

/// The engine's gate. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate(Arc<Mutex<Inner>>);

impl Gate {
    pub(crate) fn runtime(&self) -> Result<Permit, Held> {
        match &self.0.lock().mode {
            Mode::Live => Ok(Permit(None)),
            Mode::DryRun(recorder) => Ok(Permit(Some(Arc::clone(recorder)))),
            mode @ (Mode::Paused | Mode::Standby) => Err(Held(mode.label())),
        }
    }

    pub(crate) fn kcp(&self) -> Result<Permit, Held> {
        match &self.0.lock().mode {
            Mode::Live | Mode::Paused => Ok(Permit(None)),
            Mode::DryRun(recorder) => Ok(Permit(Some(Arc::clone(recorder)))),
            Mode::Standby => Err(Held(Mode::Standby.label())),
        }
    }

    pub(crate) fn begin(&self, key: &WorkKey) -> Result<Permit, Held> {
        match key {
            WorkKey::Kyma { .. }
            | WorkKey::Manifest { .. }
            | WorkKey::Catalog { .. }
            | WorkKey::LegacyWatcher { .. }
            | WorkKey::AgentConfig { .. }
            | WorkKey::AgentCertificate { .. }
            // Their writes in KCP decide the content of runtimes; a pause would not revert them.
            | WorkKey::Mandatory { .. }
            | WorkKey::Release { .. } => self.runtime(),
            WorkKey::EventPath { .. } | WorkKey::Watcher { .. } => self.kcp(),
        }
    }

    /// Holds a key. `false` if the mode allows it by now.
    pub(crate) fn hold(&self, key: &WorkKey) -> bool {
        let held = self.begin(key).is_err();
        if held {
            self.0.lock().held.insert(key.clone());
        }
        held && self.begin(key).is_err()
    }

    /// Whether the status of a Kyma has yet to report the pause.
    pub(crate) fn must_report_pause(&self, kyma: &str) -> bool {
        let inner = self.0.lock();
        matches!(inner.mode, Mode::Paused) && !inner.pause_reported.contains(kyma)
    }

    pub(crate) fn pause_reported(&self, kyma: &str) {
        let mut inner = self.0.lock();
        if matches!(inner.mode, Mode::Paused) {
            inner.pause_reported.insert(kyma.to_owned());
        }
    }

    /// Changes the mode and returns the held keys to requeue.
    pub(crate) fn set(&self, mode: Mode) -> BTreeSet<WorkKey> {
        let mut inner = self.0.lock();
        inner.mode = mode;
        inner.pause_reported.clear();
        std::mem::take(&mut inner.held)
    }

    pub(crate) fn mode(&self) -> Mode {
        self.0.lock().mode.clone()
    }
}

#[cfg(test)]
mod tests;
