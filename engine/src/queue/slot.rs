//! The state of one key: its pending request, its retries and its scheduled pushes.

use std::collections::BTreeMap;

use super::{Class, Ended, MAX_TRIGGERS, Tick};

#[derive(Debug)]
pub(super) struct Pending<T, G> {
    pub(super) class: Class,
    pub(super) triggers: Vec<T>,
    pub(super) trigger_count: usize,
    pub(super) guards: Vec<G>,
    pub(super) queued_at: Tick,
    /// `(due, order)` of a delayed retry.
    pub(super) due: Option<(Tick, u64)>,
}

impl<T: PartialEq, G> Pending<T, G> {
    /// Counts distinct triggers: repeats, as at a start, would displace others.
    pub(super) fn add_triggers(&mut self, triggers: impl IntoIterator<Item = T>) {
        for trigger in triggers {
            if self.triggers.contains(&trigger) {
                continue;
            }
            self.trigger_count += 1;
            if self.triggers.len() < MAX_TRIGGERS {
                self.triggers.push(trigger);
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Slot<T, G> {
    pub(super) pending: Option<Pending<T, G>>,
    /// Class and start.
    pub(super) working: Option<(Class, Tick)>,
    pub(super) attempt: u32,
    /// Due time of the last retry, until `Done`.
    retry_at: Option<Tick>,
    pub(super) schedules: BTreeMap<Class, Schedule<T>>,
}

impl<T, G> Default for Slot<T, G> {
    fn default() -> Self {
        Self { pending: None, working: None, attempt: 0, retry_at: None, schedules: BTreeMap::new() }
    }
}

/// A retry that [`Ended::Retry`] asks for.
pub(super) struct Retry<T, G> {
    pub(super) due: Tick,
    pub(super) guards: Vec<G>,
    pub(super) triggers: Vec<T>,
}

impl<T, G> Slot<T, G> {
    /// Counts the attempt and returns the retry; `None` after a finished reconcile.
    pub(super) fn retry(&mut self, ended: Ended<T, G>, now: Tick) -> Option<Retry<T, G>> {
        let Ended::Retry { delay, guards, triggers } = ended else {
            (self.attempt, self.retry_at) = (0, None);
            return None;
        };
        let in_time = now + delay.backoff.max(delay.at_least);
        // Early attempts by events do not count, or a second of failures would cause minutes of backoff.
        let due = match self.retry_at {
            Some(at) if now < at => at.min(in_time).max(now + delay.at_least),
            _ => {
                self.attempt = self.attempt.saturating_add(1);
                in_time
            }
        };
        self.retry_at = Some(due);
        Some(Retry { due, guards, triggers })
    }
}

/// First and last scheduled push of a class.
///
/// The last one also observes all changes in between. Classes are separate: tomorrow's push does not serve an edit.
#[derive(Debug)]
pub(super) struct Schedule<T> {
    pub(super) first: Scheduled<T>,
    pub(super) last: Option<Scheduled<T>>,
}

#[derive(Debug)]
pub(super) struct Scheduled<T> {
    pub(super) at: Tick,
    pub(super) trigger: Option<T>,
}

impl<T> Schedule<T> {
    pub(super) fn add(&mut self, push: Scheduled<T>) {
        if push.at < self.first.at {
            let second = std::mem::replace(&mut self.first, push);
            self.last.get_or_insert(second);
        } else if push.at > self.first.at && self.last.as_ref().is_none_or(|last| last.at < push.at) {
            self.last = Some(push);
        }
    }
}
