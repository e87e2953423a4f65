//! The work queue: classes, fairness per runtime, one reconcile per key at a time.
//!
//! [`Queue`] is plain data; time is an argument. [`worker`] is the shell that waits on it.
//!
//! Whatever is pushed for a key that is already queued is merged into it, so the queue holds at most
//! one entry per key and its size is bounded by the number of Kymas and Manifests. The only thing that
//! adds up in an entry are its guards (what waits for the work to finish). Those of numbers that the receiver's
//! ledger has forgotten are dropped at each retry, so the ledger's capacity is their bound.

mod capacity;
mod round_robin;
pub mod worker;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::Hash,
    time::Duration,
};

use round_robin::Lane;

/// Time since an arbitrary start, on one monotonic clock.
pub type Tick = Duration;

/// How urgent work is. A smaller class is served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// A canary: it proves that the way is open, not that it is short, and a queue that is long for a while is no reason to
    /// poll. There is one for each runtime and minute, which as a rule costs no call.
    Path,
    /// Somebody changed something and waits for it.
    UserEdit,
    /// A new version or a central configuration reaches the fleet.
    Rollout,
    /// A failed or waiting reconcile is tried again.
    Retry,
    /// Rebuilding state after a start, or the safety resync.
    Resync,
    /// The catalog of a runtime follows KCP's: many small writes, for which nobody waits.
    Catalog,
    /// A runtime whose event path is not proven is polled.
    Poll,
}

impl Class {
    /// All classes, most urgent first.
    pub const ALL: [Self; 7] =
        [Self::Path, Self::UserEdit, Self::Rollout, Self::Retry, Self::Resync, Self::Catalog, Self::Poll];

    /// A stable word for metrics.
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

/// What the queue needs to know of a key.
pub trait Key: Clone + Eq + Hash + Ord {
    /// What fairness is counted by.
    type Group: Clone + Eq + Hash + Ord;
    /// The group (the runtime) this key belongs to.
    fn group(&self) -> Self::Group;
}

/// A request for work.
#[derive(Clone, Debug)]
pub struct Push<C, G> {
    /// Its class.
    pub class: Class,
    /// Why. An entry remembers its first [`CAUSES`] causes, each once, and counts the rest.
    pub cause: Option<C>,
    /// What waits for the work to finish.
    pub guards: Vec<G>,
}

/// Causes remembered per entry.
pub const CAUSES: usize = 8;

/// Work handed out by [`Queue::pop`].
#[derive(Debug)]
pub struct Work<K, C, G> {
    /// What to reconcile.
    pub key: K,
    /// Its class.
    pub class: Class,
    /// Why, the first [`CAUSES`] of them.
    pub causes: Vec<C>,
    /// How many causes there were in all; one that came again while it was remembered is one.
    pub cause_count: usize,
    /// What waits for it to finish.
    pub guards: Vec<G>,
    /// When the oldest cause was pushed.
    pub queued_at: Tick,
    /// How often this key was retried in a row, without the tries that something else caused before their time.
    pub attempt: u32,
}

/// What to do with a key whose work has ended.
#[derive(Debug)]
pub enum Ended<C, G> {
    /// Finished; the count of attempts starts anew.
    Done,
    /// Not finished for good: look again after the delay, which the caller lets grow with
    /// [`Work::attempt`], or when the retry before was due, if that is sooner. Guards that could not be satisfied stay with the key.
    /// The causes are the retry's, and come before those of what asked for the key while it was worked on.
    Retry(Duration, Vec<G>, Vec<C>),
}

#[derive(Debug)]
struct Pending<C, G> {
    class: Class,
    causes: Vec<C>,
    cause_count: usize,
    guards: Vec<G>,
    queued_at: Tick,
    /// `Some((due, order))` while it is delayed.
    due: Option<(Tick, u64)>,
}

impl<C: PartialEq, G> Pending<C, G> {
    /// Remembers and counts causes. The same once more, as from each of many objects at a start, says nothing, and would take the room of
    /// others.
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
    /// The class it is worked on under, and since when, if it is.
    working: Option<(Class, Tick)>,
    attempt: u32,
    /// When the retry is or was due that was asked for last, since the key was finished last.
    retry_at: Option<Tick>,
    looks: BTreeMap<Class, Looks<C>>,
}

impl<C, G> Default for Slot<C, G> {
    fn default() -> Self {
        Self { pending: None, working: None, attempt: 0, retry_at: None, looks: BTreeMap::new() }
    }
}

/// Later looks of one class that were asked for: the first and the last, if that is another one. One in between is served by
/// the last, since a reconcile sees all that happened before it. By class, because what is due tomorrow does not serve
/// an edit that is looked at again in a moment.
#[derive(Debug)]
struct Looks<C> {
    first: Look<C>,
    last: Option<Look<C>>,
}

/// When, and why.
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
    /// How many keys of each class are ready. Lanes also hold keys that have gone elsewhere.
    ready: BTreeMap<Class, usize>,
    delayed: BTreeMap<(Tick, u64), K>,
    looks: BTreeSet<(Tick, Class, K)>,
    working: HashMap<K::Group, usize>,
    /// How many keys of each class are worked on, and how many may be.
    working_by_class: BTreeMap<Class, usize>,
    caps: BTreeMap<Class, usize>,
    per_group: usize,
    order: u64,
}

impl<K: Key, C: PartialEq, G> Queue<K, C, G> {
    /// An empty queue that hands out at most `per_group` keys of one group at a time.
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

    /// Hands out at most `most` (at least 1) keys of a class at a time, so that it cannot take all workers.
    pub fn cap(&mut self, class: Class, most: usize) {
        self.caps.insert(class, most.max(1));
    }

    /// Asks for work on `key` now. Ends the delay of a retry that waits.
    pub fn push(&mut self, key: K, push: Push<C, G>, now: Tick) {
        self.put(&key, push, None, now);
    }

    /// Asks for work on `key` once `delay` has passed, whatever is done about it before, and why.
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

    /// Merges into what is pending for the key, or makes it pending: ready, or delayed until `due`.
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
                // None (now) is sooner than any delay.
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
                    // A key that stands there already keeps its place.
                    if let Some(lane) = self.lanes.get_mut(&pending.class) {
                        lane.push(key);
                    }
                }
            }
        }
        slot.pending = Some(pending);
    }

    /// The next work to do now, if any may be done.
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

    /// Keys that are ready, and since when they were asked for; in no order.
    pub fn waiting(&self) -> impl Iterator<Item = (&K, Tick)> {
        let ready = self.slots.iter().filter(|(_, slot)| slot.working.is_none());
        ready.filter_map(|(key, slot)| {
            let pending = slot.pending.as_ref().filter(|pending| pending.due.is_none())?;
            Some((key, pending.queued_at))
        })
    }

    /// Puts delayed work and later looks that are due into their lanes.
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

    /// When the next delayed work or later look is due.
    pub fn next_due(&self) -> Option<Tick> {
        let delayed = self.delayed.first_key_value().map(|((at, _), _)| *at);
        let look = self.looks.first().map(|(at, ..)| *at);
        delayed.into_iter().chain(look).min()
    }

    /// Ends the work on a key that [`Queue::pop`] handed out.
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
                // An event has caused it before the retry was due. If that counted, a second of failures with many
                // events would be followed by minutes of rest.
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
            // It was asked for again while it was worked on.
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
                // What was a poll stays one, else its retries would pass the cap of its class.
                let push = Push { class: class.max(Class::Retry), cause: None, guards };
                self.put(key, push, Some(due), now);
                if let Some(pending) = self.slots.get_mut(key).and_then(|s| s.pending.as_mut()) {
                    pending.note(causes);
                }
            }
        }
    }

    /// Keys per class that are ready to be worked on.
    pub fn ready(&self) -> impl Iterator<Item = (Class, usize)> + '_ {
        Class::ALL.into_iter().map(|class| (class, self.ready.get(&class).copied().unwrap_or_default()))
    }

    /// Keys whose retry waits for its time.
    pub fn delayed(&self) -> usize {
        self.delayed.len()
    }

    /// Keys that are to be looked at at a later time, whatever is done before.
    pub fn later(&self) -> usize {
        self.slots.values().filter(|slot| !slot.looks.is_empty()).count()
    }

    /// The keys that are worked on, and since when; in no order.
    pub fn in_work(&self) -> impl Iterator<Item = (&K, Tick)> {
        self.slots.iter().filter_map(|(key, slot)| Some((key, slot.working?.1)))
    }

    /// Keys that are worked on.
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
