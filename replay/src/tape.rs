//! The record as the engine's world: answers its calls, and says when its reconciles may go on.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serde_json::Value;
use tidewatch_engine::{
    Cause,
    journal::{Answer, Ask, Ended, Line, Player, WorkName, redact::is_of_secrets},
};
use tokio::{sync::oneshot, time::Instant};

use crate::{
    read::Record,
    report::{Call, Decision, Divergence, Item},
};

/// Divergences that are told one by one; further ones are counted.
const TOLD: usize = 200;
/// Recorded calls that are shown beside one that the record does not have.
const NEARBY: usize = 3;

/// A call of the record.
struct Recorded {
    ask: Ask,
    /// Once its line was reached.
    answer: Option<Answer>,
    taken: bool,
    waiting: Vec<oneshot::Sender<Answer>>,
}

/// The turns of a reconcile at one place.
#[derive(Default)]
struct Turns {
    /// Lines that are still to come, and such that have come before somebody waited.
    to_come: usize,
    passed: usize,
    turners: VecDeque<oneshot::Sender<()>>,
}

/// A reconcile of the record.
#[derive(Default)]
struct Work {
    key: Option<WorkName>,
    /// When it began here.
    began: Option<f64>,
    causes: Vec<Cause>,
    asks: Vec<Recorded>,
    /// By place.
    turns: HashMap<String, Turns>,
    values: HashMap<String, VecDeque<Value>>,
    /// By what: values whose lines were reached before somebody asked, and who asked before.
    read: HashMap<String, usize>,
    readers: HashMap<String, VecDeque<oneshot::Sender<()>>>,
    clock: VecDeque<Timestamp>,
    /// Whether the record has its end.
    ends: bool,
    /// How it ended in the record, once that line was reached.
    end: Option<(String, String)>,
    /// And when.
    end_at: Option<Instant>,
    ended: Option<Ended>,
    ender: Option<oneshot::Sender<()>>,
    calls: Vec<(Call, Option<usize>)>,
    told: bool,
}

struct Inner {
    works: BTreeMap<u64, Work>,
    /// By call: its reconcile, and its place there.
    calls: HashMap<u64, (u64, usize)>,
    /// What was read elsewhere, whoever has read it first.
    values: HashMap<String, Value>,
    layers: HashMap<String, Vec<Value>>,
    items: Vec<Item>,
    divergences: usize,
    at: f64,
    started: Timestamp,
    begun: Instant,
    last: Timestamp,
}

/// The player of one record. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Tape(Arc<Mutex<Inner>>);

impl Tape {
    /// Made in the runtime whose time is the record's.
    pub(crate) fn new(record: &Record) -> Self {
        let started = record.start.started;
        let mut inner = Inner {
            works: BTreeMap::new(),
            calls: HashMap::new(),
            values: HashMap::new(),
            layers: HashMap::new(),
            items: Vec::new(),
            divergences: 0,
            at: 0.0,
            started,
            begun: Instant::now(),
            last: started,
        };
        for line in &record.lines {
            match &line.line {
                Line::Begin { work, key, .. } => inner.work(*work).key = Some(key.clone()),
                Line::Turn { work, place } => {
                    inner.work(*work).turns.entry(place.clone()).or_default().to_come += 1;
                }
                Line::Ask(ask) => {
                    let asks = &mut inner.works.entry(ask.work).or_default().asks;
                    inner.calls.insert(ask.call, (ask.work, asks.len()));
                    let ask = ask.clone();
                    asks.push(Recorded { ask, answer: None, taken: false, waiting: Vec::new() });
                }
                Line::Value { work, what, value } => {
                    // What could be read in the end is what others have had from there.
                    match inner.values.get_mut(what) {
                        Some(known) if known.get("refused").is_some() => known.clone_from(value),
                        Some(_) => {}
                        None => drop(inner.values.insert(what.clone(), value.clone())),
                    }
                    inner.work(*work).values.entry(what.clone()).or_default().push_back(value.clone());
                }
                Line::Layer { digest, objects } => {
                    inner.layers.insert(digest.clone(), objects.clone());
                }
                Line::End { work, clock, .. } => {
                    let of = inner.work(*work);
                    (of.ends, of.clock) = (true, clock.iter().copied().collect());
                }
                _ => {}
            }
        }
        Self(Arc::new(Mutex::new(inner)))
    }

    /// The record's time has come to here.
    pub(crate) fn at(&self, at: f64) {
        self.0.lock().at = at;
    }

    pub(crate) fn note(&self, text: String) {
        let mut inner = self.0.lock();
        let at = inner.at;
        inner.items.push(Item::Note { at, text });
    }

    /// A reconcile begins, for these causes.
    pub(crate) fn begin(&self, work: u64, causes: Vec<Cause>) {
        let mut inner = self.0.lock();
        let at = inner.at;
        let of = inner.work(work);
        (of.began, of.causes) = (Some(at), causes);
    }

    pub(crate) fn diverge(&self, work: u64, what: String, recorded: Vec<String>) {
        self.0.lock().diverge(work, what, recorded);
    }

    /// An answer's line was reached.
    pub(crate) fn answer(&self, call: u64, answer: &Answer) {
        let mut inner = self.0.lock();
        let Some((work, place)) = inner.calls.get(&call).copied() else { return };
        let Some(recorded) = inner.work(work).asks.get_mut(place) else { return };
        recorded.answer = Some(answer.clone());
        for waiting in recorded.waiting.drain(..) {
            // Who does not wait any more does not hear it.
            let _ = waiting.send(answer.clone());
        }
    }

    /// A turn's line was reached.
    pub(crate) fn pass(&self, work: u64, place: &str) {
        let mut inner = self.0.lock();
        let Some(turns) = inner.work(work).turns.get_mut(place) else { return };
        turns.to_come = turns.to_come.saturating_sub(1);
        match turns.turners.pop_front() {
            Some(turner) => drop(turner.send(())),
            None => turns.passed += 1,
        }
    }

    /// The line of something that was read elsewhere was reached.
    pub(crate) fn read(&self, work: u64, what: &str) {
        let mut inner = self.0.lock();
        let of = inner.work(work);
        match of.readers.get_mut(what).and_then(VecDeque::pop_front) {
            Some(reader) => drop(reader.send(())),
            None => *of.read.entry(what.to_owned()).or_default() += 1,
        }
    }

    /// The line of a reconcile's end was reached.
    pub(crate) fn finish(&self, work: u64, outcome: &str, message: &str) {
        let mut inner = self.0.lock();
        let at = inner.begun + Duration::from_secs_f64(inner.at.max(0.0) / 1000.0);
        let of = inner.work(work);
        of.end = Some((outcome.to_owned(), message.to_owned()));
        of.end_at = Some(at);
        of.turns.clear();
        of.readers.clear();
        if of.ended.is_some() {
            inner.tell(work);
        }
        if let Some(ender) = inner.work(work).ender.take() {
            let _ = ender.send(());
        }
    }

    /// The record has ended: tells of what is left.
    pub(crate) fn close(&self) {
        let mut inner = self.0.lock();
        let begun = inner.works.iter().filter(|(_, of)| of.began.is_some() && !of.told);
        let left: Vec<u64> = begun.map(|(work, _)| *work).collect();
        for work in left {
            let of = inner.work(work);
            if let Some((outcome, message)) = of.end.clone() {
                let what = "the reconcile has not ended here".to_owned();
                inner.diverge(work, what, vec![said(&outcome, &message)]);
            }
            inner.tell(work);
        }
    }

    pub(crate) fn take(&self) -> (Vec<Item>, usize) {
        let mut inner = self.0.lock();
        (std::mem::take(&mut inner.items), inner.divergences)
    }
}

fn said(outcome: &str, message: &str) -> String {
    if message.is_empty() { outcome.to_owned() } else { format!("{outcome}: {message}") }
}

fn shown(ask: &Ask) -> String {
    let Ask { to, method, path, body, .. } = ask;
    match body {
        Some(body) => format!("{to} {method} {path} (content {body})"),
        None => format!("{to} {method} {path}"),
    }
}

/// What reconciles of one runtime have from each other: whoever comes first reads it.
fn is_shared(ask: &Ask) -> bool {
    let path = ask.path.split('?').next().unwrap_or_default();
    let parts: Vec<&str> = path.split('/').collect();
    let is_discovery = matches!(parts[..], ["", "api", _] | ["", "apis", _, _]);
    ask.method == "GET" && (is_discovery || ask.to == "kcp" && is_of_secrets(path))
}

impl Inner {
    fn work(&mut self, work: u64) -> &mut Work {
        self.works.entry(work).or_default()
    }

    fn name(&self, work: u64) -> (String, String) {
        let name = self.works.get(&work).and_then(|of| of.key.as_ref());
        let key = name.and_then(WorkName::key).map(|key| key.to_string());
        (key.unwrap_or_else(|| "?".to_owned()), name.map(|name| name.kyma.clone()).unwrap_or_default())
    }

    fn diverge(&mut self, work: u64, what: String, recorded: Vec<String>) {
        self.divergences += 1;
        if self.divergences <= TOLD {
            let ((key, kyma), at) = (self.name(work), self.at);
            self.items.push(Item::Divergence(Divergence { at, key, kyma, what, recorded }));
        }
    }

    /// Tells a reconcile that has ended, or will not.
    fn tell(&mut self, work: u64) {
        let ((key, kyma), at) = (self.name(work), self.at);
        let of = self.work(work);
        if std::mem::replace(&mut of.told, true) {
            return;
        }
        let (ended, recorded) = (of.ended.clone(), of.end.clone());
        let unmade: Vec<Ask> = of.asks.iter().filter(|r| !r.taken).map(|r| r.ask.clone()).collect();
        let calls = of.calls.iter().map(|(call, place)| {
            let answer = place.and_then(|place| of.asks.get(place)?.answer.as_ref());
            match answer {
                Some(answer) => Call { answer: word(answer), ..call.clone() },
                None => call.clone(),
            }
        });
        let decision = Decision {
            began: of.began.unwrap_or(at),
            ended: ended.as_ref().map(|_| at),
            key,
            kyma,
            causes: of.causes.clone(),
            outcome: ended.as_ref().map_or("unfinished", |ended| ended.outcome.label()).to_owned(),
            message: ended.as_ref().map(|ended| ended.message.clone()).unwrap_or_default(),
            next: ended.as_ref().and_then(|ended| ended.next),
            calls: calls.collect(),
        };
        self.items.push(Item::Decision(decision));
        let (Some(ended), Some((outcome, message))) = (ended, recorded) else { return };
        for ask in unmade.iter().filter(|ask| !is_shared(ask)) {
            self.diverge(work, format!("not called any more: {}", shown(ask)), Vec::new());
        }
        if ended.outcome.label() != outcome || ended.message != message {
            let what = format!("another end: {}", said(ended.outcome.label(), &ended.message));
            self.diverge(work, what, vec![said(&outcome, &message)]);
        }
    }

    fn ask(&mut self, ask: Ask) -> Given {
        let of = self.works.entry(ask.work).or_default();
        let call = Call {
            to: ask.to.clone(),
            method: ask.method.clone(),
            path: ask.path.clone(),
            answer: "no answer".to_owned(),
        };
        let open = |same: &dyn Fn(&Ask) -> bool| of.asks.iter().position(|r| !r.taken && same(&r.ask));
        let like = |other: &Ask| other.to == ask.to && other.method == ask.method && other.path == ask.path;
        let exact = open(&|other| like(other) && other.body == ask.body);
        let near = exact.or_else(|| open(&like));
        if let Some(place) = near {
            of.calls.push((call, Some(place)));
            let Some(recorded) = of.asks.get_mut(place) else { return Given::Never };
            recorded.taken = true;
            let given = recorded.given();
            if exact.is_none() {
                let before = shown(&recorded.ask);
                self.diverge(ask.work, format!("called with another content: {}", shown(&ask)), vec![before]);
            }
            return given;
        }
        if is_shared(&ask) {
            let others = self.works.values_mut().flat_map(|of| &mut of.asks).filter(|r| like(&r.ask));
            // The last that is there already, else the first that will be.
            let (there, later): (Vec<_>, Vec<_>) = others.partition(|r| r.answer.is_some());
            if let Some(recorded) = there.into_iter().last().or(later.into_iter().next()) {
                return recorded.given();
            }
        }
        let of = self.work(ask.work);
        if !of.ends {
            // The record ends before.
            return Given::Never;
        }
        let nearby = of.asks.iter().filter(|r| !r.taken).take(NEARBY).map(|r| shown(&r.ask)).collect();
        of.calls.push((Call { answer: "not in the record".to_owned(), ..call }, None));
        self.diverge(ask.work, format!("called, which the record does not have: {}", shown(&ask)), nearby);
        Given::Now(Answer::Failed { message: "the record has no answer to this call".to_owned() })
    }
}

/// When a call is answered.
enum Given {
    Now(Answer),
    Later(oneshot::Receiver<Answer>),
    Never,
}

impl Recorded {
    fn given(&mut self) -> Given {
        match &self.answer {
            Some(answer) => Given::Now(answer.clone()),
            None => {
                let (sender, receiver) = oneshot::channel();
                self.waiting.push(sender);
                Given::Later(receiver)
            }
        }
    }
}

fn word(answer: &Answer) -> String {
    match answer {
        Answer::Status { status, .. } => status.to_string(),
        Answer::Failed { .. } => "failed".to_owned(),
        Answer::Throttled { .. } => "429".to_owned(),
        Answer::TooLarge => "too large".to_owned(),
        Answer::Cut => "no answer".to_owned(),
    }
}

/// Resolves when the conductor says so; if it does not any more, at once.
fn told(receiver: oneshot::Receiver<()>) -> BoxFuture<'static, ()> {
    receiver.map(|_| ()).boxed()
}

impl Player for Tape {
    fn ask(&self, ask: Ask) -> BoxFuture<'static, Answer> {
        match self.0.lock().ask(ask) {
            Given::Now(answer) => futures::future::ready(answer).boxed(),
            Given::Later(receiver) => async {
                match receiver.await {
                    Ok(answer) => answer,
                    Err(_) => std::future::pending().await,
                }
            }
            .boxed(),
            Given::Never => futures::future::pending().boxed(),
        }
    }

    fn value(&self, work: u64, what: &str) -> BoxFuture<'static, Option<Value>> {
        let mut inner = self.0.lock();
        let of = inner.work(work);
        if let Some(own) = of.values.get_mut(what).and_then(VecDeque::pop_front) {
            if of.end.is_some() {
                return futures::future::ready(Some(own)).boxed();
            }
            if let Some(read) = of.read.get_mut(what).filter(|read| **read > 0) {
                *read -= 1;
                return futures::future::ready(Some(own)).boxed();
            }
            let (sender, receiver) = oneshot::channel();
            of.readers.entry(what.to_owned()).or_default().push_back(sender);
            return told(receiver).map(|()| Some(own)).boxed();
        }
        // Another reconcile may have read it, and this one had it from there.
        let found = inner.values.get(what).cloned();
        if found.is_none() && inner.work(work).ends {
            inner.diverge(work, format!("read, which the record does not have: {what}"), Vec::new());
        }
        futures::future::ready(found).boxed()
    }

    fn noted(&self, work: u64, what: &str) -> Option<Value> {
        self.0.lock().work(work).values.get_mut(what).and_then(VecDeque::pop_front)
    }

    fn layer(&self, digest: &str) -> Option<Vec<Value>> {
        self.0.lock().layers.get(digest).cloned()
    }

    fn turn(&self, work: u64, place: &'static str) -> BoxFuture<'static, ()> {
        let mut inner = self.0.lock();
        // One that the record does not have: what is learned together, this one learns here, or the reconcile has ended there.
        let Some(turns) = inner.work(work).turns.get_mut(place) else {
            return futures::future::ready(()).boxed();
        };
        if turns.passed > 0 {
            turns.passed -= 1;
            return futures::future::ready(()).boxed();
        }
        if turns.to_come == turns.turners.len() {
            return futures::future::ready(()).boxed();
        }
        let (sender, receiver) = oneshot::channel();
        turns.turners.push_back(sender);
        told(receiver)
    }

    fn end(&self, ended: Ended) -> BoxFuture<'static, Option<Instant>> {
        let tape = self.clone();
        let mut inner = self.0.lock();
        let work = ended.work;
        let of = inner.work(work);
        of.ended = Some(ended);
        if of.end.is_some() {
            let at = of.end_at;
            inner.tell(work);
            return futures::future::ready(at).boxed();
        }
        let (sender, receiver) = oneshot::channel();
        of.ender = Some(sender);
        told(receiver).map(move |()| tape.0.lock().work(work).end_at).boxed()
    }

    fn now(&self, work: Option<u64>) -> Timestamp {
        let mut inner = self.0.lock();
        let recorded = work.and_then(|work| inner.work(work).clock.pop_front());
        let passed = SignedDuration::try_from(inner.begun.elapsed()).unwrap_or_default();
        let now = recorded.unwrap_or_else(|| inner.started.saturating_add(passed).unwrap_or(inner.last));
        inner.last = now;
        now
    }
}

#[cfg(test)]
mod tests;
