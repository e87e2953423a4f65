//! What goes into the engine, written to a record or played back from one.
//!
//! The engine's inputs are few: what KCP's watches tell, what it is asked for, what its calls answer, and the clock. Each
//! passes here. Without a record that costs a look at an empty option. While one is written ([`Recorder`]), each input becomes
//! a [`Line`]. While one is played, a [`Player`] answers in place of sockets and clock, and says when a reconcile may go on:
//! what it sees of KCP, and when it ends, come in the order in which the record has them, so that the threads of the
//! recorded program are an input like any other.

mod line;
mod record;
pub mod redact;
mod tap;

use std::{future::Future, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use jiff::Timestamp;
use kube::Client;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use serde_json::Value;
use tokio::time::Instant;

pub use line::{
    Answer, Ask, Content, FORMAT, KcpChange, KcpEvent, Line, RuntimeEvent, Stamped, Start, WorkName, word,
};
pub(crate) use line::{millis, word_of};
pub use record::{Recorder, Recording, Writer};
pub use tap::Tap;

use crate::{
    drive::EngineConfig,
    key::{Cause, Outcome, WorkKey},
    queue::Class,
};

/// Answers in place of what is outside. Its methods are called from reconciles, and by their numbers in the record.
pub trait Player: Send + Sync + 'static {
    /// A call is made; resolves when the record's time has come to the answer.
    fn ask(&self, ask: Ask) -> BoxFuture<'static, Answer>;
    /// Something is read elsewhere; resolves when the record's time has come to it. `None`: the record does not have it.
    fn value(&self, work: u64, what: &str) -> BoxFuture<'static, Option<Value>>;
    /// Whether something of this kind was noted of this very reconcile, and what.
    fn noted(&self, work: u64, what: &str) -> Option<Value>;
    /// The objects of a layer.
    fn layer(&self, digest: &str) -> Option<Vec<Value>>;
    /// A reconcile wants to look at what is known of KCP, at this place in it; resolves when it did so in the record.
    fn turn(&self, work: u64, place: &'static str) -> BoxFuture<'static, ()>;
    /// A reconcile has ended; resolves when it did so in the record, and says when that was. `None`: the record has no word of it.
    fn end(&self, ended: Ended) -> BoxFuture<'static, Option<Instant>>;
    /// What the clock says.
    fn now(&self, work: Option<u64>) -> Timestamp;
}

/// How a reconcile has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// Its number.
    pub work: u64,
    /// How.
    pub outcome: Outcome,
    /// What it found.
    pub message: String,
    /// In how many seconds the next try is due at the latest.
    pub next: Option<f64>,
}

/// Where inputs pass. By default nothing is recorded and nothing played. Cheap to clone.
#[derive(Clone, Default)]
pub struct Journal(Option<Kind>);

#[derive(Clone)]
enum Kind {
    Record(Recorder),
    Play(Arc<dyn Player>),
}

/// A reconcile that is recorded or played.
#[derive(Debug)]
pub(crate) struct Trace {
    work: u64,
    clock: Mutex<Vec<Timestamp>>,
}

tokio::task_local! {
    static TRACE: Arc<Trace>;
}

/// Times that are kept of a reconcile's clock; far more than one asks for.
const TIMES: usize = 1000;

fn current() -> Option<u64> {
    TRACE.try_with(|trace| trace.work).ok()
}

/// Does a reconcile's work in its trace.
pub(crate) async fn within<T>(trace: Option<Arc<Trace>>, work: impl Future<Output = T>) -> T {
    match trace {
        Some(trace) => TRACE.scope(trace, work).await,
        None => work.await,
    }
}

impl Journal {
    /// Inputs are recorded.
    #[must_use]
    pub fn recording(recorder: Recorder) -> Self {
        Self(Some(Kind::Record(recorder)))
    }

    /// Inputs are played.
    #[must_use]
    pub fn playing(player: Arc<dyn Player>) -> Self {
        Self(Some(Kind::Play(player)))
    }

    fn recorder(&self) -> Option<&Recorder> {
        match &self.0 {
            Some(Kind::Record(recorder)) if recorder.is_open() => Some(recorder),
            _ => None,
        }
    }

    fn player(&self) -> Option<&Arc<dyn Player>> {
        match &self.0 {
            Some(Kind::Play(player)) => Some(player),
            _ => None,
        }
    }

    /// Whether a record is written.
    #[must_use]
    pub fn is_recording(&self) -> bool {
        self.recorder().is_some()
    }

    /// Notes an input, while a record is written. It must hold no data of Secrets.
    pub fn note(&self, line: impl FnOnce() -> Line) {
        if let Some(recorder) = self.recorder() {
            recorder.note(line());
        }
    }

    /// Records the calls of reconciles to `to`; nothing without a record.
    #[must_use]
    pub fn tap(&self, to: &str) -> Tap {
        Tap::new(self.clone(), to)
    }

    /// A client whose calls the record answers; `None` if nothing is played. Needs a running tokio runtime.
    #[must_use]
    pub fn client(&self, to: &str, namespace: &str) -> Option<Client> {
        self.player().map(|player| tap::played(player, to, namespace))
    }

    /// A reconcile begins. `None`: nobody wants to know.
    pub(crate) fn begin(
        &self,
        key: &WorkKey,
        class: Class,
        (causes, count, repeats): (&[Cause], usize, usize),
    ) -> Option<Arc<Trace>> {
        let recorder = self.recorder()?;
        let work = recorder.next_work();
        let causes = causes.iter().filter_map(|cause| serde_json::to_value(cause).ok()).collect();
        let class = class.label().to_owned();
        recorder.note(Line::Begin { work, key: key.into(), class, causes, count, repeats });
        Some(Trace::new(work))
    }

    /// The reconcile in which this is called looks at what is known. In a record it is certain then what was told before and what after:
    /// both are written down with the lock in hand.
    ///
    /// `place` tells it from the other looks of the same reconcile: one that a replay makes and the record does not, since it shares with
    /// others what it learns, takes no other's turn.
    pub(crate) async fn look<'a, T>(&self, place: &'static str, at: &'a RwLock<T>) -> RwLockReadGuard<'a, T> {
        self.turn_of_player(place).await;
        let guard = at.read();
        self.note_turn(place);
        guard
    }

    /// The same, to change it.
    pub(crate) async fn change<'a, T>(
        &self,
        place: &'static str,
        what: &'a RwLock<T>,
    ) -> RwLockWriteGuard<'a, T> {
        self.turn_of_player(place).await;
        let guard = what.write();
        self.note_turn(place);
        guard
    }

    async fn turn_of_player(&self, place: &'static str) {
        if let (Some(player), Some(work)) = (self.player(), current()) {
            player.turn(work, place).await;
        }
    }

    fn note_turn(&self, place: &str) {
        if let (Some(Kind::Record(recorder)), Some(work)) = (&self.0, current()) {
            recorder.note(Line::Turn { work, place: place.to_owned() });
        }
    }

    /// The reconcile in which this is called ends. Returns when, by the record's clock: what is due a while after that is then due at the same
    /// time in a replay, to the microsecond, whatever the threads did in between.
    pub(crate) async fn end(&self, outcome: Outcome, message: &str, next: Option<f64>) -> Instant {
        let now = Instant::now();
        let Ok(trace) = TRACE.try_with(Arc::clone) else { return now };
        let (work, message) = (trace.work, message.to_owned());
        match &self.0 {
            Some(Kind::Record(recorder)) => {
                let clock = std::mem::take(&mut *trace.clock.lock());
                let line = Line::End { work, outcome: outcome.label().to_owned(), message, next, clock };
                recorder.note_at(line, now);
                now
            }
            Some(Kind::Play(player)) => {
                let ended = player.end(Ended { work, outcome, message, next }).await;
                ended.unwrap_or_else(Instant::now)
            }
            None => now,
        }
    }

    /// What the clock says, or has said in the record.
    pub(crate) fn now(&self, clock: impl FnOnce() -> Timestamp) -> Timestamp {
        match &self.0 {
            None => clock(),
            Some(Kind::Play(player)) => player.now(current()),
            Some(Kind::Record(_)) => {
                let now = clock();
                // Outside of a reconcile nobody decides anything by it.
                let _ = TRACE.try_with(|trace| {
                    let mut clock = trace.clock.lock();
                    if clock.len() < TIMES {
                        clock.push(now);
                    }
                });
                now
            }
        }
    }

    /// Notes what a reconcile has read elsewhere. The value must hold no data of Secrets.
    pub(crate) fn read(&self, what: impl FnOnce() -> String, value: impl FnOnce() -> Value) {
        if let (Some(recorder), Some(work)) = (self.recorder(), current()) {
            recorder.note(Line::Value { work, what: what(), value: value() });
        }
    }

    /// What it was that a reconcile has read elsewhere: `None` if nothing is played, and `Some(None)` if the record does not
    /// have it.
    pub(crate) async fn played(&self, what: &str) -> Option<Option<Value>> {
        let player = self.player()?;
        // What comes after it has its time by the record, too: a call that began too early would be given up too early.
        Some(match current() {
            Some(work) => player.value(work, what).await,
            None => None,
        })
    }

    /// What was noted by [`Journal::read`] of this very reconcile, if anything was. For what most reconciles do not note, such as that they
    /// have met too many others: of that a replay knows nothing else.
    pub(crate) fn noted(&self, what: &str) -> Option<Value> {
        self.player().and_then(|player| player.noted(current()?, what))
    }

    /// Whether nothing is recorded and nothing played.
    pub(crate) const fn is_off(&self) -> bool {
        self.0.is_none()
    }

    /// Whether a record is played.
    pub(crate) const fn is_playing(&self) -> bool {
        matches!(self.0, Some(Kind::Play(_)))
    }

    /// Notes the objects of a layer, once.
    pub(crate) fn layer(&self, digest: &str, objects: &[Value]) {
        let Some(recorder) = self.recorder() else { return };
        if recorder.is_new_layer(digest) {
            let mut objects = objects.to_vec();
            for object in &mut objects {
                redact::redact(object, false);
            }
            recorder.note(Line::Layer { digest: digest.to_owned(), objects });
        }
    }

    /// The objects of a layer in the record.
    pub(crate) fn played_layer(&self, digest: &str) -> Option<Vec<Value>> {
        self.player().and_then(|player| player.layer(digest))
    }
}

impl Trace {
    pub(crate) fn new(work: u64) -> Arc<Self> {
        Arc::new(Self { work, clock: Mutex::default() })
    }
}

impl Start {
    /// Of a program that begins to record now.
    #[must_use]
    pub fn new(program: &str, version: &str, started: Timestamp, config: &EngineConfig) -> Self {
        Self {
            format: FORMAT,
            program: program.to_owned(),
            version: version.to_owned(),
            started,
            namespace: config.namespace.clone(),
            modules: config.modules.clone(),
            workers: config.workers,
            per_runtime: config.per_runtime,
            deadline: millis(config.deadline),
            call_deadline: millis(config.call_deadline),
            agent_users: config.agent_users.clone(),
            restricted_modules: config.restricted_modules.clone(),
            pull_secret: config.pull_secret.clone(),
            module_cr_state: config.module_cr_state,
            keep_watcher: config.keep_watcher,
            min_window: millis(config.min_window),
            rollout_window: millis(config.rollout_window),
            patience: millis(config.patience),
        }
    }

    /// The settings of an engine that plays the record.
    #[must_use]
    pub fn config(&self) -> EngineConfig {
        EngineConfig {
            namespace: self.namespace.clone(),
            modules: self.modules.clone(),
            workers: self.workers,
            per_runtime: self.per_runtime,
            deadline: Duration::from_millis(self.deadline),
            call_deadline: Duration::from_millis(self.call_deadline),
            agent_users: self.agent_users.clone(),
            restricted_modules: self.restricted_modules.clone(),
            pull_secret: self.pull_secret.clone(),
            module_cr_state: self.module_cr_state,
            keep_watcher: self.keep_watcher,
            min_window: Duration::from_millis(self.min_window),
            rollout_window: Duration::from_millis(self.rollout_window),
            patience: Duration::from_millis(self.patience),
            ..EngineConfig::default()
        }
    }
}

impl From<&WorkKey> for WorkName {
    fn from(key: &WorkKey) -> Self {
        let name = match key {
            WorkKey::Manifest { name, .. } | WorkKey::Watcher { name } => name.as_str(),
            WorkKey::Release { module } => module,
            _ => "",
        };
        Self { kind: key.kind().to_owned(), kyma: key.kyma().to_owned(), name: name.to_owned() }
    }
}

impl WorkName {
    /// The key; `None` if this program has no such kind.
    #[must_use]
    pub fn key(&self) -> Option<WorkKey> {
        let (kyma, name) = (self.kyma.clone(), self.name.clone());
        Some(match self.kind.as_str() {
            "Kyma" => WorkKey::Kyma { kyma },
            "Path" => WorkKey::Path { kyma },
            "Manifest" => WorkKey::Manifest { kyma, name },
            "Mandatory" => WorkKey::Mandatory { kyma },
            "Agent" => WorkKey::Agent { kyma },
            "Catalog" => WorkKey::Catalog { kyma },
            "Exchange" => WorkKey::Exchange { kyma },
            "Release" => WorkKey::Release { module: name },
            "Watcher" => WorkKey::Watcher { name },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests;
