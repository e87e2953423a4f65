//! The work queue: classes, fairness per runtime, one reconcile per key at a time.
//!
//! [`Queue`] is plain data; [`worker`] is its asynchronous shell.
//!
//! Pushes for a queued key are merged, so the number of Kymas and Manifests bounds the queue. Only guards add up.
//! Retries drop guards that the receiver's ledger has forgotten, so its capacity bounds them.

mod capacity;
mod round_robin;
pub mod worker;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::Hash,
    time::Duration,
};

use round_robin::Lane;

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
pub struct Push<C, G> {
    /// Urgency.
    pub class: Class,
    /// Reason. An entry keeps its first [`CAUSES`] distinct causes and counts the rest.
    pub cause: Option<C>,
    /// Released when the reconcile finishes.
    pub guards: Vec<G>,
}

/// Causes kept per entry.
pub const CAUSES: usize = 8;

/// A reconcile handed out by [`Queue::pop`].
#[derive(Debug)]
pub struct Work<K, C, G> {
    /// Key.
    pub key: K,
    /// Urgency.
    pub class: Class,
    /// First [`CAUSES`] reasons.
    pub causes: Vec<C>,
    /// Number of all causes, without repeats of a kept one.
    pub cause_count: usize,
    /// Released when the reconcile finishes.
    pub guards: Vec<G>,
    /// Time of the oldest push.
    pub queued_at: Tick,
    /// Retries in a row, without early attempts.
    pub attempt: u32,
}

/// Result of a reconcile.
#[derive(Debug)]
pub enum Ended<C, G> {
    /// Finished; resets the attempts.
    Done,
    /// Retry after the delay, or at the previous due time if sooner. The delay should grow with [`Work::attempt`].
    ///
    /// Unsatisfied guards stay. The causes precede those of concurrent pushes.
    Retry(Duration, Vec<G>, Vec<C>),
}

#[derive(Debug)]
struct Pending<C, G> {
    class: Class,
    causes: Vec<C>,
    cause_count: usize,
    guards: Vec<G>,
    queued_at: Tick,
    /// `(due, order)` of a delayed retry.
    due: Option<(Tick, u64)>,
}

impl<C: PartialEq, G> Pending<C, G> {
    /// Counts distinct causes: repeats, as at a start, would displace others.
    fn note(&mut self, causes: impl IntoIterator<Item = C>) {
        for cause in causes {
            if self.causes.contains(&cause) {
                continue;
            }
            self.cause_count += 1;
            if self.causes.len() < CAUSES {
                self.causes.push(cause);
            }
        }
    }
}

#[derive(Debug)]
struct Slot<C, G> {
    pending: Option<Pending<C, G>>,
    /// Class and start.
    working: Option<(Class, Tick)>,
    attempt: u32,
    /// Due time of the last retry, until `Done`.
    retry_at: Option<Tick>,
    looks: BTreeMap<Class, Looks<C>>,
}

impl<C, G> Default for Slot<C, G> {
    fn default() -> Self {
        Self { pending: None, working: None, attempt: 0, retry_at: None, looks: BTreeMap::new() }
    }
}

/// First and last later look of a class.
///
/// The last look also observes all changes in between. Classes are separate: tomorrow's look does not serve an edit.
#[derive(Debug)]
struct Looks<C> {
    first: Look<C>,
    last: Option<Look<C>>,
}

#[derive(Debug)]
struct Look<C> {
    at: Tick,
    cause: Option<C>,
}

impl<C> Looks<C> {
    fn add(&mut self, look: Look<C>) {
        if look.at < self.first.at {
            let second = std::mem::replace(&mut self.first, look);
            self.last.get_or_insert(second);
        } else if look.at > self.first.at && self.last.as_ref().is_none_or(|last| last.at < look.at) {
            self.last = Some(look);
        }
    }
}

/// The queue.
#[derive(Debug)]
pub struct Queue<K: Key, C, G> {
    slots: HashMap<K, Slot<C, G>>,
    lanes: BTreeMap<Class, Lane<K>>,
    /// Ready keys per class. Lanes may also hold moved keys.
    ready: BTreeMap<Class, usize>,
    delayed: BTreeMap<(Tick, u64), K>,
    looks: BTreeSet<(Tick, Class, K)>,
    working: HashMap<K::Group, usize>,
    /// Keys in flight per class, and their limits.
    working_by_class: BTreeMap<Class, usize>,
    caps: BTreeMap<Class, usize>,
    per_group: usize,
    order: u64,
}

impl<K: Key, C: PartialEq, G> Queue<K, C, G> {
    /// An empty queue with at most `per_group` keys of a group in flight.
    #[must_use]
    pub fn new(per_group: usize) -> Self {
        Self {
            slots: HashMap::new(),
            lanes: Class::ALL.into_iter().map(|c| (c, Lane::default())).collect(),
            ready: BTreeMap::new(),
            delayed: BTreeMap::new(),
            looks: BTreeSet::new(),
            working: HashMap::new(),
            working_by_class: BTreeMap::new(),
            caps: BTreeMap::new(),
            per_group: per_group.max(1),
            order: 0,
        }
    }

    /// Limits a class to `most` (at least 1) keys in flight, so other classes keep workers.
    pub fn cap(&mut self, class: Class, most: usize) {
        self.caps.insert(class, most.max(1));
    }

    /// Requests a reconcile now; ends a retry's delay.
    pub fn push(&mut self, key: K, push: Push<C, G>, now: Tick) {
        self.put(&key, push, None, now);
    }

    /// Requests a reconcile after `delay`, regardless of earlier ones.
    pub fn look_again(&mut self, key: K, class: Class, cause: Option<C>, delay: Duration, now: Tick) {
        let look = Look { at: now + delay, cause };
        let slot = self.slots.entry(key.clone()).or_default();
        let looks = match slot.looks.remove(&class) {
            None => Looks { first: look, last: None },
            Some(mut looks) => {
                self.looks.remove(&(looks.first.at, class, key.clone()));
                looks.add(look);
                looks
            }
        };
        self.looks.insert((looks.first.at, class, key));
        slot.looks.insert(class, looks);
    }

    /// Creates or merges the pending request; ready, or delayed until `due`.
    fn put(&mut self, key: &K, push: Push<C, G>, due: Option<Tick>, now: Tick) {
        let Push { class, cause, guards } = push;
        let slot = self.slots.entry(key.clone()).or_default();
        let due = due.map(|at| {
            self.order += 1;
            (at, self.order)
        });
        let mut pending = match slot.pending.take() {
            None => {
                Pending { class, causes: Vec::new(), cause_count: 0, guards: Vec::new(), queued_at: now, due }
            }
            Some(before) => {
                if slot.working.is_none() {
                    match before.due {
                        Some(at) => drop(self.delayed.remove(&at)),
                        None => leave(&mut self.ready, before.class),
                    }
                }
                let class = before.class.min(class);
                // `None` means ready.
                let due = due.and_then(|d| before.due.map(|b| b.min(d)));
                Pending { class, due, queued_at: before.queued_at.min(now), ..before }
            }
        };
        pending.note(cause);
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
    pub fn pop(&mut self, now: Tick) -> Option<Work<K, C, G>> {
        self.promote(now);
        let (working, per_group) = (&self.working, self.per_group);
        let free = |group: &K::Group| working.get(group).is_none_or(|n| *n < per_group);
        let (slots, by_class, caps) = (&self.slots, &self.working_by_class, &self.caps);
        let key = self.lanes.iter_mut().find_map(|(class, lane)| {
            let taken = by_class.get(class).copied().unwrap_or_default();
            if caps.get(class).is_some_and(|most| taken >= *most) {
                return None;
            }
            let counts = |key: &K| {
                let pending = slots.get(key).filter(|s| s.working.is_none()).and_then(|s| s.pending.as_ref());
                pending.is_some_and(|p| p.due.is_none() && p.class == *class)
            };
            lane.pop(&free, &counts)
        })?;
        let slot = self.slots.get_mut(&key)?;
        let pending = slot.pending.take()?;
        leave(&mut self.ready, pending.class);
        slot.working = Some((pending.class, now));
        *self.working_by_class.entry(pending.class).or_default() += 1;
        *self.working.entry(key.group()).or_default() += 1;
        Some(Work {
            class: pending.class,
            causes: pending.causes,
            cause_count: pending.cause_count,
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

    /// Makes due retries and looks ready.
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
        while let Some((at, class, key)) = self.looks.first().filter(|(at, ..)| *at <= now).cloned() {
            self.looks.remove(&(at, class, key.clone()));
            let Some(slot) = self.slots.get_mut(&key) else { continue };
            let Some(Looks { first, last }) = slot.looks.remove(&class) else { continue };
            if let Some(last) = last {
                self.looks.insert((last.at, class, key.clone()));
                slot.looks.insert(class, Looks { first: last, last: None });
            }
            self.push(key, Push { class, cause: first.cause, guards: Vec::new() }, now);
        }
    }

    /// Time of the next retry or look.
    pub fn next_due(&self) -> Option<Tick> {
        let delayed = self.delayed.first_key_value().map(|((at, _), _)| *at);
        let look = self.looks.first().map(|(at, ..)| *at);
        delayed.into_iter().chain(look).min()
    }

    /// Ends a reconcile from [`Queue::pop`].
    pub fn end(&mut self, key: &K, ended: Ended<C, G>, now: Tick) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        let Some((class, _)) = slot.working.take() else { return };
        leave(&mut self.working_by_class, class);
        let group = key.group();
        if let Some(count) = self.working.get_mut(&group) {
            *count -= 1;
            if *count == 0 {
                self.working.remove(&group);
            }
        }
        for lane in self.lanes.values_mut() {
            lane.freed(&group);
        }
        let (due, guards, causes) = match ended {
            Ended::Done => {
                (slot.attempt, slot.retry_at) = (0, None);
                (None, Vec::new(), Vec::new())
            }
            Ended::Retry(delay, guards, causes) => {
                // Early attempts by events do not count, or a second of failures would cause minutes of backoff.
                let due = match slot.retry_at {
                    Some(at) if now < at => at.min(now + delay),
                    _ => {
                        slot.attempt = slot.attempt.saturating_add(1);
                        now + delay
                    }
                };
                slot.retry_at = Some(due);
                (Some(due), guards, causes)
            }
        };
        match (slot.pending.take(), due) {
            (None, None) => {
                if slot.looks.is_empty() {
                    self.slots.remove(key);
                    capacity::entries(&mut self.slots);
                }
            }
            (Some(pending), _) => {
                let retry = causes;
                let Pending { class, causes, cause_count, guards: waiting, queued_at, due: _ } = pending;
                let guards = guards.into_iter().chain(waiting).collect();
                self.put(key, Push { class, cause: None, guards }, None, now);
                if let Some(pending) = self.slots.get_mut(key).and_then(|s| s.pending.as_mut()) {
                    let not_remembered = cause_count - causes.len();
                    pending.note(retry.into_iter().chain(causes));
                    pending.cause_count += not_remembered;
                    pending.queued_at = queued_at;
                }
            }
            (None, Some(due)) => {
                // Polls stay polls, so retries respect the class limit.
                let push = Push { class: class.max(Class::Retry), cause: None, guards };
                self.put(key, push, Some(due), now);
                if let Some(pending) = self.slots.get_mut(key).and_then(|s| s.pending.as_mut()) {
                    pending.note(causes);
                }
            }
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

    /// Number of keys with later looks.
    pub fn later(&self) -> usize {
        self.slots.values().filter(|slot| !slot.looks.is_empty()).count()
    }

    /// Keys in flight with their start, unordered.
    pub fn in_work(&self) -> impl Iterator<Item = (&K, Tick)> {
        self.slots.iter().filter_map(|(key, slot)| Some((key, slot.working?.1)))
    }

    /// Number of keys in flight.
    pub fn working(&self) -> usize {
        self.working.values().sum()
    }
}

fn leave(ready: &mut BTreeMap<Class, usize>, class: Class) {
    if let Some(count) = ready.get_mut(&class) {
        *count = count.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests;
