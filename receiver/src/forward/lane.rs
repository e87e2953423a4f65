//! Changed objects waiting for one manager: bounded, fair to runtimes. Pure.
//!
//! Only a request begun after a change acknowledges it: the service may have read before. A change during a request is sent again.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tidewatch_api::object::ObjectRef;
use tidewatch_delivery::{Tick, backoff::Backoff};

/// Guard of a change; if dropped, the agent resends.
pub trait Settle: Send + 'static {
    /// The service took the change.
    fn done(self);
    /// The change has no recipient.
    fn refused(self);
}

/// An object of a runtime.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Runtime id.
    pub runtime: Arc<str>,
    /// The object.
    pub object: ObjectRef,
}

/// Bounds of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Waiting objects.
    pub keys: usize,
    /// Waiting objects per runtime.
    pub per_runtime: usize,
    /// Concurrent requests.
    pub in_flight: usize,
    /// For a request, until the response's head.
    pub deadline: Duration,
    /// After failures, per object.
    pub backoff: Backoff,
    /// Maximum retry delay after a new change.
    pub nudge: Duration,
    /// Spread of retries after a service recovers.
    pub comeback: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            keys: 16_384,
            per_runtime: 4_096,
            in_flight: 8,
            deadline: Duration::from_secs(10),
            backoff: Backoff { base: Duration::from_millis(500), max: Duration::from_mins(5) },
            nudge: Duration::from_secs(5),
            comeback: Duration::from_secs(5),
        }
    }
}

/// A change for [`Lane::take`].
pub struct Change<G> {
    /// The changed object.
    pub key: Key,
    /// Client certificate (DER).
    pub certificate: Arc<[u8]>,
    /// Watch and guard. A later one of the watch replaces it: the agent has forgotten that number.
    pub guard: Option<(String, G)>,
    /// Time of a second send.
    pub again: Option<Tick>,
}

/// A request to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The changed object.
    pub key: Key,
    /// The certificate to present.
    pub certificate: Arc<[u8]>,
    /// Number for [`Lane::finished`].
    pub flight: u64,
}

/// Result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// HTTP 200.
    Taken,
    /// Another response.
    Answered,
    /// No response.
    Silent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Ready,
    Flying(u64),
    Delayed(Tick),
}

struct Entry<G> {
    certificate: Arc<[u8]>,
    stage: Stage,
    /// For the next request, by watch.
    waiting: BTreeMap<String, G>,
    /// Of the request in flight, by watch.
    flying: BTreeMap<String, G>,
    /// Changed during the request.
    changed: bool,
    since: Tick,
    changed_at: Tick,
    failures: u32,
    again: Option<Tick>,
}

/// One manager's waiting objects.
pub struct Lane<G> {
    limits: Limits,
    entries: HashMap<Key, Entry<G>>,
    per_runtime: HashMap<Arc<str>, usize>,
    /// By runtime; keys not [`Stage::Ready`] are skipped.
    ready: HashMap<Arc<str>, VecDeque<Key>>,
    /// Round robin of runtimes.
    turns: VecDeque<Arc<str>>,
    /// Keys with another due time are skipped.
    delayed: BTreeSet<(Tick, Key)>,
    in_flight: usize,
    flights: u64,
    /// No response since the last one.
    silent: bool,
}

impl<G: Settle> Lane<G> {
    /// Creates an empty lane.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            entries: HashMap::new(),
            per_runtime: HashMap::new(),
            ready: HashMap::new(),
            turns: VecDeque::new(),
            delayed: BTreeSet::new(),
            in_flight: 0,
            flights: 0,
            silent: false,
        }
    }

    /// Returns the number of objects.
    pub fn waiting(&self) -> usize {
        self.entries.len()
    }

    /// Returns the oldest change's age. Linear.
    pub fn oldest(&self, now: Tick) -> Option<Duration> {
        self.entries.values().map(|e| now.saturating_sub(e.since)).max()
    }

    /// Takes a change. Without capacity, drops it and returns false.
    pub fn take(&mut self, change: Change<G>, now: Tick) -> bool {
        let Change { key, certificate, guard, again } = change;
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.certificate = certificate;
            entry.waiting.extend(guard);
            entry.again = entry.again.max(again);
            match entry.stage {
                Stage::Ready => {}
                Stage::Flying(_) => {
                    if !entry.changed {
                        (entry.changed, entry.changed_at) = (true, now);
                    }
                }
                Stage::Delayed(due) => {
                    let sooner = due.min(now + self.limits.nudge);
                    entry.stage = Stage::Delayed(sooner);
                    self.delayed.remove(&(due, key.clone()));
                    self.delayed.insert((sooner, key));
                }
            }
            return true;
        }
        let of_runtime = self.per_runtime.get(&key.runtime).copied().unwrap_or(0);
        if self.entries.len() >= self.limits.keys || of_runtime >= self.limits.per_runtime {
            return false;
        }
        self.per_runtime.insert(Arc::clone(&key.runtime), of_runtime + 1);
        let entry = Entry {
            certificate,
            stage: Stage::Ready,
            waiting: guard.into_iter().collect(),
            flying: BTreeMap::new(),
            changed: false,
            since: now,
            changed_at: now,
            failures: 0,
            again,
        };
        self.entries.insert(key.clone(), entry);
        self.make_ready(key);
        true
    }

    fn make_ready(&mut self, key: Key) {
        let queue = self.ready.entry(Arc::clone(&key.runtime)).or_default();
        if queue.is_empty() {
            self.turns.push_back(Arc::clone(&key.runtime));
        }
        queue.push_back(key);
    }

    /// Returns the next request; end it with [`Lane::finished`].
    pub fn next(&mut self, now: Tick) -> Option<Job> {
        while let Some((due, _)) = self.delayed.first()
            && *due <= now
            && let Some((due, key)) = self.delayed.pop_first()
        {
            if let Some(entry) = self.entries.get_mut(&key)
                && entry.stage == Stage::Delayed(due)
            {
                entry.stage = Stage::Ready;
                self.make_ready(key);
            }
        }
        if self.in_flight >= self.limits.in_flight {
            return None;
        }
        loop {
            let runtime = self.turns.pop_front()?;
            let queue = self.ready.get_mut(&runtime)?;
            let key = queue.pop_front();
            if queue.is_empty() {
                self.ready.remove(&runtime);
            } else {
                self.turns.push_back(runtime);
            }
            let Some(key) = key else { continue };
            let Some(entry) = self.entries.get_mut(&key).filter(|e| e.stage == Stage::Ready) else {
                continue;
            };
            self.flights += 1;
            self.in_flight += 1;
            entry.stage = Stage::Flying(self.flights);
            entry.flying = std::mem::take(&mut entry.waiting);
            if entry.again.is_some_and(|again| again <= now) {
                entry.again = None;
            }
            let certificate = Arc::clone(&entry.certificate);
            return Some(Job { key, certificate, flight: self.flights });
        }
    }

    /// Returns when to call [`Lane::next`] again.
    pub fn wake(&self) -> Option<Tick> {
        let (due, _) = self.delayed.first()?;
        (self.in_flight < self.limits.in_flight).then_some(*due)
    }

    /// Ends a request. `jitter` is in `[0, 1)`.
    pub fn finished(&mut self, key: &Key, flight: u64, ended: Ended, jitter: f64, now: Tick) {
        self.in_flight = self.in_flight.saturating_sub(1);
        match ended {
            Ended::Silent => self.silent = true,
            Ended::Taken if std::mem::take(&mut self.silent) => self.comeback(now),
            Ended::Taken | Ended::Answered => {}
        }
        let backoff = self.limits.backoff;
        // The entry may be a newer one.
        let Some(entry) = self.entries.get_mut(key).filter(|e| e.stage == Stage::Flying(flight)) else {
            return;
        };
        let changed = std::mem::take(&mut entry.changed);
        if ended == Ended::Taken {
            for (_, guard) in std::mem::take(&mut entry.flying) {
                guard.done();
            }
            entry.failures = 0;
            if changed {
                entry.since = entry.changed_at;
                entry.stage = Stage::Ready;
                self.make_ready(key.clone());
            } else if let Some(again) = entry.again {
                entry.since = now;
                entry.stage = Stage::Delayed(again);
                self.delayed.insert((again, key.clone()));
            } else {
                self.remove(key);
            }
            return;
        }
        for (watch, guard) in std::mem::take(&mut entry.flying) {
            entry.waiting.entry(watch).or_insert(guard);
        }
        let due = now + backoff.delay(entry.failures, jitter);
        entry.failures = entry.failures.saturating_add(1);
        entry.stage = Stage::Delayed(due);
        self.delayed.insert((due, key.clone()));
    }

    fn comeback(&mut self, now: Tick) {
        let count = u32::try_from(self.delayed.len().max(1)).unwrap_or(u32::MAX);
        let delayed = std::mem::take(&mut self.delayed);
        for (position, (due, key)) in (0..count).zip(delayed) {
            let Some(entry) = self.entries.get_mut(&key).filter(|e| e.stage == Stage::Delayed(due)) else {
                continue;
            };
            let share = f64::from(position) / f64::from(count);
            // A second send keeps its time.
            let sooner =
                if entry.failures == 0 { due } else { due.min(now + self.limits.comeback.mul_f64(share)) };
            entry.stage = Stage::Delayed(sooner);
            self.delayed.insert((sooner, key));
        }
    }

    fn remove(&mut self, key: &Key) {
        if self.entries.remove(key).is_none() {
            return;
        }
        if let Some(count) = self.per_runtime.get_mut(&key.runtime) {
            *count -= 1;
            if *count == 0 {
                self.per_runtime.remove(&key.runtime);
            }
        }
    }

    /// Refuses changes seen by removed watches.
    pub fn keep_watches(&mut self, keep: impl Fn(&str) -> bool) {
        let mut left = Vec::new();
        for (key, entry) in &mut self.entries {
            let before = entry.waiting.len() + entry.flying.len();
            for guards in [&mut entry.waiting, &mut entry.flying] {
                for (_, guard) in guards.extract_if(.., |watch, _| !keep(watch)) {
                    guard.refused();
                }
            }
            // Changes without a guard belong to no watch and stay.
            if before > 0 && entry.waiting.is_empty() && entry.flying.is_empty() && entry.again.is_none() {
                left.push(key.clone());
            }
        }
        for key in &left {
            self.remove(key);
        }
    }

    /// Drops changes of other runtimes.
    pub fn keep_runtimes(&mut self, keep: impl Fn(&str) -> bool) {
        let gone: Vec<Key> = self.entries.keys().filter(|k| !keep(&k.runtime)).cloned().collect();
        for key in &gone {
            self.remove(key);
        }
    }

    /// Refuses everything.
    pub fn refuse_all(&mut self) {
        for (_, entry) in self.entries.drain() {
            for (_, guard) in entry.waiting.into_iter().chain(entry.flying) {
                guard.refused();
            }
        }
        self.per_runtime.clear();
    }
}

#[cfg(test)]
#[path = "lane_tests.rs"]
mod tests;
