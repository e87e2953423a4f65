//! Events of a watch, and why it stops.

use super::super::index::ObjectKey;
use kube::runtime::watcher;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ObjectEvent {
    ListBegins,
    Applied(ObservedObject),
    Deleted(ObservedObject),
    ListEnds,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObservedObject {
    pub(super) key: ObjectKey,
    pub(super) uid: String,
    pub(super) resource_version: String,
    /// Whether the fingerprint hashes content, which can return to an earlier value.
    pub(super) content: bool,
    /// `None`: needs the whole object.
    pub(super) fingerprint: Option<u64>,
}

impl ObjectEvent {
    pub(super) fn new<K>(event: watcher::Event<K>, observed: &impl Fn(K) -> ObservedObject) -> Self {
        match event {
            watcher::Event::Init => Self::ListBegins,
            watcher::Event::InitApply(object) | watcher::Event::Apply(object) => {
                Self::Applied(observed(object))
            }
            watcher::Event::Delete(object) => Self::Deleted(observed(object)),
            watcher::Event::InitDone => Self::ListEnds,
        }
    }
}

/// Why a watch stops, to start again or to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopReason {
    /// The kind has no generation: watch whole objects.
    NeedsWhole,
    KindGone,
    /// The API server does not stream lists: use pages.
    NoStreaming,
    /// Conversion failed: try another version.
    Unconverted,
    Broken,
    /// The settings have changed.
    Renewed,
    /// The sender has ended.
    Closed,
}
