//! What to say about each watch: one condition, for the status page, the metrics and the log.

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::time::Instant;

/// Longest message kept; an API server's can be long.
const MAX_MESSAGE: usize = 512;
/// A watch that has heard nothing for longer would not notice a change: a bookmark comes about every minute.
const FRESH: Duration = Duration::from_mins(3);

/// In what state a watch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Nothing was tried yet.
    Starting,
    /// The kind is not installed; it is looked for again and again.
    WaitingForKind,
    /// The first list, or a list after a break, is being read.
    Listing,
    /// All is well.
    Watching,
    /// The agent's role does not allow it.
    Forbidden,
    /// The API server does not accept the agent's credentials.
    Unauthorized,
    /// The API server cannot be reached or answers with errors.
    Unreachable,
    /// There are more objects than may be remembered; those beyond are not reported.
    TooManyObjects,
    /// It works, and has missed events again and again.
    Unreliable,
}

impl Reason {
    /// A stable word for metrics and programs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "Starting",
            Self::WaitingForKind => "WaitingForKind",
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
            Self::Forbidden
                | Self::Unauthorized
                | Self::Unreachable
                | Self::TooManyObjects
                | Self::Unreliable
        )
    }
}

/// The condition of one watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Its state.
    pub reason: Reason,
    /// For people: what is wrong and what is done about it.
    pub message: String,
    /// Since when the reason holds.
    pub since: Timestamp,
    /// Number of objects remembered.
    pub objects: usize,
    /// Group, version and kind as resolved, as `apps/v1/Deployment`; empty before.
    pub resolved: String,
    /// When the API server last said anything about it; none before the first list was complete.
    pub heard: Option<Instant>,
}

impl Condition {
    /// Whether a change would not be noticed now. A kind that is not installed is looked for, which is enough.
    fn is_blind(&self, now: Instant) -> bool {
        match self.reason {
            Reason::WaitingForKind => false,
            Reason::Forbidden | Reason::Unauthorized | Reason::TooManyObjects | Reason::Unreliable => true,
            _ => self.heard.is_none_or(|heard| now.saturating_duration_since(heard) > FRESH),
        }
    }
}

/// The conditions of all watches. Cheap to clone; all clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Conditions {
    watches: Arc<Mutex<BTreeMap<String, Condition>>>,
}

impl Conditions {
    /// No watch yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a watch's condition; a change of the reason is logged.
    pub fn set(&self, watch: &str, reason: Reason, message: &str, now: Timestamp) {
        let message = shortened(message);
        let mut watches = self.watches.lock();
        let entry = watches.entry(watch.to_owned()).or_insert_with(|| Condition {
            reason: Reason::Starting,
            message: String::new(),
            since: now,
            objects: 0,
            resolved: String::new(),
            heard: None,
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

    /// A watch is no more.
    pub fn remove(&self, watch: &str) {
        if self.watches.lock().remove(watch).is_some() {
            tracing::info!(watch, "watch removed");
        }
    }

    /// Sets how many objects a watch remembers.
    pub fn set_objects(&self, watch: &str, objects: usize) {
        if let Some(entry) = self.watches.lock().get_mut(watch) {
            entry.objects = objects;
        }
    }

    /// Sets what a watch's kind was resolved to.
    pub fn set_resolved(&self, watch: &str, resolved: String) {
        if let Some(entry) = self.watches.lock().get_mut(watch) {
            entry.resolved = resolved;
        }
    }

    /// A watch's list is complete: from now on it counts when it was heard last.
    pub fn listed(&self, watch: &str) {
        if let Some(entry) = self.watches.lock().get_mut(watch) {
            entry.heard = Some(Instant::now());
        }
    }

    /// The API server has said something about a watch.
    pub fn heard(&self, watch: &str) {
        if let Some(heard) = self.watches.lock().get_mut(watch).and_then(|entry| entry.heard.as_mut()) {
            *heard = Instant::now();
        }
    }

    /// The watches that would not notice a change now.
    pub fn blind(&self) -> Vec<String> {
        let now = Instant::now();
        let watches = self.watches.lock();
        watches.iter().filter(|(_, entry)| entry.is_blind(now)).map(|(name, _)| name.clone()).collect()
    }

    /// Whether every watch has said how it stands: it has listed once, or cannot.
    pub fn settled(&self) -> bool {
        let settled = |entry: &Condition| {
            entry.heard.is_some() || !matches!(entry.reason, Reason::Starting | Reason::Listing)
        };
        self.watches.lock().values().all(settled)
    }

    /// The condition of one watch.
    pub fn get(&self, watch: &str) -> Option<Condition> {
        self.watches.lock().get(watch).cloned()
    }

    /// Calls `each` for every watch. It must not call back into these conditions.
    pub fn for_each(&self, mut each: impl FnMut(&str, &Condition)) {
        self.watches.lock().iter().for_each(|(name, condition)| each(name, condition));
    }

    /// For the status page.
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
    fn since_moves_with_the_reason_only() {
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
    async fn a_watch_that_hears_nothing_is_blind() {
        let conditions = Conditions::new();
        let set = |reason| conditions.set("a", reason, "", Timestamp::UNIX_EPOCH);
        set(Reason::Starting);
        assert!(!conditions.settled());
        conditions.heard("a");
        assert_eq!(conditions.blind(), ["a"], "not listed");
        conditions.listed("a");
        set(Reason::Watching);
        assert!(conditions.blind().is_empty() && conditions.settled());
        tokio::time::advance(FRESH).await;
        conditions.heard("a");
        tokio::time::advance(FRESH).await;
        assert!(conditions.blind().is_empty());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(conditions.blind(), ["a"]);
        set(Reason::WaitingForKind);
        assert!(conditions.blind().is_empty());
        set(Reason::Forbidden);
        assert_eq!(conditions.blind(), ["a"]);
    }

    #[test]
    fn messages_are_short_and_one_line() {
        assert_eq!(shortened("a\nb"), "a b");
        assert_eq!(shortened(&"ä".repeat(1000)).chars().count(), MAX_MESSAGE);
    }
}
