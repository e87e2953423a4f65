//! Keys and guards of reconciles.

use std::fmt;

use serde::Serialize;
use tidewatch_api::State;

use crate::{queue, trigger::Trigger};

/// The engine's queue: keys with their triggers and guards.
pub type Queue = queue::worker::WorkQueue<WorkKey, Trigger, Guard>;

/// The subject of a reconcile. All KCP objects live in the engine's one namespace.
///
/// A new kind needs a reconciler (`reconcile.rs`), its writes in `gate.rs`, and the triggers that queue it: `watch.rs` for changes in KCP,
/// `followups.rs` for other reconciles, the receiver's `route.rs` for agents' events. If its reconciler writes a status,
/// `index::writes::status_object` recognises the write. `docs/reference/metrics.md` lists the kinds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WorkKey {
    /// A Kyma: its modules and both its statuses.
    Kyma {
        /// Name of the Kyma in KCP.
        kyma: String,
    },
    /// The event path of a runtime: its condition on the Kyma.
    EventPath {
        /// Name of the Kyma.
        kyma: String,
    },
    /// A Manifest: the objects of one module in one runtime.
    Manifest {
        /// Name of its Kyma.
        kyma: String,
        /// Name of the Manifest.
        name: String,
    },
    /// The watches and the role of a runtime's agent.
    AgentConfig {
        /// Name of the Kyma in KCP.
        kyma: String,
    },
    /// The certificate signing request of a runtime's agent.
    AgentCertificate {
        /// Name of the Kyma in KCP.
        kyma: String,
    },
    /// The Manifests of a Kyma's mandatory modules.
    Mandatory {
        /// Name of the Kyma in KCP.
        kyma: String,
    },
    /// A mandatory module's release: its finalizers, and the deletion of its Manifests everywhere.
    Release {
        /// The module.
        module: String,
    },
    /// The catalog in a runtime: the part of KCP's catalog visible to its user.
    Catalog {
        /// Name of the Kyma in KCP.
        kyma: String,
    },
    /// The removal of the Go manager's watcher in a runtime.
    LegacyWatcher {
        /// Name of the Kyma in KCP.
        kyma: String,
    },
    /// The status of a Watcher.
    Watcher {
        /// Name of the Watcher.
        name: String,
    },
}

impl WorkKey {
    /// The Kyma, which identifies the runtime. Empty for a Watcher and a release, which concern all runtimes.
    #[must_use]
    pub fn kyma(&self) -> &str {
        match self {
            Self::Kyma { kyma }
            | Self::EventPath { kyma }
            | Self::Manifest { kyma, .. }
            | Self::Mandatory { kyma }
            | Self::Catalog { kyma }
            | Self::LegacyWatcher { kyma }
            | Self::AgentConfig { kyma }
            | Self::AgentCertificate { kyma } => kyma,
            Self::Release { .. } | Self::Watcher { .. } => "",
        }
    }

    /// Whether its reconcile calls the runtime's API server, so that the runtime's budget limits it.
    #[must_use]
    pub const fn calls_runtime(&self) -> bool {
        match self {
            Self::Kyma { .. }
            | Self::Manifest { .. }
            | Self::Catalog { .. }
            | Self::LegacyWatcher { .. }
            | Self::AgentConfig { .. }
            | Self::AgentCertificate { .. } => true,
            Self::EventPath { .. } | Self::Mandatory { .. } | Self::Release { .. } | Self::Watcher { .. } => {
                false
            }
        }
    }

    /// Whether its reconcile records the object versions that it reads and writes, so that their events are echoes.
    #[must_use]
    pub const fn has_echoes(&self) -> bool {
        match self {
            Self::Kyma { .. } | Self::Manifest { .. } | Self::Catalog { .. } => true,
            Self::EventPath { .. }
            | Self::AgentConfig { .. }
            | Self::AgentCertificate { .. }
            | Self::Mandatory { .. }
            | Self::LegacyWatcher { .. }
            | Self::Release { .. }
            | Self::Watcher { .. } => false,
        }
    }

    /// The Manifest.
    #[must_use]
    pub fn manifest(&self) -> Option<&str> {
        match self {
            Self::Manifest { name, .. } => Some(name),
            _ => None,
        }
    }

    /// `Kyma`, `EventPath`, `Manifest`, `Mandatory`, `AgentConfig`, `AgentCertificate`, `Catalog`, `LegacyWatcher`, `Release` or `Watcher`, for metrics.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Kyma { .. } => "Kyma",
            Self::EventPath { .. } => "EventPath",
            Self::Manifest { .. } => "Manifest",
            Self::Mandatory { .. } => "Mandatory",
            Self::Release { .. } => "Release",
            Self::Catalog { .. } => "Catalog",
            Self::LegacyWatcher { .. } => "LegacyWatcher",
            Self::AgentConfig { .. } => "AgentConfig",
            Self::AgentCertificate { .. } => "AgentCertificate",
            Self::Watcher { .. } => "Watcher",
        }
    }
}

impl queue::Key for WorkKey {
    type Group = String;

    fn group(&self) -> String {
        self.kyma().to_owned()
    }
}

impl fmt::Display for WorkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kyma { kyma } => write!(f, "Kyma/{kyma}"),
            Self::EventPath { kyma } => write!(f, "EventPath/{kyma}"),
            Self::Manifest { name, .. } => write!(f, "Manifest/{name}"),
            Self::Mandatory { kyma } => write!(f, "Mandatory/{kyma}"),
            Self::Catalog { kyma } => write!(f, "Catalog/{kyma}"),
            Self::LegacyWatcher { kyma } => write!(f, "LegacyWatcher/{kyma}"),
            Self::Release { module } => write!(f, "Release/{module}"),
            Self::AgentConfig { kyma } => write!(f, "AgentConfig/{kyma}"),
            Self::AgentCertificate { kyma } => write!(f, "AgentCertificate/{kyma}"),
            Self::Watcher { name } => write!(f, "Watcher/{name}"),
        }
    }
}

/// Waits for a reconcile to finish. Dropping it is no acknowledgement.
pub trait Acknowledge: Send + 'static {
    /// A reconcile that observed the change has finished, or its result is persisted. It started after the guard was queued, or read or
    /// wrote that very object version.
    fn finished(self: Box<Self>);

    /// Whether the guard is still needed. Endless retries drop unneeded guards so that they do not accumulate.
    fn is_wanted(&self) -> bool {
        true
    }
}

/// A waiter for a reconcile.
pub type Guard = Box<dyn Acknowledge>;

/// Outcome of a reconcile, for history and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeKind {
    /// Nothing to do until a change.
    Done,
    /// It waits for an event or a recheck.
    Waiting,
    /// It failed, and the status reports the failure.
    Failed,
    /// It failed, and the failure could not be written.
    Unreported,
}

impl OutcomeKind {
    /// A stable word for metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Waiting => "waiting",
            Self::Failed => "failed",
            Self::Unreported => "unreported",
        }
    }
}

/// A state and its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Error or Warning.
    pub state: State,
    /// The cause and the remedy.
    pub message: String,
    /// Whether a full look found it; `false` if something could not be read.
    pub is_found: bool,
}
