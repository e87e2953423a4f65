//! What a runtime that does not answer may cost: few workers, and after a while none.
//!
//! A runtime whose last call got no answer is a *suspect*: a quarter of the workers is for all of those together. One that has cost too much
//! without any answer in between is *parked*: nothing the engine asks for by itself is done before a set time, and then one reconcile tries
//! for all. An event of its agent lets one try at once, and so do its canary and a new kubeconfig; what changes in KCP is always tried.
//! Any answer ends all of that.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::json;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use super::{Lost, Shared, Why, kcp_writes::lost, next_try};
use crate::{
    journal::{Journal, millis},
    kcp::state::NEW_KUBECONFIG,
    key::{Cause, Guard, WorkKey},
    plan::kyma::failed_status,
    queue::{Class, Push, worker::WorkQueue},
    runtime::{Care, RateLimit, RuntimeClient},
};

/// What calls without an answer may cost in [`WINDOW`], together.
const LOSS: Duration = Duration::from_secs(45);
/// See [`LOSS`].
const WINDOW: Duration = Duration::from_mins(2);
/// What a call costs at least: one that is refused at once is no reason to park before there were fifteen.
const LEAST: Duration = Duration::from_secs(3);
/// Calls remembered of a runtime.
const CALLS: usize = 32;
/// How long a runtime is parked: 15 s, doubling to 12 min with each try that fails, and up to a quarter more.
const PARKED: (Duration, Duration) = (Duration::from_secs(15), Duration::from_mins(12));
/// When to come back while somebody tries for all.
const WHILE_TRYING: Duration = Duration::from_secs(5);
/// What a record says of a reconcile that was not begun.
const NOTED: &str = "parked";

/// Why a reconcile should be done although its runtime is parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Press {
    /// The engine's own doing.
    No,
    /// The runtime was heard of.
    Heard,
    /// Somebody has changed something in KCP.
    Kcp,
}

impl Press {
    fn of(causes: &[Cause]) -> Self {
        let press = |cause: &Cause| match cause {
            Cause::Kcp { .. } => Self::Kcp,
            Cause::Event { .. } | Cause::SecondLook { .. } => Self::Heard,
            _ => Self::No,
        };
        causes.iter().map(press).max().unwrap_or(Self::No)
    }
}

/// What becomes of a reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It is done if there is a place for it; `true`: and tries for all.
    Try(bool),
    /// Not before this time.
    Wait(Duration),
}

/// What one runtime has cost since it answered last.
#[derive(Debug, Default)]
struct Budget {
    lost: VecDeque<(Instant, Duration)>,
    /// Until when it is parked.
    until: Option<Instant>,
    /// How often it was, in a row.
    times: u32,
    /// Somebody tries for all.
    trying: bool,
    /// What was not done.
    refused: BTreeSet<WorkKey>,
}

impl Budget {
    /// A call has got no answer. Whether that is why it is parked now, and was not before. `spread`, from 0 to 1, lengthens the time.
    fn failed(&mut self, now: Instant, took: Duration, spread: f64) -> bool {
        self.lost.push_back((now, took.max(LEAST)));
        while self.lost.len() > CALLS || self.lost.front().is_some_and(|(at, _)| *at + WINDOW < now) {
            self.lost.pop_front();
        }
        let before = self.until;
        if before.is_some_and(|until| now < until && !self.trying) {
            return false;
        }
        let spent: Duration = self.lost.iter().map(|(_, cost)| *cost).sum();
        if before.is_none() && spent < LOSS {
            return false;
        }
        let pause = PARKED.0.saturating_mul(1 << self.times.min(16)).min(PARKED.1);
        self.until = Some(now + pause.mul_f64(1.0 + spread / 4.0));
        self.times = self.times.saturating_add(1);
        self.trying = false;
        before.is_none()
    }

    fn admit(&mut self, key: &WorkKey, now: Instant, press: Press) -> Verdict {
        let Some(until) = self.until else { return Verdict::Try(false) };
        if press == Press::Kcp {
            return Verdict::Try(false);
        }
        if !self.trying && (press == Press::Heard || now >= until) {
            self.trying = true;
            return Verdict::Try(true);
        }
        self.refused.insert(key.clone());
        Verdict::Wait(if self.trying { WHILE_TRYING } else { until.saturating_duration_since(now) })
    }
}

/// The budgets of all runtimes. Of one that answers there is none.
#[derive(Debug)]
pub(super) struct Budgets {
    runtimes: Mutex<HashMap<String, Budget>>,
    /// Places for reconciles of suspects.
    suspects: Arc<Semaphore>,
    /// Places for calls that take long.
    slow: Arc<Semaphore>,
    /// How many of these one runtime may have.
    of_one: usize,
}

impl Budgets {
    /// Each of the two has a quarter of the workers. One runtime has half of the slow ones at most: one whose reads are answered and
    /// whose writes are not is no suspect, and is not to have them all.
    pub(super) fn new(workers: usize) -> Self {
        let places = (workers / 4).max(1);
        let all = || Arc::new(Semaphore::new(places));
        Self { runtimes: Mutex::default(), suspects: all(), slow: all(), of_one: (places / 2).max(1) }
    }

    /// A call has ended. What is to be done now, and why.
    fn ended(&self, kyma: &str, took: Duration, answered: bool) -> (Vec<WorkKey>, &'static str) {
        let mut runtimes = self.runtimes.lock();
        if answered {
            // As a rule there is none.
            let budget = if runtimes.is_empty() { None } else { runtimes.remove(kyma) };
            return (budget.map(|b| b.refused.into_iter().collect()).unwrap_or_default(), "answers");
        }
        let budget = runtimes.entry(kyma.to_owned()).or_default();
        let spread = xxhash_rust::xxh3::xxh3_64(format!("{kyma} {}", budget.times).as_bytes());
        let parked = budget.failed(Instant::now(), took, super::pace::share(spread));
        // Its status is to say so.
        (if parked { vec![WorkKey::Kyma { kyma: kyma.to_owned() }] } else { Vec::new() }, NOTED)
    }

    /// A runtime was heard of: it is tried now. What is to be done.
    fn wake(&self, kyma: &str) -> Vec<WorkKey> {
        let mut runtimes = self.runtimes.lock();
        let budget = runtimes.get_mut(kyma).filter(|budget| budget.until.is_some());
        budget.map_or_else(Vec::new, |budget| {
            budget.until = Some(Instant::now());
            std::mem::take(&mut budget.refused).into_iter().collect()
        })
    }

    /// How long a runtime is parked; `None` if it is not.
    fn parked(&self, kyma: &str) -> Option<Duration> {
        let until = self.runtimes.lock().get(kyma)?.until?;
        let left = until.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Runtimes that are parked, for a gauge.
    pub(super) fn count(&self) -> usize {
        let now = Instant::now();
        self.runtimes.lock().values().filter(|b| b.until.is_some_and(|until| until > now)).count()
    }

    pub(super) fn forget(&self, kyma: &str) {
        self.runtimes.lock().remove(kyma);
    }
}

/// Leave to begin a reconcile. Ends the try, if it is one.
#[derive(Debug)]
pub(super) struct Leave {
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
        if let Some((budgets, kyma)) = &self.tries
            && let Some(budget) = budgets.runtimes.lock().get_mut(kyma)
        {
            budget.trying = false;
        }
    }
}

/// Whether a key's work talks to its runtime.
const fn is_of_runtime(key: &WorkKey) -> bool {
    matches!(
        key,
        WorkKey::Kyma { .. }
            | WorkKey::Manifest { .. }
            | WorkKey::Catalog { .. }
            | WorkKey::Exchange { .. }
            | WorkKey::Agent { .. }
    )
}

/// Has a client's calls counted, and cut short where there is no room.
pub(super) fn counted(
    client: RuntimeClient,
    kyma: &str,
    budgets: &Arc<Budgets>,
    queue: &WorkQueue<WorkKey, Cause, Guard>,
    journal: &Journal,
) -> RuntimeClient {
    let (places, own) = (Arc::clone(&budgets.slow), Arc::new(Semaphore::new(budgets.of_one)));
    let (kyma, budgets) = (kyma.to_owned(), Arc::clone(budgets));
    let queue = queue.clone();
    let ear = Arc::new(move |took: Duration, answered: bool| {
        let (keys, reason) = budgets.ended(&kyma, took, answered);
        push(&queue, keys, reason);
    });
    let rate = Arc::new(RateLimit::new(Instant::now()));
    client.under(Care { places, own, journal: journal.clone(), ear, rate })
}

fn push(queue: &WorkQueue<WorkKey, Cause, Guard>, keys: Vec<WorkKey>, reason: &'static str) {
    for key in keys {
        let cause = Some(Cause::retry(&key, reason));
        queue.push(key, Push { class: Class::Retry, cause, guards: Vec::new() });
    }
}

impl Shared {
    /// Leave to begin a reconcile, by what its runtime has cost.
    pub(super) async fn leave(&self, key: &WorkKey, why: Why<'_>) -> Result<Leave, Lost> {
        let kyma = key.kyma();
        let press = Press::of(why.causes);
        if matches!(key, WorkKey::Path { .. }) && press == Press::Heard {
            // A canary has come back.
            push(&self.queue, self.budgets.wake(kyma), NOTED);
        }
        let free = Leave { place: None, tries: None };
        if !is_of_runtime(key) {
            return Ok(free);
        }
        if let Some(noted) = self.journal.noted(NOTED) {
            let Some(wait) = noted["waitMs"].as_u64() else { return Err(crowded(kyma)) };
            self.budgets.runtimes.lock().entry(kyma.to_owned()).or_default().refused.insert(key.clone());
            return Err(self.refused(key, Duration::from_millis(wait)).await);
        }
        if self.journal.is_playing() {
            return Ok(free);
        }
        let verdict = {
            let mut runtimes = self.budgets.runtimes.lock();
            let Some(budget) = runtimes.get_mut(kyma) else { return Ok(free) };
            if why.causes.iter().any(|c| matches!(c, Cause::Kcp { change, .. } if *change == NEW_KUBECONFIG))
            {
                // It may be another cluster.
                budget.until = budget.until.map(|_| Instant::now());
            }
            budget.admit(key, Instant::now(), press)
        };
        match verdict {
            Verdict::Wait(wait) => {
                self.journal.read(|| NOTED.to_owned(), || json!({"waitMs": millis(wait)}));
                Err(self.refused(key, wait).await)
            }
            Verdict::Try(tries) => {
                let tries = tries.then(|| (Arc::clone(&self.budgets), kyma.to_owned()));
                let leave = Leave { place: None, tries };
                let Ok(place) = Arc::clone(&self.budgets.suspects).try_acquire_owned() else {
                    self.journal.read(|| NOTED.to_owned(), || json!({}));
                    return Err(crowded(kyma));
                };
                Ok(leave.with(place))
            }
        }
    }

    /// A reconcile is not done now. The Kyma's status says so.
    async fn refused(&self, key: &WorkKey, wait: Duration) -> Lost {
        let parked = Lost::Parked(self.parked(key.kyma(), wait), wait);
        if !matches!(key, WorkKey::Kyma { .. }) || wait <= WHILE_TRYING {
            return parked;
        }
        match self.say_parked(key.kyma(), &parked).await {
            Ok(()) => parked,
            Err(lost) => lost,
        }
    }

    /// Unless it says so already, with the failure that was found.
    async fn say_parked(&self, kyma: &str, why: &Lost) -> Result<(), Lost> {
        let read = self.kymas().get_opt(kyma).await;
        let read = read.map_err(|e| lost(format!("reading Kyma {kyma}"), e))?;
        let Some(kyma) = read.filter(|kyma| !kyma.is_skipped()) else { return Ok(()) };
        let says = kyma.status.as_ref().and_then(|status| status.last_operation.as_ref());
        if says.is_some_and(|says| says.operation.contains(&why.to_string())) {
            return Ok(());
        }
        let status = failed_status(&kyma, tidewatch_api::State::Error, why.to_string(), self.now());
        self.write_kyma_status(&kyma, &status).await
    }

    fn parked(&self, kyma: &str, wait: Duration) -> String {
        // To the minute, so that it stays the same while it is.
        let at = self.now().saturating_add(wait + Duration::from_secs(59)).unwrap_or(Timestamp::MAX);
        let at = at.strftime("%Y-%m-%dT%H:%MZ");
        format!(
            "the runtime of {kyma} does not answer, and is left alone until {at}, or until its agent is heard of or its kubeconfig \
             changes"
        )
    }

    /// What a message says of the next try of something that has failed in a runtime.
    pub(super) fn next_try_in(&self, runtime: &str, asked: Option<Duration>) -> String {
        const LEFT: &str = "left alone";
        let left = match self.journal.noted(LEFT) {
            Some(noted) => noted.as_u64().map(Duration::from_millis),
            None if self.journal.is_playing() => None,
            None => self.budgets.parked(runtime),
        };
        let Some(left) = left else { return next_try(self.now(), asked) };
        self.journal.read(|| LEFT.to_owned(), || millis(left).into());
        self.parked(runtime, left)
    }
}

fn crowded(kyma: &str) -> Lost {
    Lost::Crowded(format!("the last call to the runtime of {kyma} got no answer"))
}

#[cfg(test)]
mod tests;
