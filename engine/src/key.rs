//! What is reconciled, why, and what waits for it.

use std::fmt;

use serde::Serialize;
use tidewatch_api::State;

use crate::{queue, trigger::Trigger};

/// The engine's queue: reconciles by key, with the causes that asked for them and the guards that wait for them.
pub type Queue = queue::worker::WorkQueue<WorkKey, Trigger, Guard>;

/// What a reconcile is about. Everything lives in the one namespace the engine is configured for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WorkKey {
    /// A Kyma: its list of modules, and both its statuses.
    Kyma {
        /// Name of the Kyma in KCP.
        kyma: String,
    },
    /// What the way of a runtime's events is worth: its condition on the Kyma.
    EventPath {
        /// Name of the Kyma.
        kyma: String,
    },
    /// A Manifest: the objects of one module in one runtime.
    Manifest {
        /// Name of the Kyma it belongs to.
        kyma: String,
        /// Its own name.
        name: String,
    },
    /// What a runtime's agent watches, and its role.
    AgentConfig {
        /// Name of the Kyma in KCP.
        kyma: String,
    },
    /// The Manifests of a Kyma's mandatory modules.
    Mandatory {
        /// Name of the Kyma in KCP.
        kyma: String,
    },
    /// The finalizers of what makes a module mandatory, and its Manifests everywhere when that is deleted.
    Release {
        /// The module.
        module: String,
    },
    /// The catalog in a runtime: what its user may see of KCP's.
    Catalog {
        /// Name of the Kyma in KCP.
        kyma: String,
    },
    /// The Go manager's watcher in a runtime, which goes when it is not needed any more.
    LegacyWatcher {
        /// Name of the Kyma in KCP.
        kyma: String,
    },
    /// The status of a Watcher.
    Watcher {
        /// Its name.
        name: String,
    },
}

impl WorkKey {
    /// The Kyma this is about, which stands for the runtime. Empty for what is about all of them: a Watcher, a release.
    #[must_use]
    pub fn kyma(&self) -> &str {
        match self {
            Self::Kyma { kyma }
            | Self::EventPath { kyma }
            | Self::Manifest { kyma, .. }
            | Self::Mandatory { kyma }
            | Self::Catalog { kyma }
            | Self::LegacyWatcher { kyma }
            | Self::AgentConfig { kyma } => kyma,
            Self::Release { .. } | Self::Watcher { .. } => "",
        }
    }

    /// `Kyma`, `EventPath`, `Manifest`, `Mandatory`, `AgentConfig`, `Catalog`, `LegacyWatcher`, `Release` or `Watcher`, for metrics.
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
            Self::Watcher { name } => write!(f, "Watcher/{name}"),
        }
    }
}

/// Something that waits for a reconcile to finish. Dropping it is not an acknowledgement.
pub trait Acknowledge: Send + 'static {
    /// A reconcile that could see what this is about has finished, or what it found is persisted: it started after this was handed over, or has
    /// read or written that very version of the object.
    fn finished(self: Box<Self>);

    /// Whether anybody still waits. Work that is tried again for ever drops those for whom nobody does, so that
    /// they do not add up.
    fn is_wanted(&self) -> bool {
        true
    }
}

/// What waits for work to finish.
pub type Guard = Box<dyn Acknowledge>;

/// How a reconcile ended, for history and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeKind {
    /// Nothing more to do until something changes.
    Done,
    /// It waits for something in the runtime and looks again, or hears of it by an event.
    Waiting,
    /// It failed and the failure stands in the status.
    Failed,
    /// It failed and the failure could not be written down either.
    Lost,
}

impl OutcomeKind {
    /// A stable word for metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Waiting => "waiting",
            Self::Failed => "failed",
            Self::Lost => "lost",
        }
    }
}

/// A state and the text that goes with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Error or Warning.
    pub state: State,
    /// The cause and what ends it.
    pub message: String,
    /// Whether all was looked at, and this was found; and not that something could not be looked at.
    pub is_found: bool,
}
