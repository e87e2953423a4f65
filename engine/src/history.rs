//! What was done for each runtime, and why: the last reconciles, in memory, bounded.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use http::{Method, StatusCode};
use jiff::Timestamp;
use parking_lot::RwLock;
use serde::Serialize;
use tidewatch_api::State;

use crate::{
    key::{Cause, OutcomeKind, WorkKey},
    lists::{List, Lists},
    stages::{Stage, StageTime},
    texts::Texts,
};

/// Records kept per runtime, at most.
const PER_RUNTIME: usize = 32;
/// The same in a large fleet.
const LEAST: usize = 8;
/// Records kept of all runtimes together, unless that were fewer than [`LEAST`] of each. One takes 88 bytes and two short lists: its
/// texts are mostly those of others, and held once.
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
    /// How many causes there were; the same one twice is one.
    pub cause_count: usize,
    /// Its class in the queue.
    pub class: &'static str,
    /// How it ended.
    pub outcome: OutcomeKind,
    /// What its failure is in the status, if it has failed and could say so. Not kept: the status has it.
    #[serde(skip)]
    pub state: Option<State>,
    /// Whether its failure is what a look at everything has found. Not kept.
    #[serde(skip)]
    pub is_found: bool,
    /// Whether anything was read for it; if not, it has seen nothing.
    #[serde(skip)]
    pub looked: bool,
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
    /// Why it is tried again, or what of: one word. Not kept: the next record has it as its cause.
    #[serde(skip)]
    pub next_try_for: Option<&'static str>,
}

impl Record {
    /// Whether it ended in an error. What is a Warning waits for somebody, or for its time.
    #[must_use]
    pub fn is_error(&self) -> bool {
        match self.outcome {
            OutcomeKind::Done | OutcomeKind::Waiting => false,
            OutcomeKind::Failed => self.state == Some(State::Error),
            OutcomeKind::Lost => true,
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
    /// With their time in microseconds, which is half of the room.
    stages: Lists<(Stage, u32)>,
}

/// A [`Record`] as it is kept: there are tens of thousands of them.
#[derive(Debug)]
struct Held {
    key: u32,
    message: u32,
    causes: List,
    stages: List,
    cause_count: u32,
    class: &'static str,
    outcome: OutcomeKind,
    looked: bool,
    finished_at: Timestamp,
    queued_seconds: f64,
    work_seconds: f64,
    next_try_seconds: Option<f64>,
}

impl Book {
    fn hold(&mut self, record: &Record) -> Held {
        let Self { texts, causes, stages, .. } = self;
        let micros = |time: &StageTime| {
            let micros = Duration::try_from_secs_f64(time.seconds).unwrap_or_default().as_micros();
            (time.stage, u32::try_from(micros).unwrap_or(u32::MAX))
        };
        Held {
            key: texts.hold(&record.key),
            message: texts.hold(&record.message),
            causes: causes.put(record.causes.iter().map(|cause| cause.map(|text| texts.hold(text)))),
            stages: stages.put(record.stages.iter().map(micros)),
            cause_count: u32::try_from(record.cause_count).unwrap_or(u32::MAX),
            class: record.class,
            outcome: record.outcome,
            looked: record.looked,
            finished_at: record.finished_at,
            queued_seconds: record.queued_seconds,
            work_seconds: record.work_seconds,
            next_try_seconds: record.next_try_seconds,
        }
    }

    fn record(&self, held: &Held) -> Record {
        let mut text = |number: &u32| self.texts.text(*number).to_owned();
        let seconds = |(stage, micros): &(Stage, u32)| {
            let seconds = Duration::from_micros((*micros).into()).as_secs_f64();
            StageTime { stage: *stage, seconds }
        };
        Record {
            key: text(&held.key),
            message: text(&held.message),
            causes: self.causes.of(&held.causes).map(|cause| cause.map(&mut text)).collect(),
            stages: self.stages.of(&held.stages).map(seconds).collect(),
            cause_count: held.cause_count as usize,
            class: held.class,
            outcome: held.outcome,
            state: None,
            is_found: false,
            looked: held.looked,
            finished_at: held.finished_at,
            queued_seconds: held.queued_seconds,
            work_seconds: held.work_seconds,
            next_try_seconds: held.next_try_seconds,
            next_try_for: None,
        }
    }

    fn let_go(&mut self, records: impl IntoIterator<Item = Held>) {
        for held in records {
            self.texts.let_go(held.key);
            self.texts.let_go(held.message);
            for cause in self.causes.of(&held.causes) {
                let _: Cause<()> = cause.map(|number| self.texts.let_go(*number));
            }
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
        if matches!(key, WorkKey::EventPath { .. }) {
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
        records.map(|held| book.record(held)).collect()
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
    /// A reconcile has panicked, of which there is no record. Its key is tried again.
    fn panicked(&self, _key: &WorkKey) {}
    /// So many events asked for no reconcile, since one had read or written that very version of the object, or deleted it.
    fn no_news(&self, _events: usize) {}
    /// The API server of a runtime has answered a request, or has not.
    fn answered(&self, _method: &Method, _code: Option<StatusCode>) {}
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
            outcome: OutcomeKind::Done,
            state: None,
            is_found: false,
            looked: true,
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
    fn an_error_is_what_the_status_calls_so_and_what_it_could_not_tell() {
        for (outcome, state, is_error) in [
            (OutcomeKind::Done, None, false),
            (OutcomeKind::Waiting, None, false),
            (OutcomeKind::Failed, Some(State::Warning), false),
            (OutcomeKind::Failed, Some(State::Processing), false),
            (OutcomeKind::Failed, Some(State::Error), true),
            (OutcomeKind::Lost, None, true),
        ] {
            let record = Record { outcome, state, ..record("k") };
            assert_eq!(record.is_error(), is_error, "{outcome:?} {state:?}");
        }
    }

    #[test]
    fn a_record_comes_back_as_it_was() {
        let stage = |stage, seconds| StageTime { stage, seconds };
        let record = Record {
            cause_count: 12,
            outcome: OutcomeKind::Failed,
            finished_at: Timestamp::from_second(1_700_000_000).expect("a time"),
            queued_seconds: 1.25,
            work_seconds: 0.5,
            stages: vec![stage(Stage::ReadKcp, 0.001_5), stage(Stage::Apply, 90.0)],
            next_try_seconds: Some(30.0),
            ..record("Manifest/a")
        };
        let history = History::default();
        history.add(&WorkKey::Kyma { kyma: "a".into() }, &record);
        assert_eq!(format!("{:?}", history.of("a")), format!("{:?}", [record]));
        assert!(size_of::<Held>() <= 96, "{} bytes", size_of::<Held>());
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
