//! Watches: a cursor into the log. Nothing is queued for a watch that is slow; it gets 410 when it falls behind.

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

/// A watch that has begun.
#[derive(Debug)]
pub struct Watching {
    pub(crate) kind: Arc<Kind>,
    namespace: String,
    name: String,
    selector: Selector,
    metadata_only: bool,
    /// What was there when it began, as far as it is not yet told.
    initial: VecDeque<Arc<Stored>>,
    /// Whether the end of `initial` is told by a bookmark.
    marks_initial_end: bool,
    /// Told up to here.
    revision: u64,
    /// Whether it takes bookmarks.
    pub bookmarks: bool,
    /// After how many seconds the client wants it to end.
    pub timeout_seconds: Option<u64>,
}

/// What kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// An object is there, or begins to match.
    Added,
    /// It changed.
    Modified,
    /// It is gone, or matches no more.
    Deleted,
    /// Nothing happened up to this resourceVersion.
    Bookmark,
    /// The watch ends.
    Error,
}

/// An event of a watch.
#[derive(Clone, Debug, PartialEq)]
pub struct WatchEvent {
    /// What happened.
    pub said: Said,
    /// The object, or a `Status`.
    pub object: Value,
}

impl Said {
    /// As it is sent.
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
    /// A bookmark at where the watch stands.
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
                // The object as it was, at the revision at which it went.
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
            // A watch says so in other words than a list.
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

    /// What the watch has to say now, at most `most` events. After an event of kind [`Said::Error`] it has ended.
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
        // One from the future waits for it.
        watching.revision = watching.revision.max(self.revision);
        if !served {
            let gone = Refusal::expired("the kind is not served any more");
            events.push(WatchEvent { said: Said::Error, object: gone.body() });
        }
        events
    }
}
