//! What is reconciled, why, and what waits for it.

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;
use tidewatch_api::State;

use crate::queue;

/// The engine's queue: reconciles by key, with the causes that asked for them and the guards that wait for them.
pub type Queue = queue::worker::WorkQueue<WorkKey, Cause, Guard>;

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

/// Why a reconcile was asked for. Its texts are `T`s: where many are kept, what stands for the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "type")]
pub enum Cause<T = String> {
    /// Something changed in the runtime and its agent said so.
    #[serde(rename_all = "camelCase")]
    Event {
        /// The agent's epoch.
        epoch: T,
        /// The event's number; 0 for an event of the v2 contract, which has none.
        seq: u64,
        /// The watch that saw it.
        watch: T,
        /// The object, as `Kind namespace/name`.
        object: T,
    },
    /// Something changed in KCP.
    #[serde(rename_all = "camelCase")]
    Kcp {
        /// The object, as `Kind name`.
        object: T,
        /// What happened to it.
        change: &'static str,
    },
    /// The engine has just started.
    Start,
    /// The runtime's events are not proven to arrive, so it is looked at.
    FallbackPoll,
    /// It was not looked at as a whole for a long time.
    SafetyResync,
    /// The runtime's agent worked by the configuration that was written for it, and now says that it does not.
    OtherConfiguration,
    /// An event of the v2 contract was told before its change was committed, so this looks once more.
    SecondLook {
        /// The event's object, as `Kind namespace/name`.
        object: T,
    },
    /// A reconcile before has found that at this time the plan may be another one, though nothing changes.
    Due {
        /// The time.
        at: Timestamp,
    },
    /// What may be written is something else now, and this was held before.
    Mode {
        /// What may be written: a label of [`Mode`](crate::gate::Mode).
        mode: &'static str,
    },
    /// A reconcile before did not finish for good.
    #[serde(rename_all = "camelCase")]
    Retry {
        /// What is tried again, as `Kind/name`; another key than the reconcile's own if that asked for this one.
        key: T,
        /// The number of the try: 1 is the first after the reconcile that failed first.
        attempt: u32,
        /// How the reconcile before ended: `waiting` (for something without an event of its own), `kcp` (KCP did not take
        /// what it found), `held` (nothing may be written now), `crowded` (too many wait for the same), `parked` (its runtime does not answer), `answers` (it does again), `deadline`, `panic`, `module` (one of a Kyma's modules failed), or the class of the failure.
        reason: &'static str,
    },
}

impl<T> Cause<T> {
    /// The same with other texts.
    pub(crate) fn map<U>(&self, mut text: impl FnMut(&T) -> U) -> Cause<U> {
        match self {
            Self::Event { epoch, seq, watch, object } => {
                Cause::Event { epoch: text(epoch), seq: *seq, watch: text(watch), object: text(object) }
            }
            Self::Kcp { object, change } => Cause::Kcp { object: text(object), change },
            Self::Start => Cause::Start,
            Self::FallbackPoll => Cause::FallbackPoll,
            Self::SafetyResync => Cause::SafetyResync,
            Self::OtherConfiguration => Cause::OtherConfiguration,
            Self::SecondLook { object } => Cause::SecondLook { object: text(object) },
            Self::Due { at } => Cause::Due { at: *at },
            Self::Mode { mode } => Cause::Mode { mode },
            Self::Retry { key, attempt, reason } => {
                Cause::Retry { key: text(key), attempt: *attempt, reason }
            }
        }
    }
}

impl Cause {
    /// Whether a runtime is looked at as a whole: nothing that was found before is trusted.
    pub(crate) const fn is_whole_look(&self) -> bool {
        matches!(self, Self::FallbackPoll | Self::SafetyResync)
    }

    /// That `key` is tried again after `reason`, for the queue, which counts the tries; see [`Cause::numbered`].
    pub(crate) fn retry(key: &WorkKey, reason: &'static str) -> Self {
        Self::Retry { key: key.to_string(), attempt: 0, reason }
    }

    /// The same, with the number of the try if it is one of `key`.
    pub(crate) fn numbered(self, of: &WorkKey, number: u32) -> Self {
        match self {
            Self::Retry { key, reason, .. } if key == of.to_string() => {
                Self::Retry { key, attempt: number, reason }
            }
            other => other,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retry_has_the_number_of_its_own_keys_try() {
        let kyma = WorkKey::Kyma { kyma: "k".into() };
        let manifest = WorkKey::Manifest { kyma: "k".into(), name: "m".into() };
        let cause = Cause::retry(&kyma, "timeout").numbered(&kyma, 3);
        let third = Cause::Retry { key: kyma.to_string(), attempt: 3, reason: "timeout" };
        assert_eq!(cause, third);
        assert_eq!(cause.numbered(&manifest, 7), third, "it was handed on");
        assert_eq!(Cause::Start.numbered(&kyma, 7), Cause::Start);
    }
}
