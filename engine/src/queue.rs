//! The work queue: classes, fairness per runtime, one reconcile per key at a time.
//!
//! [`Queue`] is plain data; [`worker`] is its asynchronous shell.
//!
//! Pushes for a queued key are merged, so the number of Kymas and Manifests bounds the queue. Only guards add up.
//! Retries drop guards that the receiver's ledger has forgotten, so its capacity bounds them.

mod capacity;
mod round_robin;
mod slot;
pub mod worker;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::Hash,
    time::Duration,
};

use round_robin::Lane;
use slot::{Pending, Retry, Schedule, Scheduled, Slot};

/// Time since an arbitrary start, monotonic.
pub type Tick = Duration;

/// Urgency. A smaller class goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// A canary per runtime and minute, normally without an API call.
    ///
    /// It proves an open event path, not a fast one. A long queue must not cause polling.
    Path,
    /// A user waits for the result.
    UserEdit,
    /// A new version or central configuration.
    Rollout,
    /// A retry.
    Retry,
    /// State rebuild after a start, or safety resync.
    Resync,
    /// Copies of the catalog in runtimes: many small, non-urgent writes.
    Catalog,
    /// Poll of a runtime without a proven event path.
    Poll,
}

impl Class {
    /// All classes, most urgent first.
    pub const ALL: [Self; 7] =
        [Self::Path, Self::UserEdit, Self::Rollout, Self::Retry, Self::Resync, Self::Catalog, Self::Poll];

    /// Stable word for metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::UserEdit => "user_edit",
            Self::Rollout => "rollout",
            Self::Retry => "retry",
            Self::Resync => "resync",
            Self::Catalog => "catalog",
            Self::Poll => "poll",
        }
    }
}

/// A key of the queue.
pub trait Key: Clone + Eq + Hash + Ord {
    /// Unit of fairness.
    type Group: Clone + Eq + Hash + Ord;
    /// The key's group (its runtime).
    fn group(&self) -> Self::Group;
}

/// A request for a reconcile.
#[derive(Clone, Debug)]
pub struct Push<T, G> {
    /// Urgency.
    pub class: Class,
    /// Why. An entry keeps its first [`MAX_TRIGGERS`] distinct triggers and counts the rest.
    pub trigger: Option<T>,
    /// Released when the reconcile finishes.
    pub guards: Vec<G>,
}

/// Causes kept per entry.
pub const MAX_TRIGGERS: usize = 8;

/// A reconcile handed out by [`Queue::pop`].
#[derive(Debug)]
pub struct Work<K, T, G> {
    /// Key.
    pub key: K,
    /// Urgency.
    pub class: Class,
    /// The first [`MAX_TRIGGERS`] distinct triggers.
    pub triggers: Vec<T>,
    /// Number of all triggers, without repeats of a kept one.
    pub trigger_count: usize,
    /// Released when the reconcile finishes.
    pub guards: Vec<G>,
    /// Time of the oldest push.
    pub queued_at: Tick,
    /// Retries in a row, without early attempts.
    pub attempt: u32,
}

/// Wait before a retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryDelay {
    /// Should grow with [`Work::attempt`]. After an early attempt, the previous due time counts if it is sooner.
    pub backoff: Duration,
    /// Shortest wait, as a server asks for; zero without a request.
    pub at_least: Duration,
}

impl From<Duration> for RetryDelay {
    fn from(backoff: Duration) -> Self {
        Self { backoff, at_least: Duration::ZERO }
    }
}

/// Result of a reconcile.
#[derive(Debug)]
pub enum Ended<T, G> {
    /// Finished; resets the attempts.
    Done,
    /// Retry after the delay.
    Retry {
        /// Wait before the retry.
        delay: RetryDelay,
        /// Unsatisfied guards.
        guards: Vec<G>,
        /// They precede those of concurrent pushes.
        triggers: Vec<T>,
    },
}

/// The queue.
#[derive(Debug)]
pub struct Queue<K: Key, T, G> {
    slots: HashMap<K, Slot<T, G>>,
    lanes: BTreeMap<Class, Lane<K>>,
    /// Ready keys per class. Lanes may also hold moved keys.
    ready: BTreeMap<Class, usize>,
    delayed: BTreeMap<(Tick, u64), K>,
    scheduled: BTreeSet<(Tick, Class, K)>,
    working: HashMap<K::Group, usize>,
    /// Keys in flight per class, and their limits.
    working_by_class: BTreeMap<Class, usize>,
    caps: BTreeMap<Class, usize>,
    per_group: usize,
    order: u64,
}

impl<K: Key, T: PartialEq, G> Queue<K, T, G> {
    /// An empty queue with at most `per_group` keys of a group in flight.
    #[must_use]
    pub fn new(per_group: usize) -> Self {
        Self {
            slots: HashMap::new(),
            lanes: Class::ALL.into_iter().map(|c| (c, Lane::default())).collect(),
            ready: BTreeMap::new(),
            delayed: BTreeMap::new(),
            scheduled: BTreeSet::new(),
            working: HashMap::new(),
            working_by_class: BTreeMap::new(),
            caps: BTreeMap::new(),
            per_group: per_group.max(1),
            order: 0,
        }
    }

    /// Limits a class to `limit` (at least 1) keys in flight, so other classes keep workers.
    pub fn cap(&mut self, class: Class, limit: usize) {
        self.caps.insert(class, limit.max(1));
    }

    /// Requests a reconcile now; ends a retry's delay.
    pub fn push(&mut self, key: K, push: Push<T, G>, now: Tick) {
        self.put(&key, push, None, now);
    }

    /// Requests a reconcile after `delay`, regardless of earlier ones.
    pub fn push_later(&mut self, key: K, class: Class, trigger: Option<T>, delay: Duration, now: Tick) {
        let push = Scheduled { at: now + delay, trigger };
        let slot = self.slots.entry(key.clone()).or_default();
        let schedule = match slot.schedules.remove(&class) {
            None => Schedule { first: push, last: None },
            Some(mut schedule) => {
                self.scheduled.remove(&(schedule.first.at, class, key.clone()));
                schedule.add(push);
                schedule
            }
        };
        self.scheduled.insert((schedule.first.at, class, key));
        slot.schedules.insert(class, schedule);
    }

    /// Creates or merges the pending request; ready, or delayed until `due`.
    fn put(&mut self, key: &K, push: Push<T, G>, due: Option<Tick>, now: Tick) {
        let Push { class, trigger, guards } = push;
        let slot = self.slots.entry(key.clone()).or_default();
        let due = due.map(|at| {
            self.order += 1;
            (at, self.order)
        });
        let mut pending = match slot.pending.take() {
            None => Pending {
                class,
                triggers: Vec::new(),
                trigger_count: 0,
                guards: Vec::new(),
                queued_at: now,
                due,
            },
            Some(before) => {
                if slot.working.is_none() {
                    match before.due {
                        Some(at) => drop(self.delayed.remove(&at)),
                        None => decrement(&mut self.ready, before.class),
                    }
                }
                let class = before.class.min(class);
                // `None` means ready.
                let due = due.and_then(|d| before.due.map(|b| b.min(d)));
                Pending { class, due, queued_at: before.queued_at.min(now), ..before }
            }
        };
        pending.add_triggers(trigger);
        pending.guards.extend(guards);
        if slot.working.is_none() {
            match pending.due {
                Some(at) => drop(self.delayed.insert(at, key.clone())),
                None => {
                    *self.ready.entry(pending.class).or_default() += 1;
                    if let Some(lane) = self.lanes.get_mut(&pending.class) {
                        lane.push(key);
                    }
                }
            }
        }
        slot.pending = Some(pending);
    }

    /// Hands out the next reconcile.
    pub fn pop(&mut self, now: Tick) -> Option<Work<K, T, G>> {
        self.promote(now);
        let (working, per_group) = (&self.working, self.per_group);
        let free = |group: &K::Group| working.get(group).is_none_or(|n| *n < per_group);
        let (slots, by_class, caps) = (&self.slots, &self.working_by_class, &self.caps);
        let key = self.lanes.iter_mut().find_map(|(class, lane)| {
            let in_flight = by_class.get(class).copied().unwrap_or_default();
            if caps.get(class).is_some_and(|limit| in_flight >= *limit) {
                return None;
            }
            let is_ready = |key: &K| {
                let pending = slots.get(key).filter(|s| s.working.is_none()).and_then(|s| s.pending.as_ref());
                pending.is_some_and(|p| p.due.is_none() && p.class == *class)
            };
            lane.pop(&free, &is_ready)
        })?;
        let slot = self.slots.get_mut(&key)?;
        let pending = slot.pending.take()?;
        decrement(&mut self.ready, pending.class);
        slot.working = Some((pending.class, now));
        *self.working_by_class.entry(pending.class).or_default() += 1;
        *self.working.entry(key.group()).or_default() += 1;
        Some(Work {
            class: pending.class,
            triggers: pending.triggers,
            trigger_count: pending.trigger_count,
            guards: pending.guards,
            queued_at: pending.queued_at,
            attempt: slot.attempt,
            key,
        })
    }

    /// Ready keys with their push time, unordered.
    pub fn waiting(&self) -> impl Iterator<Item = (&K, Tick)> {
        let ready = self.slots.iter().filter(|(_, slot)| slot.working.is_none());
        ready.filter_map(|(key, slot)| {
            let pending = slot.pending.as_ref().filter(|pending| pending.due.is_none())?;
            Some((key, pending.queued_at))
        })
    }

    /// Makes due retries and scheduled pushes ready.
    fn promote(&mut self, now: Tick) {
        while let Some((&at, _)) = self.delayed.first_key_value() {
            if at.0 > now {
                break;
            }
            let Some(key) = self.delayed.remove(&at) else { break };
            if let Some(pending) = self.slots.get_mut(&key).and_then(|s| s.pending.as_mut()) {
                pending.due = None;
                *self.ready.entry(pending.class).or_default() += 1;
                if let Some(lane) = self.lanes.get_mut(&pending.class) {
                    lane.push(&key);
                }
            }
        }
        while let Some((at, class, key)) = self.scheduled.first().filter(|(at, ..)| *at <= now).cloned() {
            self.scheduled.remove(&(at, class, key.clone()));
            let Some(slot) = self.slots.get_mut(&key) else { continue };
            let Some(Schedule { first, last }) = slot.schedules.remove(&class) else { continue };
            if let Some(last) = last {
                self.scheduled.insert((last.at, class, key.clone()));
                slot.schedules.insert(class, Schedule { first: last, last: None });
            }
            self.push(key, Push { class, trigger: first.trigger, guards: Vec::new() }, now);
        }
    }

    /// Time of the next retry or scheduled push.
    pub fn next_due(&self) -> Option<Tick> {
        let delayed = self.delayed.first_key_value().map(|((at, _), _)| *at);
        let scheduled = self.scheduled.first().map(|(at, ..)| *at);
        delayed.into_iter().chain(scheduled).min()
    }

    /// Ends a reconcile from [`Queue::pop`].
    pub fn end(&mut self, key: &K, ended: Ended<T, G>, now: Tick) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        let Some((class, _)) = slot.working.take() else { return };
        let (pending, retry) = (slot.pending.take(), slot.retry(ended, now));
        self.free(class, &key.group());
        match (pending, retry) {
            (None, None) => {
                if self.slots.get(key).is_some_and(|slot| slot.schedules.is_empty()) {
                    self.slots.remove(key);
                    capacity::shrink_map(&mut self.slots);
                }
            }
            (Some(pending), retry) => self.merge_retry(key, pending, retry, now),
            (None, Some(Retry { due, guards, triggers })) => {
                // Polls stay polls, so retries respect the class limit.
                let push = Push { class: class.max(Class::Retry), trigger: None, guards };
                self.put(key, push, Some(due), now);
                if let Some(pending) = self.slots.get_mut(key).and_then(|s| s.pending.as_mut()) {
                    pending.add_triggers(triggers);
                }
            }
        }
    }

    /// Counts a key as no longer in flight.
    fn free(&mut self, class: Class, group: &K::Group) {
        decrement(&mut self.working_by_class, class);
        if let Some(count) = self.working.get_mut(group) {
            *count -= 1;
            if *count == 0 {
                self.working.remove(group);
            }
        }
        for lane in self.lanes.values_mut() {
            lane.freed(group);
        }
    }

    /// Queues a key that was pushed during its reconcile. Its retry, if any, is now immediate.
    fn merge_retry(&mut self, key: &K, pending: Pending<T, G>, retry: Option<Retry<T, G>>, now: Tick) {
        let (retry_guards, retry_triggers) = retry.map(|r| (r.guards, r.triggers)).unwrap_or_default();
        let Pending { class, triggers, trigger_count, guards, queued_at, due: _ } = pending;
        let guards = retry_guards.into_iter().chain(guards).collect();
        self.put(key, Push { class, trigger: None, guards }, None, now);
        if let Some(pending) = self.slots.get_mut(key).and_then(|s| s.pending.as_mut()) {
            let not_remembered = trigger_count - triggers.len();
            pending.add_triggers(retry_triggers.into_iter().chain(triggers));
            pending.trigger_count += not_remembered;
            pending.queued_at = queued_at;
        }
    }

    /// Ready keys per class.
    pub fn ready(&self) -> impl Iterator<Item = (Class, usize)> + '_ {
        Class::ALL.into_iter().map(|class| (class, self.ready.get(&class).copied().unwrap_or_default()))
    }

    /// Number of delayed retries.
    pub fn delayed(&self) -> usize {
        self.delayed.len()
    }

    /// Number of keys with scheduled pushes.
    pub fn scheduled(&self) -> usize {
        self.slots.values().filter(|slot| !slot.schedules.is_empty()).count()
    }

    /// Keys in flight with their start, unordered.
    pub fn in_flight(&self) -> impl Iterator<Item = (&K, Tick)> {
        self.slots.iter().filter_map(|(key, slot)| Some((key, slot.working?.1)))
    }

    /// Number of keys in flight.
    pub fn working(&self) -> usize {
        self.working.values().sum()
    }
}

fn decrement(counts: &mut BTreeMap<Class, usize>, class: Class) {
    if let Some(count) = counts.get_mut(&class) {
        *count = count.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests;
