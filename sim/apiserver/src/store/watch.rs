//! Watches read the log by cursor. Nothing is queued: slow ones get 410.

use std::{collections::VecDeque, sync::Arc};

use serde_json::{Value, json};

use super::{
    cluster::Cluster,
    log::Entry,
    options,
    refusal::Refusal,
    request::{Outcome, Request},
    selector::Selector,
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
pub enum Said {
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
    pub said: Said,
    /// Object or `Status`.
    pub object: Value,
}

impl Said {
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
        self.mark(false)
    }

    fn mark(&self, initial_end: bool) -> WatchEvent {
        let mut metadata = json!({"resourceVersion": self.revision.to_string()});
        if initial_end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let mut object = managed::nothing(&self.kind.api_version(), &self.kind.kind, self.kind.zero());
        object["metadata"] = metadata;
        WatchEvent { said: Said::Bookmark, object }
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
        let show = |stored: &Stored| Cluster::show(&self.kind, stored, self.metadata_only);
        match (before, after) {
            (None, Some(after)) => Some(WatchEvent { said: Said::Added, object: show(after) }),
            (Some(_), Some(after)) => Some(WatchEvent { said: Said::Modified, object: show(after) }),
            (Some(before), None) => {
                // The last state, with the deletion's revision.
                let mut object = show(if entry.gone { &entry.after } else { before });
                let revision = Value::String(entry.revision.to_string());
                meta::metadata_mut(&mut object).insert("resourceVersion".into(), revision);
                Some(WatchEvent { said: Said::Deleted, object })
            }
            (None, None) => None,
        }
    }
}

impl Cluster {
    pub(super) fn watch(&self, kind: &Arc<Kind>, request: &Request) -> Result<Outcome, Refusal> {
        let query = &request.query;
        options::of_watch(query)?;
        let selector = Selector::parse(&query.label_selector, &query.field_selector, kind)?;
        let from = Self::parse_revision(&query.resource_version).map_err(|refusal| {
            // Kubernetes words this differently for watches.
            let message = refusal.message.trim_start_matches("invalid resource version: ");
            Refusal::new(500, "", message)
        })?;
        let replay = query.initial_events.unwrap_or(from == 0);
        let mut watching = Watching {
            kind: Arc::clone(kind),
            namespace: request.target.namespace.clone(),
            name: request.target.name.clone(),
            selector,
            metadata_only: query.metadata_only,
            initial: VecDeque::new(),
            marks_initial_end: query.initial_events == Some(true) && query.bookmarks,
            revision: if replay || from == 0 { self.revision } else { from },
            bookmarks: query.bookmarks,
            timeout_seconds: query.timeout_seconds,
        };
        if let Some(floor) = self.floors.get(&kind.storage).filter(|floor| from > 0 && from < **floor) {
            return Err(Refusal::expired(format!("too old resource version: {from} ({floor})")));
        }
        if replay {
            watching.initial = self
                .range(kind, &watching.namespace)
                .filter(|(key, _)| watching.covers(&key.namespace, &key.name))
                .map(|(_, stored)| Arc::clone(stored))
                .collect();
        }
        Ok(Outcome::Watch(Box::new(watching)))
    }

    /// Returns up to `most` events. [`Said::Error`] ends the watch.
    pub fn poll(&self, watching: &mut Watching, most: usize) -> Vec<WatchEvent> {
        let mut events = Vec::new();
        while events.len() < most
            && let Some(stored) = watching.initial.pop_front()
        {
            if watching.selector.matches_stored(&watching.kind, &stored) {
                let object = Self::show(&watching.kind, &stored, watching.metadata_only);
                events.push(WatchEvent { said: Said::Added, object });
            }
        }
        if !watching.initial.is_empty() {
            return events;
        }
        if std::mem::take(&mut watching.marks_initial_end) {
            events.push(watching.mark(true));
        }
        let served = watching.kind.is_builtin() || self.custom.contains_key(&watching.kind.storage);
        let Some(entries) = self.log.since(watching.revision) else {
            let message = format!("too old resource version: {} ({})", watching.revision, self.revision);
            events.push(WatchEvent { said: Said::Error, object: Refusal::expired(message).body() });
            return events;
        };
        for entry in entries {
            if events.len() >= most {
                return events;
            }
            watching.revision = entry.revision;
            events.extend(watching.event(entry));
        }
        // Future revisions are awaited.
        watching.revision = watching.revision.max(self.revision);
        if !served {
            let gone = Refusal::expired("the kind is not served any more");
            events.push(WatchEvent { said: Said::Error, object: gone.body() });
        }
        events
    }
}
