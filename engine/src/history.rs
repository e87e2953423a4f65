//! What was done for each runtime, and why: the last reconciles, in memory, bounded.

use std::collections::{HashMap, VecDeque};

use jiff::Timestamp;
use parking_lot::RwLock;
use serde::Serialize;

use crate::{
    key::{Cause, Outcome, WorkKey},
    stages::StageTime,
};

/// Records kept per runtime, at most.
const PER_RUNTIME: usize = 32;
/// The same in a large fleet.
const LEAST: usize = 8;
/// Records kept of all runtimes together, unless that were fewer than [`LEAST`] of each. One takes 500 bytes or so.
const ALL: usize = 16_000;
/// Runtimes remembered; beyond that, the history of an arbitrary one is dropped.
const RUNTIMES: usize = 20_000;

/// One finished reconcile.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// What was reconciled, as `Kind/name`.
    pub key: String,
    /// Why; the first few causes.
    pub causes: Vec<Cause>,
    /// How many causes there were.
    pub cause_count: usize,
    /// Its class in the queue.
    pub class: &'static str,
    /// How it ended.
    pub outcome: Outcome,
    /// What it found, if it did not simply finish.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When it ended.
    pub finished_at: Timestamp,
    /// From the first cause to the start, in seconds.
    pub queued_seconds: f64,
    /// From start to end, in seconds.
    pub work_seconds: f64,
    /// What that time went to; the rest is our own computing.
    pub stages: Vec<StageTime>,
    /// When the next try is due at the latest, in seconds from its end, if one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_try_seconds: Option<f64>,
}

/// The last reconciles of every runtime.
#[derive(Debug, Default)]
pub struct History(RwLock<HashMap<String, VecDeque<Record>>>);

impl History {
    /// Adds a record. Not of canaries: one a minute of every runtime would leave no room for the others.
    pub fn add(&self, key: &WorkKey, record: Record) {
        if matches!(key, WorkKey::Path { .. }) {
            return;
        }
        let mut runtimes = self.0.write();
        if runtimes.len() >= RUNTIMES
            && !runtimes.contains_key(key.kyma())
            && let Some(victim) = runtimes.keys().next().cloned()
        {
            runtimes.remove(&victim);
        }
        let most = (ALL / (runtimes.len() + 1)).clamp(LEAST, PER_RUNTIME);
        let records = runtimes.entry(key.kyma().to_owned()).or_default();
        if records.len() >= most {
            records.drain(..=records.len() - most);
            records.shrink_to(most);
        }
        records.push_back(record);
    }

    /// The records of one runtime, oldest first.
    pub fn of(&self, kyma: &str) -> Vec<Record> {
        self.0.read().get(kyma).map(|r| r.iter().cloned().collect()).unwrap_or_default()
    }

    /// Forgets a runtime.
    pub fn forget(&self, kyma: &str) {
        self.0.write().remove(kyma);
    }
}

/// Sees every finished reconcile; for metrics.
pub trait Observer: Send + Sync + 'static {
    /// A reconcile has ended.
    fn reconciled(&self, key: &WorkKey, record: &Record);
    /// A reconcile could, or could not, talk to the API server of a Kyma's runtime.
    fn reachable(&self, kyma: &str, reachable: bool);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_newest_records_of_each_runtime() {
        let history = History::default();
        let key = WorkKey::Kyma { kyma: "a".into() };
        for n in 0..40 {
            history.add(
                &key,
                Record {
                    key: n.to_string(),
                    causes: vec![Cause::Start],
                    cause_count: 1,
                    class: "resync",
                    outcome: Outcome::Done,
                    message: String::new(),
                    finished_at: Timestamp::UNIX_EPOCH,
                    queued_seconds: 0.0,
                    work_seconds: 0.0,
                    stages: Vec::new(),
                    next_try_seconds: None,
                },
            );
        }
        let records = history.of("a");
        assert_eq!((records.len(), records[0].key.as_str()), (PER_RUNTIME, "8"));
        history.forget("a");
        assert!(history.of("a").is_empty());
    }

    #[test]
    fn in_a_large_fleet_each_has_fewer() {
        let history = History::default();
        let record = || Record {
            key: "k".into(),
            causes: Vec::new(),
            cause_count: 0,
            class: "resync",
            outcome: Outcome::Done,
            message: String::new(),
            finished_at: Timestamp::UNIX_EPOCH,
            queued_seconds: 0.0,
            work_seconds: 0.0,
            stages: Vec::new(),
            next_try_seconds: None,
        };
        for _ in 0..2 * PER_RUNTIME {
            history.add(&WorkKey::Kyma { kyma: "first".into() }, record());
        }
        for kyma in 0..ALL / LEAST {
            history.add(&WorkKey::Kyma { kyma: kyma.to_string() }, record());
        }
        assert_eq!(history.of("first").len(), PER_RUNTIME);
        for _ in 0..2 * PER_RUNTIME {
            history.add(&WorkKey::Kyma { kyma: "first".into() }, record());
        }
        assert_eq!(history.of("first").len(), LEAST);
    }
}
