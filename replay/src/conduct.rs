//! Walks along a record and lets happen what it says.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use serde_json::Value;
use tidewatch_engine::{
    Cause, Engine, Journal, WorkKey,
    drive::Mode,
    history::{self, Observer},
    journal::{KcpEvent, Line, WorkName, word},
    kcp::PathReport,
    oci::OciError,
    plan::windows::Policy,
    queue::Class,
};
use tidewatch_receiver::route;
use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};

use crate::{
    read::{End, Record},
    report::Replayed,
    tape::Tape,
};

/// Timers fire on the millisecond after their time, so what a reconcile waits for may be due a bit later than it was.
const SLACK: Duration = Duration::from_millis(5);
/// What has waited for longer when the record ends should have been done in it.
const OVERDUE: Duration = Duration::from_secs(30);

/// What is played.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Options {
    /// Up to this time of the record, in milliseconds.
    pub until: Option<f64>,
}

/// Why nothing is played.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// No thread.
    #[error("the replay's runtime cannot be made; are there threads and memory left?")]
    Runtime(#[source] std::io::Error),
    /// The engine.
    #[error("the engine cannot be made by the record's settings")]
    Engine(#[from] OciError),
    /// No client without a record.
    #[error("the engine cannot be connected with the record")]
    Client,
}

struct Unseen;

impl Observer for Unseen {
    fn reconciled(&self, _: &WorkKey, _: &history::Record) {}

    fn reachable(&self, _: &str, _: bool) {}
}

/// Tells when there is nothing left to compute at this time.
#[derive(Default)]
struct Idle {
    wanted: AtomicBool,
    told: Notify,
}

impl Idle {
    /// The thread is about to sleep.
    fn park(&self) {
        if self.wanted.swap(false, Ordering::Relaxed) {
            self.told.notify_one();
        }
    }

    async fn settled(&self) {
        self.wanted.store(true, Ordering::Relaxed);
        self.told.notified().await;
    }
}

/// Plays a record. Blocks the thread for as long as it takes to compute; no time passes for what the record has waited for. `progress` hears how
/// many lines were played. Not to be called from async code: run it on a thread of its own.
pub fn replay(
    record: &Record,
    options: &Options,
    progress: impl FnMut(usize),
) -> Result<Replayed, ReplayError> {
    let idle = Arc::new(Idle::default());
    let parked = Arc::clone(&idle);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .on_thread_park(move || parked.park())
        .build()
        .map_err(ReplayError::Runtime)?;
    runtime.block_on(conduct(record, options, &idle, progress))
}

async fn conduct(
    record: &Record,
    options: &Options,
    idle: &Idle,
    mut progress: impl FnMut(usize),
) -> Result<Replayed, ReplayError> {
    let tape = Tape::new(record);
    let journal = Journal::playing(Arc::new(tape.clone()));
    let kcp = journal.client("kcp", &record.start.namespace).ok_or(ReplayError::Client)?;
    // The journal's clock comes first.
    let clock = Arc::new(|| Timestamp::UNIX_EPOCH);
    let engine = Engine::recorded(kcp, record.start.config(), Arc::new(Unseen), clock, journal)?;
    let (feeds, inlets) = engine.play_feeds();
    let mut conductor = Conductor { tape, engine, inlets, surplus: HashMap::new(), decisions: 0 };
    let begun = Instant::now();
    let mut until = record.duration();
    for (number, line) in record.lines.iter().enumerate() {
        if options.until.is_some_and(|until| line.at > until) {
            until = options.until.unwrap_or(until);
            break;
        }
        let due = begun + Duration::from_secs_f64(line.at.max(0.0) / 1000.0);
        if due > Instant::now() {
            tokio::time::sleep_until(due).await;
        }
        idle.settled().await;
        conductor.tape.at(line.at);
        conductor.play(&line.line).await;
        progress(number + 1);
    }
    idle.settled().await;
    conductor.tape.at(until);
    conductor.overdue();
    conductor.tape.close();
    match record.end {
        End::Closed => {}
        _ if options.until.is_some_and(|until| until < record.duration()) => {}
        End::Full(limit) => {
            conductor.tape.note(format!("the record is full here: it was limited to {} MiB", limit >> 20));
        }
        End::CutOff => conductor.tape.note("the record is cut off here".to_owned()),
    }
    drop(feeds);
    let decisions = conductor.decisions;
    let (items, divergences) = conductor.tape.take();
    Ok(Replayed { items, decisions, divergences })
}

struct Conductor {
    tape: Tape,
    engine: Engine,
    inlets: BTreeMap<String, mpsc::Sender<KcpEvent>>,
    /// By key.
    surplus: HashMap<WorkName, Surplus>,
    decisions: usize,
}

/// For what the last reconcile of a key was done here besides what the record says. The record has another one for that.
#[derive(Debug, Default, PartialEq)]
struct Surplus {
    causes: Vec<Value>,
    /// How many more: of many causes, the first few are known.
    more: usize,
    /// All that are known, and how often one of them came again, which a queue does not keep apart.
    had: Vec<Value>,
    again: usize,
}

impl Surplus {
    fn of(
        (played, count, again): (&[Value], usize, usize),
        (recorded, recorded_count): (&[Value], usize),
    ) -> Self {
        let causes = without(played, recorded);
        let more = count.saturating_sub(recorded_count).saturating_sub(causes.len());
        Self { causes, more, had: played.to_vec(), again }
    }

    /// Whether all that has asked for a reconcile in the record was seen to here before. A retry that waited for its time was done with it.
    fn has(&self, recorded: &[Value]) -> bool {
        let left = without(recorded, &self.causes);
        let (again, unknown): (Vec<_>, Vec<_>) =
            left.iter().filter(|cause| !is_retry(cause)).partition(|cause| self.had.contains(cause));
        // What came again may have been any of them.
        let missing = unknown.len() + again.len().saturating_sub(self.again);
        (left.len() < recorded.len() || !unknown.is_empty() || !again.is_empty()) && missing <= self.more
    }
}

impl Conductor {
    async fn play(&mut self, line: &Line) {
        let (engine, tape) = (&self.engine, &self.tape);
        match line {
            Line::Kcp(event) => {
                if let Some(inlet) = self.inlets.get(&event.kind) {
                    // Its task lives as long as the feeds.
                    let _ = inlet.send(event.clone()).await;
                }
            }
            Line::Event(event) => route::replay(engine, event),
            Line::Push { key, class, cause } => {
                if let (Some(key), Some(class)) = (key.key(), class_of(class)) {
                    engine.ask(key, class, cause_of(cause.as_ref()));
                }
            }
            Line::Configure { kyma, cause } => engine.configure_agent(kyma, cause_of(cause.as_ref())),
            Line::Catalog { kyma, cause } => engine.check_catalog(kyma, cause_of(cause.as_ref())),
            Line::Path { kyma, proven, reason, message } => {
                let report = PathReport { proven: *proven, reason: word(reason), message: message.clone() };
                engine.tell_path(kyma, report);
            }
            Line::Mode { mode } => match mode.as_str() {
                "live" => engine.set_mode(Mode::Live),
                "paused" => engine.set_mode(Mode::Paused),
                _ => engine.set_mode(Mode::Standby),
            },
            Line::Windows { text, name } => match Policy::parse(text) {
                Ok(policy) => engine.set_windows(Some(policy), name),
                Err(_) => tape.note("a policy of maintenance windows cannot be read any more".to_owned()),
            },
            Line::Begin { work, key, causes, count, repeats, .. } => {
                self.begin(*work, key, causes, (*count, *repeats));
            }
            Line::Turn { work, place } => tape.pass(*work, place),
            Line::Answer { call, answer } => tape.answer(*call, answer),
            Line::Value { work, what, .. } => tape.read(*work, what),
            Line::End { work, outcome, message, .. } => tape.finish(*work, outcome, message),
            Line::Gap { lines } => tape.note(format!(
                "{lines} lines are missing here: they came faster than they could be written; what follows may differ"
            )),
            // Known from the beginning.
            Line::Start(_)
            | Line::Ask(_)
            | Line::Layer { .. }
            | Line::Full { .. }
            | Line::Closed => {}
        }
    }

    fn begin(&mut self, work: u64, name: &WorkName, recorded: &[Value], (count, repeats): (usize, usize)) {
        let Some(key) = name.key() else {
            self.tape.note(format!("this program knows nothing of the kind {}", name.kind));
            return;
        };
        self.decisions += 1;
        let known: Vec<Cause> = recorded.iter().filter_map(|cause| cause_of(Some(cause))).collect();
        let count = count.max(recorded.len());
        let played = self.engine.play(&key, work, (known.clone(), count), SLACK);
        // What came again in the record, too, was seen to by its reconcile.
        let again = played.repeats.saturating_sub(repeats);
        let causes: Vec<Value> = played.causes.iter().filter_map(|c| serde_json::to_value(c).ok()).collect();
        let before = self.surplus.remove(name);
        // Two threads of the recorded program may have met here: what asked for this was already seen to, here.
        let was_seen_to = before.is_some_and(|before| before.has(recorded));
        let told = if played.was_asked || was_seen_to { None } else { Some(()) };
        self.surplus.insert(name.clone(), Surplus::of((&causes, played.count, again), (recorded, count)));
        let shown = if played.causes.is_empty() { known } else { played.causes };
        self.tape.begin(work, shown);
        if told.is_some() {
            let why = recorded.iter().map(ToString::to_string).collect();
            self.tape.diverge(work, "nothing has asked for this reconcile".to_owned(), why);
        }
        if played.task.is_none() {
            let what = "the reconcile of this key before has not ended here".to_owned();
            self.tape.diverge(work, what, Vec::new());
        }
    }

    /// Tells of what waits for a reconcile that the record does not have.
    fn overdue(&self) {
        let queue = self.engine.queue();
        let now = queue.now();
        let mut waiting: Vec<(WorkKey, Duration)> = queue.inspect(|queue| {
            let waiting = queue.waiting().map(|(key, since)| (key.clone(), now.saturating_sub(since)));
            waiting.filter(|(_, waits)| *waits > OVERDUE).collect()
        });
        waiting.sort();
        for (key, waits) in waiting {
            self.tape.note(format!(
                "{key} was asked for {} s before the end, and the record has no reconcile of it",
                waits.as_secs()
            ));
        }
    }
}

/// What is in `all` and not, as often, in `some`.
fn without(all: &[Value], some: &[Value]) -> Vec<Value> {
    let mut some: Vec<&Value> = some.iter().collect();
    let is_more = |cause: &&Value| match some.iter().position(|other| other == cause) {
        Some(place) => {
            some.swap_remove(place);
            false
        }
        None => true,
    };
    all.iter().filter(is_more).cloned().collect()
}

fn is_retry(cause: &Value) -> bool {
    matches!(cause_of(Some(cause)), Some(Cause::Retry { .. }))
}

fn class_of(label: &str) -> Option<Class> {
    Class::ALL.into_iter().find(|class| class.label() == label)
}

fn cause_of(value: Option<&Value>) -> Option<Cause> {
    serde_json::from_value(value?.clone()).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_came_with_many_others_was_seen_to_with_them() {
        let event = |seq: u32| json!({"type": "event", "object": "ConfigMap a", "epoch": "e", "seq": seq, "watch": "w"});
        let retry = || json!({"type": "retry", "key": "Manifest/m", "attempt": 1, "reason": "waiting"});
        let known: Vec<Value> = (0..8).map(event).collect();
        // An event that came while the reconcile began is the record's next reason, and was among the many here.
        let many = Surplus::of((&known, 15, 0), (&known, 14));
        assert!(many.has(&[retry(), event(14)]));
        assert!(!many.has(&[event(14), event(15)]), "there was one more, and not two");
        let few = Surplus::of((&known[..2], 2, 0), (&known[..1], 1));
        assert_eq!((&*few.causes, few.more), (&[event(1)][..], 0));
        assert!(few.has(&[retry(), event(1)]) && !few.has(&[event(2)]));
        assert!(!few.has(&[retry()]), "a retry that nothing has brought forward");
        assert!(!Surplus::default().has(&[event(1)]));
    }

    /// Two Manifests whose kinds change are one cause for the agent's configuration where it is asked for between the two begins,
    /// and one each where the record's reconcile began between them.
    #[test]
    fn what_came_twice_was_seen_to_with_the_first() {
        let kinds = || json!({"type": "kcp", "object": "Agent/a", "change": "kinds of a manifest changed"});
        let retry = || json!({"type": "retry", "key": "Agent/a", "attempt": 1, "reason": "waiting"});
        let twice = Surplus::of((&[kinds()], 1, 1), (&[kinds()], 1));
        assert!(twice.has(&[retry(), kinds()]));
        let once = Surplus::of((&[kinds()], 1, 0), (&[kinds()], 1));
        assert!(!once.has(&[retry(), kinds()]), "nothing has asked for it again");
        assert!(!twice.has(&[json!({"type": "kcp", "object": "Kyma a", "change": "spec"})]));
    }
}
