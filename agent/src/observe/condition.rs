//! What to say about each watch: one condition, for the status page, the metrics and the log.

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

/// Longest message kept; an API server's can be long.
const MAX_MESSAGE: usize = 512;

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
        }
    }

    fn is_fault(self) -> bool {
        matches!(self, Self::Forbidden | Self::Unauthorized | Self::Unreachable | Self::TooManyObjects)
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

    #[test]
    fn messages_are_short_and_one_line() {
        assert_eq!(shortened("a\nb"), "a b");
        assert_eq!(shortened(&"ä".repeat(1000)).chars().count(), MAX_MESSAGE);
    }
}
