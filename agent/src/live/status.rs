//! State of the configuration sources.

use crate::{config::ConfigMapRef, observe::condition::shortened};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::sync::Arc;
use tidewatch_telemetry::metrics::{MetricsError, Registry};
use tidewatch_wire::v3;
use tokio::sync::watch;

/// State of a configuration source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceState {
    /// Not read yet.
    Waiting,
    /// Missing since the start.
    Absent,
    /// In use.
    Applied,
    /// Invalid or unreadable; the last good one is in use.
    Refused,
    /// Deleted; its last content is in use.
    Gone,
    /// Forbidden by the agent's role.
    Forbidden,
    /// The API server is unreachable or fails.
    Unreachable,
}

impl SourceState {
    /// Returns a stable word for metrics and programs.
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
struct Sources {
    file: Option<Source>,
    map: Option<(ConfigMapRef, Source)>,
    generation: Option<String>,
    /// Hash of the text in use.
    found: Option<String>,
}

/// State of the configuration. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Configuration {
    sources: Arc<Mutex<Sources>>,
    /// Changes with [`Configuration::reported`].
    changes: watch::Sender<()>,
}

impl Configuration {
    /// Registers the state of the sources as a metric.
    pub fn register(&self, registry: &Registry) -> Result<(), MetricsError> {
        let configuration = self.clone();
        let help = "1 for the state each source of the configuration is in.";
        registry.gauge_vec_fn("configuration_state", help, &["source", "state"], move |set| {
            configuration.for_each(|source, state| set(&[source, state.as_str()], 1.0));
        })
    }

    /// The generation in use.
    pub fn generation(&self) -> Option<String> {
        self.sources.lock().generation.clone()
    }

    /// [`v3::configuration`] of the text in use. Empty otherwise, so that the engine writes it again.
    pub fn reported(&self) -> String {
        self.sources.lock().found.clone().unwrap_or_default()
    }

    /// Changes with [`Configuration::reported`].
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Returns whether the state changed.
    pub(super) fn file(&self, state: SourceState, message: &str, now: Timestamp) -> bool {
        let mut sources = self.sources.lock();
        let before = sources.file.clone();
        let changed = before.as_ref().is_none_or(|s| s.state != state || s.message != shortened(message));
        sources.file = Some(moved(before, state, message, now));
        changed
    }

    pub(super) fn map(&self, at: &ConfigMapRef, state: SourceState, message: &str, now: Timestamp) {
        let mut sources = self.sources.lock();
        // The text may still be valid.
        if matches!(state, SourceState::Refused | SourceState::Gone | SourceState::Absent) {
            self.set_found(&mut sources, None);
        }
        let before = sources.map.take().map(|(_, source)| source);
        if before.as_ref().map(|source| source.state) != Some(state) {
            tracing::info!(
                state = state.as_str(),
                detail = shortened(message),
                "the configuration's ConfigMap"
            );
        }
        sources.map = Some((at.clone(), moved(before, state, message, now)));
    }

    pub(super) fn applied(&self, at: &ConfigMapRef, generation: &str, text: &str, now: Timestamp) {
        self.map(at, SourceState::Applied, "", now);
        let mut sources = self.sources.lock();
        sources.generation = Some(generation.to_owned());
        self.set_found(&mut sources, Some(v3::configuration(text)));
    }

    fn set_found(&self, sources: &mut Sources, found: Option<String>) {
        if sources.found != found {
            sources.found = found;
            self.changes.send_replace(());
        }
    }

    /// Calls `each` for every source.
    pub fn for_each(&self, mut each: impl FnMut(&str, SourceState)) {
        let sources = self.sources.lock();
        if let Some(file) = &sources.file {
            each("file", file.state);
        }
        if let Some((_, map)) = &sources.map {
            each("configMap", map.state);
        }
    }

    /// Returns the state for the status page.
    pub fn to_json(&self) -> Value {
        let sources = self.sources.lock();
        let source = |source: &Source| json!({"state": source.state.as_str(), "message": source.message, "since": source.since});
        let map = sources.map.as_ref().map(|(at, map)| {
            let mut shown = source(map);
            shown["name"] = format!("{}/{}", at.namespace, at.name).into();
            shown
        });
        json!({"generation": sources.generation, "file": sources.file.as_ref().map(source), "configMap": map})
    }
}

fn moved(before: Option<Source>, state: SourceState, message: &str, now: Timestamp) -> Source {
    let since = before.filter(|source| source.state == state).map_or(now, |source| source.since);
    Source { state, message: shortened(message), since }
}
