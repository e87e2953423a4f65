//! Limits the cost of runtimes that do not answer.
//!
//! A runtime whose last call got no answer is a suspect. All suspects share a quarter of the workers. A suspect with too much lost time is
//! suspended: engine-initiated reconciles wait, and then one reconcile probes. An agent event, a canary or a new kubeconfig allows a probe
//! at once. Changes in KCP are always tried.
//!
//! Any answer ends the suspension. After writes without answers, only an answered write or a probe without losses ends it: an API server
//! whose etcd has lost its quorum still answers reads.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use super::{
    access::Clusters,
    call_limiter::{CallLimiter, Effect},
    client::RuntimeClient,
    rate::RateLimit,
};
use crate::{
    key::{Queue, WorkKey},
    pace::next_try,
    queue::{Class, Push},
    trigger::{Change, Reason, Trigger},
};

/// Limit of unanswered time within [`WINDOW`].
const LOSS: Duration = Duration::from_secs(45);
const WINDOW: Duration = Duration::from_mins(2);
/// Minimum cost of a call. With it, calls refused at once suspend a runtime only after fifteen.
const LEAST: Duration = Duration::from_secs(3);
const CALLS: usize = 32;
/// Suspension: 15 s, doubling to 12 min with each failed probe, plus up to a quarter.
const PARKED: (Duration, Duration) = (Duration::from_secs(15), Duration::from_mins(12));
/// Wait while another reconcile probes.
const WHILE_TRYING: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Press {
    /// The engine's own retry or poll.
    No,
    /// The runtime sent an event.
    Heard,
    Kcp,
}

impl Press {
    fn of(triggers: &[Trigger]) -> Self {
        let press = |trigger: &Trigger| match trigger {
            Trigger::Kcp { change, .. } if change.is_progress() || change.is_interference() => Self::No,
            Trigger::Kcp { .. } => Self::Kcp,
            Trigger::Event { .. } | Trigger::SecondLook { .. } => Self::Heard,
            _ => Self::No,
        };
        triggers.iter().map(press).max().unwrap_or(Self::No)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Reconcile if there is a place. `true`: it is the probe.
    Try(bool),
    Wait(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Left {
    alone: Duration,
    /// The runtime answers reads.
    reads_on: bool,
}

/// A call without an answer.
#[derive(Clone, Copy, Debug)]
struct Loss {
    at: Instant,
    cost: Duration,
    effect: Effect,
}

#[derive(Debug, Default)]
struct Budget {
    lost: VecDeque<Loss>,
    until: Option<Instant>,
    times: u32,
    /// Writes got no answer, so answered reads do not end the suspension.
    reads_on: bool,
    trying: bool,
    answered: bool,
    refused: BTreeSet<WorkKey>,
}

impl Budget {
    /// Counts a call without an answer. Returns whether it suspends the runtime anew. `spread`, from 0 to 1, lengthens the suspension.
    fn failed(&mut self, effect: Effect, now: Instant, took: Duration, spread: f64) -> bool {
        self.lost.push_back(Loss { at: now, cost: took.max(LEAST), effect });
        while self.lost.len() > CALLS || self.lost.front().is_some_and(|loss| loss.at + WINDOW < now) {
            self.lost.pop_front();
        }
        let before = self.until;
        if before.is_some_and(|until| now < until && !self.trying) {
            return false;
        }
        let spent: Duration = self.lost.iter().map(|loss| loss.cost).sum();
        if before.is_none() && spent < LOSS {
            return false;
        }
        let pause = PARKED.0.saturating_mul(1 << self.times.min(16)).min(PARKED.1);
        self.until = Some(now + pause.mul_f64(1.0 + spread / 4.0));
        self.times = self.times.saturating_add(1);
        self.trying = false;
        self.reads_on = effect == Effect::Writes;
        before.is_none()
    }

    fn is_of_account(&self, now: Instant) -> bool {
        self.until.is_some()
            || self.trying
            || !self.refused.is_empty()
            || self.lost.iter().any(|loss| loss.at + WINDOW >= now)
    }

    fn answered(&mut self, effect: Effect, now: Instant) -> bool {
        self.answered = true;
        self.lost.retain(|loss| loss.effect == Effect::Writes && loss.at + WINDOW >= now);
        if effect == Effect::Writes {
            return true;
        }
        if self.reads_on && self.until.is_some() {
            return false;
        }
        (self.until, self.times) = (None, 0);
        self.lost.is_empty()
    }

    /// Ends a probe. Returns whether the budget can be dropped: there was an answer, and no loss.
    fn tried(&mut self) -> bool {
        std::mem::take(&mut self.trying) && self.answered
    }

    fn admit(&mut self, key: &WorkKey, now: Instant, press: Press) -> Verdict {
        let Some(until) = self.until else { return Verdict::Try(false) };
        if press == Press::Kcp {
            return Verdict::Try(false);
        }
        if !self.trying && (press == Press::Heard || now >= until) {
            (self.trying, self.answered) = (true, false);
            return Verdict::Try(true);
        }
        self.refused.insert(key.clone());
        Verdict::Wait(if self.trying { WHILE_TRYING } else { until.saturating_duration_since(now) })
    }
}

/// The budgets of all runtimes. A runtime that answers has none.
#[derive(Debug)]
pub(crate) struct Budgets {
    runtimes: Mutex<HashMap<String, Budget>>,
    suspects: Arc<Semaphore>,
    slow: Arc<Semaphore>,
    of_one: usize,
}

impl Budgets {
    /// Gives each semaphore a quarter of the workers. One runtime gets at most half of the slow places, so it cannot take them all before
    /// it is suspended.
    pub(crate) fn new(workers: usize) -> Self {
        let places = (workers / 4).max(1);
        let all = || Arc::new(Semaphore::new(places));
        Self { runtimes: Mutex::default(), suspects: all(), slow: all(), of_one: (places / 2).max(1) }
    }

    /// Counts a finished call. Returns the keys to requeue and the reason.
    fn ended(&self, kyma: &str, effect: Effect, took: Duration, answered: bool) -> (Vec<WorkKey>, Reason) {
        let (mut runtimes, now) = (self.runtimes.lock(), Instant::now());
        if answered {
            // Most runtimes have no budget.
            let Some(budget) = runtimes.get_mut(kyma) else { return (Vec::new(), Reason::Answers) };
            let is_over = budget.answered(effect, now);
            let refused = if budget.until.is_some() && !is_over {
                BTreeSet::new()
            } else {
                std::mem::take(&mut budget.refused)
            };
            if is_over {
                runtimes.remove(kyma);
            }
            return (refused.into_iter().collect(), Reason::Answers);
        }
        let budget = runtimes.entry(kyma.to_owned()).or_default();
        let spread = xxhash_rust::xxh3::xxh3_64(format!("{kyma} {}", budget.times).as_bytes());
        let parked = budget.failed(effect, now, took, crate::pace::share(spread));
        // The Kyma's status must report the suspension.
        (if parked { vec![WorkKey::Kyma { kyma: kyma.to_owned() }] } else { Vec::new() }, Reason::Suspended)
    }

    /// Allows a probe at once after an event. Returns the keys to requeue.
    fn wake(&self, kyma: &str) -> Vec<WorkKey> {
        let mut runtimes = self.runtimes.lock();
        let budget = runtimes.get_mut(kyma).filter(|budget| budget.until.is_some());
        budget.map_or_else(Vec::new, |budget| {
            budget.until = Some(Instant::now());
            std::mem::take(&mut budget.refused).into_iter().collect()
        })
    }

    fn parked(&self, kyma: &str) -> Option<Left> {
        let runtimes = self.runtimes.lock();
        let budget = runtimes.get(kyma)?;
        let alone = budget.until?.saturating_duration_since(Instant::now());
        (!alone.is_zero()).then_some(Left { alone, reads_on: budget.reads_on })
    }

    /// Number of suspended runtimes, for a gauge. Also drops budgets without effect, as of deleted runtimes.
    pub(crate) fn count(&self) -> usize {
        let now = Instant::now();
        let mut runtimes = self.runtimes.lock();
        runtimes.retain(|_, budget| budget.is_of_account(now));
        runtimes.values().filter(|b| b.until.is_some_and(|until| until > now)).count()
    }

    pub(crate) fn forget(&self, kyma: &str) {
        self.runtimes.lock().remove(kyma);
    }
}

/// Permission to begin a reconcile. Dropping it ends its probe.
#[derive(Debug)]
pub(crate) struct Leave {
    place: Option<OwnedSemaphorePermit>,
    tries: Option<(Arc<Budgets>, String)>,
}

impl Leave {
    fn with(mut self, place: OwnedSemaphorePermit) -> Self {
        self.place = Some(place);
        self
    }
}

impl Drop for Leave {
    fn drop(&mut self) {
        if let Some((budgets, kyma)) = &self.tries {
            let mut runtimes = budgets.runtimes.lock();
            // Reconciles that were refused meanwhile requeue themselves.
            if runtimes.get_mut(kyma).is_some_and(Budget::tried) {
                runtimes.remove(kyma);
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Suspension {
    pub(crate) message: String,
    pub(crate) left: Duration,
    /// Whether the runtime answers reads, and only writes get no answer.
    pub(crate) answers_reads: bool,
}

impl Suspension {
    /// Whether it ends so soon that no status mentions it.
    pub(crate) fn is_short(&self) -> bool {
        self.left <= WHILE_TRYING
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The runtime's last call got no answer, and all places for suspects are taken.
    Crowded(String),
    Suspended(Suspension),
}

const fn is_of_runtime(key: &WorkKey) -> bool {
    matches!(
        key,
        WorkKey::Kyma { .. }
            | WorkKey::Manifest { .. }
            | WorkKey::Catalog { .. }
            | WorkKey::LegacyWatcher { .. }
            | WorkKey::AgentConfig { .. }
    )
}

pub(crate) fn counted(
    client: RuntimeClient,
    kyma: &str,
    budgets: &Arc<Budgets>,
    queue: &Queue,
) -> RuntimeClient {
    let (places, own) = (Arc::clone(&budgets.slow), Arc::new(Semaphore::new(budgets.of_one)));
    let (kyma, budgets) = (kyma.to_owned(), Arc::clone(budgets));
    let queue = queue.clone();
    let observer = Arc::new(move |effect: Effect, took: Duration, answered: bool| {
        let (keys, reason) = budgets.ended(&kyma, effect, took, answered);
        push(&queue, keys, reason);
    });
    let rate = Arc::new(RateLimit::new(Instant::now()));
    client.under(CallLimiter { places, own, observer, rate })
}

fn push(queue: &Queue, keys: Vec<WorkKey>, reason: Reason) {
    for key in keys {
        let trigger = Some(Trigger::retry(&key, reason));
        queue.push(key, Push { class: Class::Retry, trigger, guards: Vec::new() });
    }
}

impl Clusters {
    pub(crate) fn admit(&self, key: &WorkKey, triggers: &[Trigger]) -> Result<Leave, Refusal> {
        let kyma = key.kyma();
        let press = Press::of(triggers);
        if matches!(key, WorkKey::EventPath { .. }) && press == Press::Heard {
            // A canary has returned.
            push(&self.queue, self.budgets.wake(kyma), Reason::Suspended);
        }
        let free = Leave { place: None, tries: None };
        if !is_of_runtime(key) {
            return Ok(free);
        }
        let (verdict, reads_on) = {
            let mut runtimes = self.budgets.runtimes.lock();
            let Some(budget) = runtimes.get_mut(kyma) else { return Ok(free) };
            if triggers.iter().any(|trigger| trigger.is_change(Change::Kubeconfig)) {
                // It may lead to another cluster.
                budget.until = budget.until.map(|_| Instant::now());
            }
            (budget.admit(key, Instant::now(), press), budget.reads_on)
        };
        match verdict {
            Verdict::Wait(alone) => Err(Refusal::Suspended(self.suspension(kyma, Left { alone, reads_on }))),
            Verdict::Try(tries) => {
                let tries = tries.then(|| (Arc::clone(&self.budgets), kyma.to_owned()));
                let leave = Leave { place: None, tries };
                let Ok(place) = Arc::clone(&self.budgets.suspects).try_acquire_owned() else {
                    let what = format!("the last call to the runtime of {kyma} got no answer");
                    return Err(Refusal::Crowded(what));
                };
                Ok(leave.with(place))
            }
        }
    }

    /// Describes a suspension. Its end is a whole minute, so that the message stays the same.
    fn suspension(&self, kyma: &str, left: Left) -> Suspension {
        let at =
            self.kcp.now().saturating_add(left.alone + Duration::from_secs(59)).unwrap_or(Timestamp::MAX);
        let at = at.strftime("%Y-%m-%dT%H:%MZ");
        let answers = if left.reads_on {
            "answers what is read, but no writes (is its etcd well, do its webhooks answer?)"
        } else {
            "does not answer"
        };
        let message = format!(
            "the runtime of {kyma} {answers}, and is left alone until {at}, or until its agent is heard of or its kubeconfig \
             changes"
        );
        Suspension { message, left: left.alone, answers_reads: left.reads_on }
    }

    pub(crate) fn is_suspended(&self, kyma: &str) -> bool {
        self.budgets.parked(kyma).is_some()
    }

    /// The part of a message about the next try after a failure in a runtime.
    pub(crate) fn next_try(&self, runtime: &str, asked: Option<Duration>) -> String {
        match self.budgets.parked(runtime) {
            Some(left) => self.suspension(runtime, left).message,
            None => next_try(self.kcp.now(), asked),
        }
    }
}

#[cfg(test)]
mod tests;
