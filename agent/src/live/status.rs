//! What to say about the configuration at work.

use crate::{config::ConfigMapRef, observe::condition::shortened};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::sync::Arc;
use tidewatch_wire::v3;
use tokio::sync::watch;

/// How a source of the configuration stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceState {
    /// Nothing was heard of it yet.
    Waiting,
    /// It does not exist, and did not since the start.
    Absent,
    /// It is at work.
    Applied,
    /// It is wrong or cannot be read; the last good one is at work.
    Refused,
    /// It does not exist any more; what it said last is at work.
    Gone,
    /// The agent's role does not allow to read it.
    Forbidden,
    /// The API server cannot be reached or answers with errors.
    Unreachable,
}

impl SourceState {
    /// A stable word for metrics and programs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "Waiting",
            Self::Absent => "Absent",
            Self::Applied => "Applied",
            Self::Refused => "Refused",
            Self::Gone => "Gone",
            Self::Forbidden => "Forbidden",
            Self::Unreachable => "Unreachable",
        }
    }
}

#[derive(Clone, Debug)]
struct Source {
    state: SourceState,
    message: String,
    since: Timestamp,
}

#[derive(Debug, Default)]
struct Inner {
    file: Option<Source>,
    map: Option<(ConfigMapRef, Source)>,
    generation: Option<String>,
    /// Of the text that was found last, while it is at work.
    found: Option<String>,
}

/// The configuration at work, for the status page, the metrics and the requests to the receiver. Cheap to clone; all
/// clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Configuration(Arc<Mutex<Inner>>, watch::Sender<()>);

impl Configuration {
    /// The generation of the ConfigMap's text that is at work; none before the first.
    pub fn generation(&self) -> Option<String> {
        self.0.lock().generation.clone()
    }

    /// What the receiver is told: [`v3::configuration`] of the `ConfigMap`'s text. Empty while that text is not at
    /// work, so that it is written again.
    pub fn reported(&self) -> String {
        self.0.lock().found.clone().unwrap_or_default()
    }

    /// Changes when [`Configuration::reported`] does.
    pub fn news(&self) -> watch::Receiver<()> {
        self.1.subscribe()
    }

    /// Sets how the file stands; whether that is news.
    pub(super) fn file(&self, state: SourceState, message: &str, now: Timestamp) -> bool {
        let mut inner = self.0.lock();
        let before = inner.file.clone();
        let news = before.as_ref().is_none_or(|s| s.state != state || s.message != shortened(message));
        inner.file = Some(moved(before, state, message, now));
        news
    }

    /// Sets how the ConfigMap stands; a change of the state is logged.
    pub(super) fn map(&self, at: &ConfigMapRef, state: SourceState, message: &str, now: Timestamp) {
        let mut inner = self.0.lock();
        // A permission or an API server that is gone for a while says nothing of the text.
        if matches!(state, SourceState::Refused | SourceState::Gone | SourceState::Absent) {
            self.find(&mut inner, None);
        }
        let before = inner.map.take().map(|(_, source)| source);
        if before.as_ref().map(|source| source.state) != Some(state) {
            tracing::info!(
                state = state.as_str(),
                detail = shortened(message),
                "the configuration's ConfigMap"
            );
        }
        inner.map = Some((at.clone(), moved(before, state, message, now)));
    }

    /// The ConfigMap's text of this generation is at work.
    pub(super) fn applied(&self, at: &ConfigMapRef, generation: &str, text: &str, now: Timestamp) {
        self.map(at, SourceState::Applied, "", now);
        let mut inner = self.0.lock();
        inner.generation = Some(generation.to_owned());
        self.find(&mut inner, Some(v3::configuration(text)));
    }

    fn find(&self, inner: &mut Inner, found: Option<String>) {
        if inner.found != found {
            inner.found = found;
            self.1.send_replace(());
        }
    }

    /// Calls `each` with every source and its state.
    pub fn for_each(&self, mut each: impl FnMut(&str, SourceState)) {
        let inner = self.0.lock();
        if let Some(file) = &inner.file {
            each("file", file.state);
        }
        if let Some((_, map)) = &inner.map {
            each("configMap", map.state);
        }
    }

    /// For the status page.
    pub fn to_json(&self) -> Value {
        let inner = self.0.lock();
        let source = |source: &Source| json!({"state": source.state.as_str(), "message": source.message, "since": source.since});
        let map = inner.map.as_ref().map(|(at, map)| {
            let mut shown = source(map);
            shown["name"] = format!("{}/{}", at.namespace, at.name).into();
            shown
        });
        json!({"generation": inner.generation, "file": inner.file.as_ref().map(source), "configMap": map})
    }
}

fn moved(before: Option<Source>, state: SourceState, message: &str, now: Timestamp) -> Source {
    let since = before.filter(|source| source.state == state).map_or(now, |source| source.since);
    Source { state, message: shortened(message), since }
}
