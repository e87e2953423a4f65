//! What waits for one manager's service: a bounded set of changed objects, fair to runtimes. Pure.
//!
//! An object that changes again while it waits is one entry still. One that changes while a request about it is under
//! way is sent once more: the service may have looked before the change. Nothing is acknowledged but by the answer
//! to a request that was begun after the change was taken.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tidewatch_api::object::ObjectRef;
use tidewatch_delivery::{Tick, backoff::Backoff};

/// What is tied to a waiting change. Dropped, it gives the change back to its agent, which sends it again.
pub trait Settle: Send + 'static {
    /// The service has taken the change.
    fn done(self);
    /// Nobody wants the change any more.
    fn refused(self);
}

/// One object of one runtime.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The runtime id.
    pub runtime: Arc<str>,
    /// The object.
    pub object: ObjectRef,
}

/// Bounds of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most objects that wait.
    pub keys: usize,
    /// Most objects of one runtime that wait.
    pub per_runtime: usize,
    /// Most requests at the same time.
    pub in_flight: usize,
    /// For one request: connecting, sending, and the answer's head.
    pub deadline: Duration,
    /// After failures, per object.
    pub backoff: Backoff,
    /// A new change of an object that waits for its next try brings the try forward to this.
    pub nudge: Duration,
    /// When a service comes back, the objects that waited for it are tried within this time, evenly spread.
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

/// A change to take in.
pub struct Change<G> {
    /// What changed.
    pub key: Key,
    /// The client certificate of the runtime (DER).
    pub certificate: Arc<[u8]>,
    /// The watch that saw it and what to settle, if anybody waits. A later change of the same watch takes the place
    /// of an earlier one, whose guard is dropped: its agent has forgotten that number.
    pub guard: Option<(String, G)>,
    /// Send it once more at this time, whatever happens before.
    pub again: Option<Tick>,
}

/// A request to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// What to tell of.
    pub key: Key,
    /// Whose certificate to show.
    pub certificate: Arc<[u8]>,
    /// Which request of the lane this is, for [`Lane::finished`].
    pub flight: u64,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// HTTP 200.
    Taken,
    /// The service answered something else.
    Answered,
    /// The service did not answer.
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
    /// Guards by watch that the next request is for.
    waiting: BTreeMap<String, G>,
    /// Guards by watch that the request under way is for.
    flying: BTreeMap<String, G>,
    /// Something changed since the request under way was begun.
    changed: bool,
    since: Tick,
    changed_at: Tick,
    failures: u32,
    again: Option<Tick>,
}

/// The set of one manager.
pub struct Lane<G> {
    limits: Limits,
    entries: HashMap<Key, Entry<G>>,
    per_runtime: HashMap<Arc<str>, usize>,
    /// Keys to send by runtime. A key whose entry is not [`Stage::Ready`] is passed over.
    ready: HashMap<Arc<str>, VecDeque<Key>>,
    /// Runtimes with ready keys, whose turn it is first.
    turns: VecDeque<Arc<str>>,
    /// A key whose entry is not delayed until that time is passed over.
    delayed: BTreeSet<(Tick, Key)>,
    in_flight: usize,
    flights: u64,
    /// The service was silent since it last answered.
    silent: bool,
}

impl<G: Settle> Lane<G> {
    /// An empty lane.
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

    /// Objects that wait or are being sent.
    pub fn waiting(&self) -> usize {
        self.entries.len()
    }

    /// Age of the oldest change that the service has not taken. Linear in the number of objects.
    pub fn oldest(&self, now: Tick) -> Option<Duration> {
        self.entries.values().map(|e| now.saturating_sub(e.since)).max()
    }

    /// Takes a change in, or drops it when there is no room, and its guard with it.
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

    /// The next request to make now, if there is one. What it returns must be given to [`Lane::finished`].
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

    /// When [`Lane::next`] may have something, if nothing happens before.
    pub fn wake(&self) -> Option<Tick> {
        let (due, _) = self.delayed.first()?;
        (self.in_flight < self.limits.in_flight).then_some(*due)
    }

    /// A request has ended. `jitter` is in `[0, 1)`.
    pub fn finished(&mut self, key: &Key, flight: u64, ended: Ended, jitter: f64, now: Tick) {
        self.in_flight = self.in_flight.saturating_sub(1);
        match ended {
            Ended::Silent => self.silent = true,
            Ended::Taken if std::mem::take(&mut self.silent) => self.comeback(now),
            Ended::Taken | Ended::Answered => {}
        }
        let backoff = self.limits.backoff;
        // The entry may have been dropped meanwhile, and made anew for a later change.
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

    /// The service is back: nothing that waited for it waits much longer.
    fn comeback(&mut self, now: Tick) {
        let count = u32::try_from(self.delayed.len().max(1)).unwrap_or(u32::MAX);
        let delayed = std::mem::take(&mut self.delayed);
        for (position, (due, key)) in (0..count).zip(delayed) {
            let Some(entry) = self.entries.get_mut(&key).filter(|e| e.stage == Stage::Delayed(due)) else {
                continue;
            };
            let share = f64::from(position) / f64::from(count);
            // What only waits for its second look waits on.
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

    /// Refuses what was seen by other watches than these.
    pub fn keep_watches(&mut self, keep: impl Fn(&str) -> bool) {
        let mut left = Vec::new();
        for (key, entry) in &mut self.entries {
            let before = entry.waiting.len() + entry.flying.len();
            for guards in [&mut entry.waiting, &mut entry.flying] {
                for (_, guard) in guards.extract_if(.., |watch, _| !keep(watch)) {
                    guard.refused();
                }
            }
            // What came without a guard belongs to no watch, and stays.
            if before > 0 && entry.waiting.is_empty() && entry.flying.is_empty() && entry.again.is_none() {
                left.push(key.clone());
            }
        }
        for key in &left {
            self.remove(key);
        }
    }

    /// Gives back what is of other runtimes than these.
    pub fn keep_runtimes(&mut self, keep: impl Fn(&str) -> bool) {
        let gone: Vec<Key> = self.entries.keys().filter(|k| !keep(&k.runtime)).cloned().collect();
        for key in &gone {
            self.remove(key);
        }
    }

    /// Refuses everything. Requests under way settle nothing any more.
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
