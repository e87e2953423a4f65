//! Why reconciles are asked for.

use std::fmt::Display;

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use tidewatch_api::object::ObjectRef;
use tidewatch_planner::watches;

use crate::{key::WorkKey, spans::EventSpan};

/// Why a reconcile was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "type")]
pub enum Trigger {
    /// The agent of the runtime reported a change.
    #[serde(rename_all = "camelCase")]
    Event {
        /// The agent's epoch.
        epoch: String,
        /// The event's number; 0 for an event of the v2 contract, which has none.
        seq: u64,
        /// The watch that saw the change.
        watch: String,
        /// The changed object. Without a name, any object of its kind may have changed.
        #[serde(serialize_with = "text")]
        object: ObjectRef,
        /// Its spans until the reconcile ends.
        #[serde(skip)]
        span: EventSpan,
    },
    /// Something changed in KCP.
    #[serde(rename_all = "camelCase")]
    Kcp {
        /// The key of the changed object.
        #[serde(serialize_with = "text")]
        object: WorkKey,
        /// The change.
        change: Change,
    },
    /// The engine has started.
    Start,
    /// Events of the runtime are not proven to arrive, so it is polled.
    FallbackPoll,
    /// The last full look is too long ago.
    SafetyResync,
    /// The agent's configuration differs from the one that the engine has written.
    OtherConfiguration,
    /// An event of the v2 contract comes before its change is committed, so the object is read once more.
    SecondLook {
        /// The event's object.
        #[serde(serialize_with = "text")]
        object: ObjectRef,
    },
    /// A plan may differ at this time, though nothing changes.
    Due {
        /// The time.
        at: Timestamp,
    },
    /// The engine's mode has changed, and this key was held before.
    Mode {
        /// The label of the new [`Mode`](crate::gate::Mode).
        mode: &'static str,
    },
    /// An earlier reconcile did not finish.
    #[serde(rename_all = "camelCase")]
    Retry {
        /// The key of that reconcile. It differs from the reconcile's own key if another reconcile asked for this one.
        #[serde(serialize_with = "text")]
        key: WorkKey,
        /// The number of the attempt: 1 is the first one after the reconcile that failed first.
        attempt: u32,
        /// How that reconcile ended.
        reason: Reason,
    },
}

/// A change in KCP that asks for a reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// The object was added.
    Added,
    /// The object was changed.
    Changed,
    /// The object was deleted.
    Deleted,
    /// Another Kyma with the same runtime is being deleted, or has another runtime.
    OtherKymaLeaves,
    /// Another Kyma with the same runtime is gone.
    OtherKymaGone,
    /// The kubeconfig Secret was changed.
    Kubeconfig,
    /// A Watcher was added.
    WatcherAdded,
    /// A Watcher was changed.
    WatcherChanged,
    /// A Watcher was deleted.
    WatcherDeleted,
    /// Another client has removed a finalizer of the engine.
    FinalizerRemoved,
    /// Another client has written the status.
    StatusOverwritten,
    /// Another client has written the status of a Manifest of the Kyma.
    ManifestStatusOverwritten,
    /// The status of a Manifest has changed.
    ManifestStatus,
    /// A Manifest is gone.
    ManifestDeleted,
    /// The kinds of a Manifest have changed.
    ManifestKinds,
    /// A Manifest has become one of another Kyma.
    ManifestTaken,
    /// A ModuleReleaseMeta has changed.
    ModuleRelease,
    /// A ModuleTemplate has changed.
    ModuleTemplate,
    /// The image pull Secret has changed.
    PullSecret,
    /// A Secret that modules receive has changed.
    ModuleSecret,
    /// The central module policy has changed.
    CentralPolicy,
    /// The policy of maintenance windows has changed.
    MaintenancePolicy,
    /// The list of modules in the runtime was read.
    ModuleList,
    /// Another Manifest has released an object that both have.
    SharedObjectReleased,
    /// The runtime has lost the namespace of the engine.
    NamespaceMissing,
    /// The runtime has lost the CRDs of the catalog.
    CatalogCrdsMissing,
}

impl Change {
    /// The change in a few words, for `explain`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Changed => "changed",
            Self::Deleted => "deleted",
            Self::OtherKymaLeaves => "another Kyma leaves the runtime",
            Self::OtherKymaGone => "another Kyma of the runtime is gone",
            Self::Kubeconfig => "kubeconfig secret changed",
            Self::WatcherAdded => "watcher added",
            Self::WatcherChanged => "watcher changed",
            Self::WatcherDeleted => "watcher deleted",
            Self::FinalizerRemoved => "finalizer removed by another client",
            Self::StatusOverwritten => "status written by another client",
            Self::ManifestStatusOverwritten => "manifest status written by another client",
            Self::ManifestStatus => "manifest status changed",
            Self::ManifestDeleted => "manifest deleted",
            Self::ManifestKinds => "kinds of a manifest changed",
            Self::ManifestTaken => "manifest moved to another Kyma",
            Self::ModuleRelease => "module release changed",
            Self::ModuleTemplate => "module template changed",
            Self::PullSecret => "image pull secret changed",
            Self::ModuleSecret => "module secret changed",
            Self::CentralPolicy => "central policy changed",
            Self::MaintenancePolicy => "maintenance policy changed",
            Self::ModuleList => "list of modules read",
            Self::SharedObjectReleased => "shared object released",
            Self::NamespaceMissing => "namespace missing in the runtime",
            Self::CatalogCrdsMissing => "catalog's CRDs missing in the runtime",
        }
    }

    /// Whether the engine's own reconciles of Manifests make it.
    #[must_use]
    pub const fn is_progress(self) -> bool {
        matches!(self, Self::ManifestStatus | Self::ManifestDeleted)
    }

    /// Whether another client has changed an engine-owned field. Corrected without urgency: such a client may repeat its change.
    #[must_use]
    pub const fn is_interference(self) -> bool {
        matches!(self, Self::StatusOverwritten | Self::ManifestStatusOverwritten | Self::FinalizerRemoved)
    }
}

/// Why a reconcile is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// It waits for a condition that no event reports.
    Waiting,
    /// KCP rejected its result, or the index was outdated.
    Kcp,
    /// The mode allows no writes.
    Held,
    /// The capacity for slow reconciles was taken.
    Crowded,
    /// The runtime is suspended.
    Suspended,
    /// The runtime answers again.
    Answers,
    /// It took longer than its deadline.
    Deadline,
    /// It panicked.
    Panic,
    /// It failed, with an error of this class.
    Failed(&'static str),
}

impl Reason {
    /// One word, for metrics and `explain`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Kcp => "kcp",
            Self::Held => "held",
            Self::Crowded => "crowded",
            Self::Suspended => "suspended",
            Self::Answers => "answers",
            Self::Deadline => "deadline",
            Self::Panic => "panic",
            Self::Failed(class) => class,
        }
    }

    /// Whether the earlier reconcile has begun, and has recorded its remaining work.
    #[must_use]
    pub const fn was_begun(self) -> bool {
        !matches!(self, Self::Held | Self::Crowded | Self::Suspended | Self::Answers)
    }
}

impl Serialize for Change {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.label())
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.label())
    }
}

fn text<S: Serializer>(value: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

impl Trigger {
    /// Whether it asks for a full look: no earlier result counts.
    pub(crate) const fn is_full_look(&self) -> bool {
        matches!(self, Self::FallbackPoll | Self::SafetyResync)
    }

    /// The object of an event, or of its second look.
    pub(crate) const fn object(&self) -> Option<&ObjectRef> {
        match self {
            Self::Event { object, .. } | Self::SecondLook { object } => Some(object),
            _ => None,
        }
    }

    /// One word, for spans.
    pub(crate) const fn label(&self) -> &'static str {
        match self {
            Self::Event { .. } => "event",
            Self::Kcp { .. } => "kcp",
            Self::Start => "start",
            Self::FallbackPoll => "fallback_poll",
            Self::SafetyResync => "safety_resync",
            Self::OtherConfiguration => "other_configuration",
            Self::SecondLook { .. } => "second_look",
            Self::Due { .. } => "due",
            Self::Mode { .. } => "mode",
            Self::Retry { .. } => "retry",
        }
    }

    /// The spans of an event.
    pub(crate) const fn span(&self) -> Option<&EventSpan> {
        match self {
            Self::Event { span, .. } => Some(span),
            _ => None,
        }
    }

    /// This trigger without its spans, to be kept longer than the reconcile.
    pub(crate) fn without_span(mut self) -> Self {
        if let Self::Event { span, .. } = &mut self {
            *span = EventSpan::default();
        }
        self
    }

    /// Whether it is this change in KCP.
    pub(crate) fn is_change(&self, expected: Change) -> bool {
        matches!(self, Self::Kcp { change, .. } if *change == expected)
    }

    /// A retry of `key`. The queue counts the attempts; see [`Trigger::numbered`].
    pub(crate) fn retry(key: &WorkKey, reason: Reason) -> Self {
        Self::Retry { key: key.clone(), attempt: 0, reason }
    }

    /// This trigger, with the number of the attempt if it is a retry of `key`.
    pub(crate) fn numbered(self, own: &WorkKey, number: u32) -> Self {
        match self {
            Self::Retry { key, reason, .. } if key == *own => Self::Retry { key, attempt: number, reason },
            other => other,
        }
    }
}

/// The triggers of one reconcile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Triggers<'a> {
    /// The listed ones: the queue keeps a bounded number.
    pub(crate) listed: &'a [Trigger],
    /// The number of all, with those that are not listed.
    pub(crate) count: usize,
}

impl Triggers<'_> {
    /// Whether there are triggers, and all of them match.
    pub(crate) fn are_all(&self, matches: impl Fn(&Trigger) -> bool) -> bool {
        !self.listed.is_empty() && self.listed.len() >= self.count && self.listed.iter().all(matches)
    }

    /// Whether a trigger may match. Unlisted triggers count as matching.
    pub(crate) fn may_include(&self, matches: impl Fn(&Trigger) -> bool) -> bool {
        self.listed.len() < self.count || self.listed.iter().any(matches)
    }
}

/// Whether it is an event of a CRD or an `APIService`, which decide the served kinds.
pub(crate) fn is_of_definition(trigger: &Trigger) -> bool {
    let is = |object: &ObjectRef| watches::definitions().iter().any(|kind| kind.same_kind(&object.gvk));
    matches!(trigger, Trigger::Event { object, .. } if is(object))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tidewatch_api::object::Gvk;

    use super::*;

    #[test]
    fn a_retry_carries_the_attempt_of_its_own_key() {
        let kyma = WorkKey::Kyma { kyma: "k".into() };
        let manifest = WorkKey::Manifest { kyma: "k".into(), name: "m".into() };
        let trigger = Trigger::retry(&kyma, Reason::Failed("timeout")).numbered(&kyma, 3);
        let third = Trigger::Retry { key: kyma.clone(), attempt: 3, reason: Reason::Failed("timeout") };
        assert_eq!(trigger, third);
        assert_eq!(trigger.numbered(&manifest, 7), third, "the retry of another key");
        assert_eq!(Trigger::Start.numbered(&kyma, 7), Trigger::Start);
    }

    #[test]
    fn triggers_serialize_objects_keys_and_changes_as_text() {
        let object =
            ObjectRef { gvk: Gvk::of("apps/v1", "Deployment"), namespace: "n".into(), name: "a".into() };
        let span = EventSpan::default();
        let event = Trigger::Event { epoch: "e".into(), seq: 7, watch: "w".into(), object, span };
        assert_eq!(
            json!(event),
            json!({"type": "event", "epoch": "e", "seq": 7, "watch": "w", "object": "Deployment.apps n/a"})
        );
        let key = WorkKey::Kyma { kyma: "k".into() };
        assert_eq!(
            json!(Trigger::Kcp { object: key.clone(), change: Change::Added }),
            json!({"type": "kcp", "object": "Kyma/k", "change": "added"})
        );
        assert_eq!(
            json!(Trigger::retry(&key, Reason::Held)),
            json!({"type": "retry", "key": "Kyma/k", "attempt": 0, "reason": "held"})
        );
    }
}
