//! What was done for each runtime, and why: the last reconciles, in memory, bounded.

use std::collections::{HashMap, VecDeque};

use jiff::Timestamp;
use parking_lot::RwLock;
use serde::Serialize;

use crate::{
    key::{Cause, Outcome, WorkKey},
    lists::{List, Lists},
    stages::StageTime,
    texts::Texts,
};

/// Records kept per runtime, at most.
const PER_RUNTIME: usize = 32;
/// The same in a large fleet.
const LEAST: usize = 8;
/// Records kept of all runtimes together, unless that were fewer than [`LEAST`] of each. One takes 500 bytes or so: its texts are
/// mostly those of others, and held once.
const ALL: usize = 16_000;
/// Runtimes remembered; beyond that, the history of an arbitrary one is dropped.
const RUNTIMES: usize = 20_000;

/// One finished reconcile. Its texts are `T`s, as those of a [`Cause`].
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Record<T = String> {
    /// What was reconciled, as `Kind/name`.
    pub key: T,
    /// Why; the first few causes.
    pub causes: Vec<Cause<T>>,
    /// How many causes there were.
    pub cause_count: usize,
    /// Its class in the queue.
    pub class: &'static str,
    /// How it ended.
    pub outcome: Outcome,
    /// Whether anything was read for it; if not, it has seen nothing.
    #[serde(skip)]
    pub looked: bool,
    /// What it found, if it did not simply finish.
    #[serde(skip_serializing_if = "is_empty", bound(serialize = "T: Serialize + AsRef<str>"))]
    pub message: T,
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

fn is_empty(text: &impl AsRef<str>) -> bool {
    text.as_ref().is_empty()
}

impl<T> Record<T> {
    fn map<U>(&self, mut text: impl FnMut(&T) -> U) -> Record<U> {
        let Self { key, causes, message, stages, .. } = self;
        Record {
            key: text(key),
            causes: causes.iter().map(|cause| cause.map(&mut text)).collect(),
            cause_count: self.cause_count,
            class: self.class,
            outcome: self.outcome,
            looked: self.looked,
            message: text(message),
            finished_at: self.finished_at,
            queued_seconds: self.queued_seconds,
            work_seconds: self.work_seconds,
            stages: stages.clone(),
            next_try_seconds: self.next_try_seconds,
        }
    }
}

/// The last reconciles of every runtime.
#[derive(Debug, Default)]
pub struct History(RwLock<Book>);

/// By Kyma. The texts of causes are those of thousands of other runtimes.
#[derive(Debug, Default)]
struct Book {
    runtimes: HashMap<String, VecDeque<Held>>,
    texts: Texts,
    causes: Lists<Cause<u32>>,
    stages: Lists<StageTime>,
}

/// A record, of which others keep the lists.
#[derive(Debug)]
struct Held {
    record: Record<u32>,
    causes: List,
    stages: List,
}

impl Book {
    fn hold(&mut self, record: &Record) -> Held {
        let mut record = record.map(|text| self.texts.hold(text));
        let causes = self.causes.put(std::mem::take(&mut record.causes).into_iter());
        let stages = self.stages.put(std::mem::take(&mut record.stages).into_iter());
        Held { record, causes, stages }
    }

    /// As it was, but for its texts.
    fn record(&self, held: &Held) -> Record<u32> {
        let causes = self.causes.of(&held.causes).copied().collect();
        let stages = self.stages.of(&held.stages).copied().collect();
        Record { causes, stages, ..held.record.clone() }
    }

    fn let_go(&mut self, records: impl IntoIterator<Item = Held>) {
        for held in records {
            let _: Record<()> = self.record(&held).map(|number| self.texts.let_go(*number));
            self.causes.let_go(held.causes);
            self.stages.let_go(held.stages);
        }
    }

    fn forget(&mut self, kyma: &str) {
        let records = self.runtimes.remove(kyma);
        self.let_go(records.into_iter().flatten());
    }
}

impl History {
    /// Adds a record. Not of canaries: one a minute of every runtime would leave no room for the others.
    pub fn add(&self, key: &WorkKey, record: &Record) {
        if matches!(key, WorkKey::Path { .. }) {
            return;
        }
        let mut book = self.0.write();
        if book.runtimes.len() >= RUNTIMES
            && !book.runtimes.contains_key(key.kyma())
            && let Some(victim) = book.runtimes.keys().next().cloned()
        {
            book.forget(&victim);
        }
        let most = (ALL / (book.runtimes.len() + 1)).clamp(LEAST, PER_RUNTIME);
        let record = book.hold(record);
        let records = book.runtimes.entry(key.kyma().to_owned()).or_default();
        let mut old = Vec::new();
        if records.len() >= most {
            old.extend(records.drain(..=records.len() - most));
            records.shrink_to(most);
        }
        records.push_back(record);
        book.let_go(old);
    }

    /// The records of one runtime, oldest first.
    pub fn of(&self, kyma: &str) -> Vec<Record> {
        let book = self.0.read();
        let records = book.runtimes.get(kyma).into_iter().flatten();
        records.map(|held| book.record(held).map(|number| book.texts.text(*number).to_owned())).collect()
    }

    /// Forgets a runtime.
    pub fn forget(&self, kyma: &str) {
        self.0.write().forget(kyma);
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

    fn record(key: &str) -> Record {
        Record {
            key: key.into(),
            causes: vec![Cause::Start, Cause::Retry { key: key.into(), attempt: 3, reason: "timeout" }],
            cause_count: 2,
            class: "resync",
            outcome: Outcome::Done,
            looked: true,
            message: "no such module".into(),
            finished_at: Timestamp::UNIX_EPOCH,
            queued_seconds: 0.0,
            work_seconds: 0.0,
            stages: Vec::new(),
            next_try_seconds: None,
        }
    }

    #[test]
    fn keeps_the_newest_records_of_each_runtime() {
        let history = History::default();
        let key = WorkKey::Kyma { kyma: "a".into() };
        for n in 0..40 {
            history.add(&key, &record(&n.to_string()));
        }
        let records = history.of("a");
        assert_eq!((records.len(), records[0].key.as_str()), (PER_RUNTIME, "8"));
        assert_eq!(
            (&records[0].causes, records[0].message.as_str()),
            (&record("8").causes, "no such module")
        );
        history.forget("a");
        assert!(history.of("a").is_empty());
        let book = history.0.read();
        assert!(book.texts.is_empty(), "a text is held that no record has");
        assert_eq!((book.causes.len(), book.stages.len()), (0, 0));
    }

    #[test]
    fn in_a_large_fleet_each_has_fewer() {
        let history = History::default();
        for _ in 0..2 * PER_RUNTIME {
            history.add(&WorkKey::Kyma { kyma: "first".into() }, &record("k"));
        }
        for kyma in 0..ALL / LEAST {
            history.add(&WorkKey::Kyma { kyma: kyma.to_string() }, &record("k"));
        }
        assert_eq!(history.of("first").len(), PER_RUNTIME);
        for _ in 0..2 * PER_RUNTIME {
            history.add(&WorkKey::Kyma { kyma: "first".into() }, &record("k"));
        }
        assert_eq!(history.of("first").len(), LEAST);
    }
}
