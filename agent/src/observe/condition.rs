//! Conditions of the watches.

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::time::Instant;

/// In characters.
const MAX_MESSAGE: usize = 512;
/// Limit of silence; bookmarks arrive about every minute.
const FRESH: Duration = Duration::from_mins(3);

/// State of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Nothing tried yet.
    Starting,
    /// The kind is not installed.
    WaitingForKind,
    /// The kind can never be watched.
    NotWatchable,
    /// Reading a full list.
    Listing,
    /// Healthy.
    Watching,
    /// Forbidden by the agent's role.
    Forbidden,
    /// The credentials are rejected.
    Unauthorized,
    /// The API server is unreachable or fails.
    Unreachable,
    /// Objects beyond the limit are not reported.
    TooManyObjects,
    /// Working, but repeatedly missing events.
    Unreliable,
}

impl Reason {
    /// Returns a stable word for metrics and programs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "Starting",
            Self::WaitingForKind => "WaitingForKind",
            Self::NotWatchable => "NotWatchable",
            Self::Listing => "Listing",
            Self::Watching => "Watching",
            Self::Forbidden => "Forbidden",
            Self::Unauthorized => "Unauthorized",
            Self::Unreachable => "Unreachable",
            Self::TooManyObjects => "TooManyObjects",
            Self::Unreliable => "Unreliable",
        }
    }

    fn is_fault(self) -> bool {
        matches!(
            self,
            Self::NotWatchable
                | Self::Forbidden
                | Self::Unauthorized
                | Self::Unreachable
                | Self::TooManyObjects
                | Self::Unreliable
        )
    }
}

/// Condition of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The state.
    pub reason: Reason,
    /// Problem and remedy.
    pub message: String,
    /// Start of the state.
    pub since: Timestamp,
    /// Number of tracked objects.
    pub objects: usize,
    /// Resolved kind such as `apps/v1/Deployment`; empty before.
    pub resolved: String,
    /// Time of the latest data; `None` before the first complete list.
    pub last_data: Option<Instant>,
}

impl Condition {
    /// Whether changes may go unnoticed. A missing kind is searched for, so it is not blind.
    fn is_blind(&self, now: Instant) -> bool {
        match self.reason {
            Reason::WaitingForKind => false,
            Reason::NotWatchable
            | Reason::Forbidden
            | Reason::Unauthorized
            | Reason::TooManyObjects
            | Reason::Unreliable => true,
            _ => self.last_data.is_none_or(|at| now.saturating_duration_since(at) > FRESH),
        }
    }
}

/// Conditions of all watches. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Conditions {
    watches: Arc<Mutex<BTreeMap<String, Condition>>>,
}

impl Conditions {
    /// Creates an empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a condition; logs a changed reason.
    pub fn set(&self, watch: &str, reason: Reason, message: &str, now: Timestamp) {
        let message = shortened(message);
        let mut watches = self.watches.lock();
        let entry = watches.entry(watch.to_owned()).or_insert_with(|| Condition {
            reason: Reason::Starting,
            message: String::new(),
            since: now,
            objects: 0,
            resolved: String::new(),
            last_data: None,
        });
        if entry.reason != reason {
            entry.since = now;
            let (word, resolved) = (reason.as_str(), &entry.resolved);
            if reason.is_fault() {
                tracing::warn!(watch, reason = word, detail = message, resolved, "watch has a problem");
            } else {
                tracing::info!(watch, reason = word, detail = message, resolved, "watch");
            }
        }
        entry.reason = reason;
        entry.message = message;
    }

    /// Removes a watch.
    pub fn remove(&self, watch: &str) {
        if self.watches.lock().remove(watch).is_some() {
            tracing::info!(watch, "watch removed");
        }
    }

    /// Sets the object count.
    pub fn set_objects(&self, watch: &str, objects: usize) {
        if let Some(entry) = self.watches.lock().get_mut(watch) {
            entry.objects = objects;
        }
    }

    /// Sets the resolved kind.
    pub fn set_resolved(&self, watch: &str, resolved: String) {
        if let Some(entry) = self.watches.lock().get_mut(watch) {
            entry.resolved = resolved;
        }
    }

    /// Records a complete list; silence counts afterwards.
    pub fn listed(&self, watch: &str) {
        if let Some(entry) = self.watches.lock().get_mut(watch) {
            entry.last_data = Some(Instant::now());
        }
    }

    /// Records data from the API server.
    pub fn received(&self, watch: &str) {
        if let Some(last) = self.watches.lock().get_mut(watch).and_then(|entry| entry.last_data.as_mut()) {
            *last = Instant::now();
        }
    }

    /// Watches that may miss changes.
    pub fn blind(&self) -> Vec<String> {
        let now = Instant::now();
        let watches = self.watches.lock();
        watches.iter().filter(|(_, entry)| entry.is_blind(now)).map(|(name, _)| name.clone()).collect()
    }

    /// Whether every watch has listed once or failed.
    pub fn settled(&self) -> bool {
        let settled = |entry: &Condition| {
            entry.last_data.is_some() || !matches!(entry.reason, Reason::Starting | Reason::Listing)
        };
        self.watches.lock().values().all(settled)
    }

    /// Returns a watch's condition.
    pub fn get(&self, watch: &str) -> Option<Condition> {
        self.watches.lock().get(watch).cloned()
    }

    /// Calls `each` under the lock; it must not use the conditions.
    pub fn for_each(&self, mut each: impl FnMut(&str, &Condition)) {
        self.watches.lock().iter().for_each(|(name, condition)| each(name, condition));
    }

    /// Returns the conditions for the status page.
    pub fn to_json(&self) -> Value {
        let mut list = Vec::new();
        self.for_each(|name, condition| {
            list.push(json!({
                "name": name,
                "resolved": condition.resolved,
                "reason": condition.reason.as_str(),
                "message": condition.message,
                "since": condition.since,
                "objects": condition.objects,
            }));
        });
        Value::Array(list)
    }
}

pub(crate) fn shortened(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_MESSAGE).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_condition_time_changes_only_with_the_reason() {
        let conditions = Conditions::new();
        let at = |second| Timestamp::from_second(second).unwrap();
        conditions.set("a", Reason::Forbidden, "first", at(1));
        conditions.set("a", Reason::Forbidden, "second", at(2));
        let condition = conditions.get("a").unwrap();
        assert_eq!((condition.since, condition.message.as_str()), (at(1), "second"));
        conditions.set("a", Reason::Watching, "", at(3));
        assert_eq!(conditions.get("a").unwrap().since, at(3));
        assert_eq!(conditions.to_json()[0]["reason"], "Watching");
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_receiving_nothing_is_blind() {
        let conditions = Conditions::new();
        let set = |reason| conditions.set("a", reason, "", Timestamp::UNIX_EPOCH);
        set(Reason::Starting);
        assert!(!conditions.settled());
        conditions.received("a");
        assert_eq!(conditions.blind(), ["a"], "not listed");
        conditions.listed("a");
        set(Reason::Watching);
        assert!(conditions.blind().is_empty() && conditions.settled());
        tokio::time::advance(FRESH).await;
        conditions.received("a");
        tokio::time::advance(FRESH).await;
        assert!(conditions.blind().is_empty());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(conditions.blind(), ["a"]);
        set(Reason::WaitingForKind);
        assert!(conditions.blind().is_empty());
        for reason in [Reason::Forbidden, Reason::NotWatchable] {
            set(reason);
            assert_eq!(conditions.blind(), ["a"], "{reason:?}");
        }
    }

    #[test]
    fn condition_messages_are_one_short_line() {
        assert_eq!(shortened("a\nb"), "a b");
        assert_eq!(shortened(&"ä".repeat(1000)).chars().count(), MAX_MESSAGE);
    }
}
