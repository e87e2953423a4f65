//! Limits the cost of runtimes that do not answer.
//!
//! A runtime whose last call got no answer is a suspect. All suspects share a quarter of the workers. A suspect with too much lost time is
//! suspended: engine-initiated reconciles wait, and then one reconcile probes. An agent event, a canary or a new kubeconfig allows a probe
//! at once. Changes in KCP are always tried.
//!
//! Any answer ends the suspension. After writes without answers, only an answered write, or a probe whose calls are all answered, ends
//! the suspension: an API server
//! whose etcd has lost its quorum still answers reads.

mod admission;

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Semaphore, time::Instant};

use super::{
    call_limiter::{CallLimiter, Effect},
    client::RuntimeClient,
    rate::RateLimit,
};
use crate::{
    key::{Queue, WorkKey},
    queue::{Class, Push},
    trigger::{Reason, Trigger},
};

pub(crate) use admission::{Admission, Refusal, Suspension};

/// Unanswered time within [`WINDOW`] that suspends a runtime.
const MAX_LOST: Duration = Duration::from_secs(45);
const WINDOW: Duration = Duration::from_mins(2);
/// Minimum cost of a call. With it, calls refused at once suspend a runtime only after fifteen.
const MIN_COST: Duration = Duration::from_secs(3);
/// Losses kept per runtime.
const MAX_LOSSES: usize = 32;
/// First suspension. It doubles with each failed probe, and lasts up to a quarter longer.
const MIN_SUSPENSION: Duration = Duration::from_secs(15);
const MAX_SUSPENSION: Duration = Duration::from_mins(12);
/// Wait while another reconcile probes.
const PROBE_WAIT: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    /// The engine's own retry or poll.
    Engine,
    /// An event of the runtime.
    Runtime,
    /// A change in KCP.
    Kcp,
}

impl Origin {
    fn of(triggers: &[Trigger]) -> Self {
        let origin = |trigger: &Trigger| match trigger {
            Trigger::Kcp { change, .. } if change.is_progress() || change.is_interference() => Self::Engine,
            Trigger::Kcp { .. } => Self::Kcp,
            Trigger::Event { .. } | Trigger::SecondLook { .. } => Self::Runtime,
            _ => Self::Engine,
        };
        triggers.iter().map(origin).max().unwrap_or(Self::Engine)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AdmissionDecision {
    /// Reconcile, if there is capacity.
    Admit {
        is_probe: bool,
    },
    Wait(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Remaining {
    time: Duration,
    /// The runtime answers reads.
    answers_reads: bool,
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
    losses: VecDeque<Loss>,
    suspended_until: Option<Instant>,
    /// Suspensions in a row.
    suspensions: u32,
    /// Writes got no answer, so answered reads do not end the suspension.
    answers_reads: bool,
    is_probing: bool,
    /// Whether a call of the probe got an answer.
    answered: bool,
    /// Keys to requeue after the suspension.
    refused: BTreeSet<WorkKey>,
}

impl Budget {
    /// Counts a call without an answer. Returns whether it suspends the runtime anew. `spread`, from 0 to 1, lengthens the suspension.
    fn failed(&mut self, effect: Effect, now: Instant, took: Duration, spread: f64) -> bool {
        self.losses.push_back(Loss { at: now, cost: took.max(MIN_COST), effect });
        while self.losses.len() > MAX_LOSSES || self.losses.front().is_some_and(|loss| loss.at + WINDOW < now)
        {
            self.losses.pop_front();
        }
        let before = self.suspended_until;
        if before.is_some_and(|until| now < until && !self.is_probing) {
            return false;
        }
        let spent: Duration = self.losses.iter().map(|loss| loss.cost).sum();
        if before.is_none() && spent < MAX_LOST {
            return false;
        }
        let pause = MIN_SUSPENSION.saturating_mul(1 << self.suspensions.min(16)).min(MAX_SUSPENSION);
        self.suspended_until = Some(now + pause.mul_f64(1.0 + spread / 4.0));
        self.suspensions = self.suspensions.saturating_add(1);
        self.is_probing = false;
        self.answers_reads = effect == Effect::Writes;
        before.is_none()
    }

    fn has_effect(&self, now: Instant) -> bool {
        self.suspended_until.is_some()
            || self.is_probing
            || !self.refused.is_empty()
            || self.losses.iter().any(|loss| loss.at + WINDOW >= now)
    }

    fn answered(&mut self, effect: Effect, now: Instant) -> bool {
        self.answered = true;
        self.losses.retain(|loss| loss.effect == Effect::Writes && loss.at + WINDOW >= now);
        if effect == Effect::Writes {
            return true;
        }
        if self.answers_reads && self.suspended_until.is_some() {
            return false;
        }
        (self.suspended_until, self.suspensions) = (None, 0);
        self.losses.is_empty()
    }

    /// Ends a probe. Returns whether the budget can be dropped: there was an answer, and no loss.
    fn end_probe(&mut self) -> bool {
        std::mem::take(&mut self.is_probing) && self.answered
    }

    fn admit(&mut self, key: &WorkKey, now: Instant, origin: Origin) -> AdmissionDecision {
        let Some(until) = self.suspended_until else { return AdmissionDecision::Admit { is_probe: false } };
        if origin == Origin::Kcp {
            return AdmissionDecision::Admit { is_probe: false };
        }
        if !self.is_probing && (origin == Origin::Runtime || now >= until) {
            (self.is_probing, self.answered) = (true, false);
            return AdmissionDecision::Admit { is_probe: true };
        }
        self.refused.insert(key.clone());
        AdmissionDecision::Wait(if self.is_probing {
            PROBE_WAIT
        } else {
            until.saturating_duration_since(now)
        })
    }
}

/// The budgets of all runtimes. A runtime that answers has none.
#[derive(Debug)]
pub(crate) struct Budgets {
    runtimes: Mutex<HashMap<String, Budget>>,
    /// Reconciles of suspects.
    suspects: Arc<Semaphore>,
    /// Slow calls of all runtimes.
    slow_calls: Arc<Semaphore>,
    slow_calls_per_runtime: usize,
}

impl Budgets {
    /// Gives each semaphore a quarter of the workers. One runtime gets at most half of the slow calls, so it cannot take all of them
    /// before it is suspended.
    pub(crate) fn new(workers: usize) -> Self {
        let capacity = (workers / 4).max(1);
        Self {
            runtimes: Mutex::default(),
            suspects: Arc::new(Semaphore::new(capacity)),
            slow_calls: Arc::new(Semaphore::new(capacity)),
            slow_calls_per_runtime: (capacity / 2).max(1),
        }
    }

    /// Counts a finished call. Returns the keys to requeue and the reason.
    fn call_ended(
        &self,
        kyma: &str,
        effect: Effect,
        took: Duration,
        answered: bool,
    ) -> (Vec<WorkKey>, Reason) {
        let (mut runtimes, now) = (self.runtimes.lock(), Instant::now());
        if answered {
            // Most runtimes have no budget.
            let Some(budget) = runtimes.get_mut(kyma) else { return (Vec::new(), Reason::Answers) };
            let is_over = budget.answered(effect, now);
            let refused = if budget.suspended_until.is_some() && !is_over {
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
        let spread = xxhash_rust::xxh3::xxh3_64(format!("{kyma} {}", budget.suspensions).as_bytes());
        let is_newly_suspended = budget.failed(effect, now, took, crate::pace::share(spread));
        // The Kyma's status must report the suspension.
        (
            if is_newly_suspended { vec![WorkKey::Kyma { kyma: kyma.to_owned() }] } else { Vec::new() },
            Reason::Suspended,
        )
    }

    /// Allows a probe at once after an event. Returns the keys to requeue.
    fn allow_probe(&self, kyma: &str) -> Vec<WorkKey> {
        let mut runtimes = self.runtimes.lock();
        let budget = runtimes.get_mut(kyma).filter(|budget| budget.suspended_until.is_some());
        budget.map_or_else(Vec::new, |budget| {
            budget.suspended_until = Some(Instant::now());
            std::mem::take(&mut budget.refused).into_iter().collect()
        })
    }

    fn suspension(&self, kyma: &str) -> Option<Remaining> {
        let runtimes = self.runtimes.lock();
        let budget = runtimes.get(kyma)?;
        let time = budget.suspended_until?.saturating_duration_since(Instant::now());
        (!time.is_zero()).then_some(Remaining { time, answers_reads: budget.answers_reads })
    }

    /// Number of suspended runtimes, for a gauge. Also drops budgets without effect, as of deleted runtimes.
    pub(crate) fn count(&self) -> usize {
        let now = Instant::now();
        let mut runtimes = self.runtimes.lock();
        runtimes.retain(|_, budget| budget.has_effect(now));
        runtimes.values().filter(|b| b.suspended_until.is_some_and(|until| until > now)).count()
    }

    pub(crate) fn forget(&self, kyma: &str) {
        self.runtimes.lock().remove(kyma);
    }
}

/// Limits the client's calls, and counts them in the runtime's budget.
pub(crate) fn limited(
    client: RuntimeClient,
    kyma: &str,
    budgets: &Arc<Budgets>,
    queue: &Queue,
) -> RuntimeClient {
    let slow_calls = Arc::clone(&budgets.slow_calls);
    let own_slow_calls = Arc::new(Semaphore::new(budgets.slow_calls_per_runtime));
    let (kyma, budgets, queue) = (kyma.to_owned(), Arc::clone(budgets), queue.clone());
    let observer = Arc::new(move |effect: Effect, took: Duration, answered: bool| {
        let (keys, reason) = budgets.call_ended(&kyma, effect, took, answered);
        requeue(&queue, keys, reason);
    });
    let rate = Arc::new(RateLimit::new(Instant::now()));
    client.limited_by(CallLimiter { slow_calls, own_slow_calls, observer, rate })
}

fn requeue(queue: &Queue, keys: Vec<WorkKey>, reason: Reason) {
    for key in keys {
        let trigger = Some(Trigger::retry(&key, reason));
        queue.push(key, Push { class: Class::Retry, trigger, guards: Vec::new() });
    }
}

#[cfg(test)]
mod tests;
