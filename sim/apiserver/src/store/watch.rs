//! Watches read the log by cursor. Nothing is queued: slow ones get 410.

use std::{collections::VecDeque, sync::Arc};

use serde_json::{Value, json};

use super::{
    log::Entry,
    options,
    refusal::Refusal,
    render::show,
    selector::Selector,
    state::State,
    target::{Query, Target},
};
use crate::{
    fields::managed,
    kinds::Kind,
    object::{Stored, meta},
};

/// An open watch.
#[derive(Debug)]
pub struct Watching {
    pub(crate) kind: Arc<Kind>,
    namespace: String,
    name: String,
    selector: Selector,
    metadata_only: bool,
    /// Initial objects still to be sent.
    initial: VecDeque<Arc<Stored>>,
    /// Whether a bookmark ends `initial`.
    marks_initial_end: bool,
    /// Last sent.
    revision: u64,
    /// Whether the client wants bookmarks.
    pub bookmarks: bool,
    /// Requested duration.
    pub timeout_seconds: Option<u64>,
}

/// Event types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// New or newly matching.
    Added,
    /// Changed.
    Modified,
    /// Gone or no longer matching.
    Deleted,
    /// Current resourceVersion.
    Bookmark,
    /// End of the watch.
    Error,
}

/// A watch event.
#[derive(Clone, Debug, PartialEq)]
pub struct WatchEvent {
    /// Type.
    pub event_type: EventType,
    /// Object or `Status`.
    pub object: Value,
}

impl EventType {
    /// Wire name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
            Self::Bookmark => "BOOKMARK",
            Self::Error => "ERROR",
        }
    }
}

impl Watching {
    /// Creates a bookmark.
    pub fn bookmark(&self) -> WatchEvent {
        self.bookmark_at(false)
    }

    fn bookmark_at(&self, initial_end: bool) -> WatchEvent {
        let mut metadata = json!({"resourceVersion": self.revision.to_string()});
        if initial_end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let mut object = managed::nothing(&self.kind.api_version(), &self.kind.kind, self.kind.zero());
        object["metadata"] = metadata;
        WatchEvent { event_type: EventType::Bookmark, object }
    }

    fn covers(&self, namespace: &str, name: &str) -> bool {
        (self.namespace.is_empty() || self.namespace == namespace)
            && (self.name.is_empty() || self.name == name)
    }

    fn event(&self, entry: &Entry) -> Option<WatchEvent> {
        if entry.key.resource != self.kind.storage || !self.covers(&entry.key.namespace, &entry.key.name) {
            return None;
        }
        let matches = |stored: &&Stored| self.selector.matches_stored(&self.kind, stored);
        let before = entry.before.as_deref().filter(matches);
        let after = Some(&*entry.after).filter(|_| !entry.gone).filter(matches);
        let show = |stored: &Stored| show(&self.kind, stored, self.metadata_only);
        match (before, after) {
            (None, Some(after)) => Some(WatchEvent { event_type: EventType::Added, object: show(after) }),
            (Some(_), Some(after)) => {
                Some(WatchEvent { event_type: EventType::Modified, object: show(after) })
            }
            (Some(before), None) => {
                // The last state, with the deletion's revision.
                let mut object = show(if entry.gone { &entry.after } else { before });
                let revision = Value::String(entry.revision.to_string());
                meta::metadata_mut(&mut object).insert("resourceVersion".into(), revision);
                Some(WatchEvent { event_type: EventType::Deleted, object })
            }
            (None, None) => None,
        }
    }
}

pub(super) fn start(
    state: &State,
    kind: &Arc<Kind>,
    target: &Target,
    query: &Query,
) -> Result<Watching, Refusal> {
    let list = &query.list;
    options::of_watch(query)?;
    let selector = Selector::parse(&list.label_selector, &list.field_selector, kind)?;
    let from = options::revision(&list.resource_version).map_err(|refusal| {
        // Kubernetes words this differently for watches.
        let message = refusal.message.trim_start_matches("invalid resource version: ");
        Refusal::new(500, "", message)
    })?;
    let replay = list.initial_events.unwrap_or(from == 0);
    let mut watching = Watching {
        kind: Arc::clone(kind),
        namespace: target.namespace.clone(),
        name: target.name.clone(),
        selector,
        metadata_only: query.metadata_only,
        initial: VecDeque::new(),
        marks_initial_end: list.initial_events == Some(true) && list.bookmarks,
        revision: if replay || from == 0 { state.objects.revision() } else { from },
        bookmarks: list.bookmarks,
        timeout_seconds: list.timeout_seconds,
    };
    if let Some(floor) = state.served.floor(kind).filter(|floor| from > 0 && from < *floor) {
        return Err(Refusal::expired(format!("too old resource version: {from} ({floor})")));
    }
    if replay {
        watching.initial = state
            .objects
            .range(kind, &watching.namespace)
            .filter(|(key, _)| watching.covers(&key.namespace, &key.name))
            .map(|(_, stored)| Arc::clone(stored))
            .collect();
    }
    Ok(watching)
}

/// Returns up to `limit` events. [`EventType::Error`] ends the watch.
pub(super) fn poll(state: &State, watching: &mut Watching, limit: usize) -> Vec<WatchEvent> {
    let mut events = Vec::new();
    while events.len() < limit
        && let Some(stored) = watching.initial.pop_front()
    {
        if watching.selector.matches_stored(&watching.kind, &stored) {
            let object = show(&watching.kind, &stored, watching.metadata_only);
            events.push(WatchEvent { event_type: EventType::Added, object });
        }
    }
    if !watching.initial.is_empty() {
        return events;
    }
    if std::mem::take(&mut watching.marks_initial_end) {
        events.push(watching.bookmark_at(true));
    }
    let served = state.served.has(&watching.kind);
    let Some(entries) = state.objects.log().since(watching.revision) else {
        let message =
            format!("too old resource version: {} ({})", watching.revision, state.objects.revision());
        events.push(WatchEvent { event_type: EventType::Error, object: Refusal::expired(message).body() });
        return events;
    };
    for entry in entries {
        if events.len() >= limit {
            return events;
        }
        watching.revision = entry.revision;
        events.extend(watching.event(entry));
    }
    // Future revisions are awaited.
    watching.revision = watching.revision.max(state.objects.revision());
    if !served {
        let gone = Refusal::expired("the kind is not served any more");
        events.push(WatchEvent { event_type: EventType::Error, object: gone.body() });
    }
    events
}
