//! The last reconciles of each runtime and their triggers: in memory, bounded.

use std::collections::{HashMap, VecDeque};

use http::{Method, StatusCode};
use jiff::Timestamp;
use parking_lot::RwLock;
use serde::Serialize;
use tidewatch_api::State;

use crate::{
    key::{OutcomeKind, WorkKey},
    stages::StageTime,
    trigger::{Reason, Trigger},
};

/// Records kept per runtime, at most.
const MAX_PER_RUNTIME: usize = 32;
/// Records kept per runtime in a large fleet.
const MIN_PER_RUNTIME: usize = 8;
/// Records kept in total, but at least [`MIN_PER_RUNTIME`] per runtime.
const MAX_RECORDS: usize = 16_000;
/// Runtimes remembered; beyond that, an arbitrary one is evicted.
const MAX_RUNTIMES: usize = 20_000;

/// One finished reconcile.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// The key, as `Kind/name`.
    pub key: String,
    /// The first few triggers.
    #[serde(rename = "causes")]
    pub triggers: Vec<Trigger>,
    /// Number of distinct triggers.
    #[serde(rename = "causeCount")]
    pub trigger_count: usize,
    /// Its class in the queue.
    pub class: &'static str,
    /// Its outcome.
    pub outcome: OutcomeKind,
    /// The state in the status, if it failed and the status was written.
    #[serde(skip)]
    pub state: Option<State>,
    /// Whether a full look found the failure.
    #[serde(skip)]
    pub is_found: bool,
    /// Whether the reconcile read anything.
    #[serde(skip)]
    pub has_read: bool,
    /// The message, unless it is done.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When it ended.
    pub finished_at: Timestamp,
    /// Seconds from the first trigger to the start.
    pub queued_seconds: f64,
    /// Seconds from start to end.
    pub work_seconds: f64,
    /// Time per stage; the rest is computing.
    pub stages: Vec<StageTime>,
    /// Seconds from its end until the next try is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_try_seconds: Option<f64>,
    /// Reason of the next try, one word.
    #[serde(skip)]
    pub next_try_for: Option<Reason>,
}

impl Record {
    /// Whether it ended in an error. A Warning waits for a user or a time.
    #[must_use]
    pub fn is_error(&self) -> bool {
        match self.outcome {
            OutcomeKind::Done | OutcomeKind::Waiting => false,
            OutcomeKind::Failed => self.state == Some(State::Error),
            OutcomeKind::Unreported => true,
        }
    }
}

/// The last reconciles of every runtime.
#[derive(Debug, Default)]
pub struct ReconcileHistory(RwLock<HashMap<String, VecDeque<Record>>>);

impl ReconcileHistory {
    /// Adds a record, except of canaries: one per minute and runtime would evict all others.
    pub fn add(&self, key: &WorkKey, record: Record) {
        if matches!(key, WorkKey::EventPath { .. }) {
            return;
        }
        let mut runtimes = self.0.write();
        if runtimes.len() >= MAX_RUNTIMES
            && !runtimes.contains_key(key.kyma())
            && let Some(victim) = runtimes.keys().next().cloned()
        {
            runtimes.remove(&victim);
        }
        let limit = (MAX_RECORDS / (runtimes.len() + 1)).clamp(MIN_PER_RUNTIME, MAX_PER_RUNTIME);
        let records = runtimes.entry(key.kyma().to_owned()).or_default();
        if records.len() >= limit {
            records.drain(..=records.len() - limit);
            records.shrink_to(limit);
        }
        records.push_back(record);
    }

    /// The records of one runtime, oldest first.
    pub fn of(&self, kyma: &str) -> Vec<Record> {
        self.0.read().get(kyma).into_iter().flatten().cloned().collect()
    }

    /// Forgets a runtime.
    pub fn forget(&self, kyma: &str) {
        self.0.write().remove(kyma);
    }
}

/// Observes finished reconciles; for metrics.
pub trait Observer: Send + Sync + 'static {
    /// A reconcile has ended.
    fn reconciled(&self, key: &WorkKey, record: &Record);
    /// A reconcile did or did not reach the API server of a Kyma's runtime.
    fn reachable(&self, kyma: &str, reachable: bool);
    /// A reconcile panicked; it leaves no record, and its key is retried.
    fn panicked(&self, _key: &WorkKey) {}
    /// Number of echoes: events of an object version that a reconcile had already read, written or deleted.
    fn echoes(&self, _events: usize) {}
    /// A runtime's API server answered a request, or not (`None`).
    fn answered(&self, _method: &Method, _code: Option<StatusCode>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &str) -> Record {
        Record {
            key: key.into(),
            triggers: vec![Trigger::Start, Trigger::Start],
            trigger_count: 2,
            class: "resync",
            outcome: OutcomeKind::Done,
            state: None,
            is_found: false,
            has_read: true,
            message: "no such module".into(),
            finished_at: Timestamp::UNIX_EPOCH,
            queued_seconds: 0.0,
            work_seconds: 0.0,
            stages: Vec::new(),
            next_try_seconds: None,
            next_try_for: None,
        }
    }

    #[test]
    fn keeps_the_newest_records_of_each_runtime() {
        let history = ReconcileHistory::default();
        let key = WorkKey::Kyma { kyma: "a".into() };
        for n in 0..40 {
            history.add(&key, record(&n.to_string()));
        }
        let records = history.of("a");
        assert_eq!((records.len(), records[0].key.as_str()), (MAX_PER_RUNTIME, "8"));
        assert_eq!(
            (&records[0].triggers, records[0].message.as_str()),
            (&record("8").triggers, "no such module")
        );
        history.forget("a");
        assert!(history.of("a").is_empty());
    }

    #[test]
    fn failed_and_lost_reconciles_count_as_errors() {
        for (outcome, state, is_error) in [
            (OutcomeKind::Done, None, false),
            (OutcomeKind::Waiting, None, false),
            (OutcomeKind::Failed, Some(State::Warning), false),
            (OutcomeKind::Failed, Some(State::Processing), false),
            (OutcomeKind::Failed, Some(State::Error), true),
            (OutcomeKind::Unreported, None, true),
        ] {
            let record = Record { outcome, state, ..record("k") };
            assert_eq!(record.is_error(), is_error, "{outcome:?} {state:?}");
        }
    }

    #[test]
    fn a_large_fleet_keeps_fewer_records_per_runtime() {
        let history = ReconcileHistory::default();
        for _ in 0..2 * MAX_PER_RUNTIME {
            history.add(&WorkKey::Kyma { kyma: "first".into() }, record("k"));
        }
        for kyma in 0..MAX_RECORDS / MIN_PER_RUNTIME {
            history.add(&WorkKey::Kyma { kyma: kyma.to_string() }, record("k"));
        }
        assert_eq!(history.of("first").len(), MAX_PER_RUNTIME);
        for _ in 0..2 * MAX_PER_RUNTIME {
            history.add(&WorkKey::Kyma { kyma: "first".into() }, record("k"));
        }
        assert_eq!(history.of("first").len(), MIN_PER_RUNTIME);
    }
}
