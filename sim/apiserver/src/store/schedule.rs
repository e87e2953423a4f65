//! Delayed work of the controllers.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::log::Key;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Task {
    /// Establish a CRD.
    Establish(Key),
    /// Make a workload ready.
    Ready(Key),
    /// Fill a Secret of a `ServiceAccount` with its token.
    Token(Key),
}

#[derive(Debug, Default)]
pub(super) struct Schedule(BTreeSet<(Timestamp, Task)>);

impl Schedule {
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.0.first().map(|(at, _)| *at)
    }

    pub(super) fn add(&mut self, task: Task, now: Timestamp, delay: SignedDuration) {
        self.0.insert((now.saturating_add(delay).unwrap_or(now), task));
    }

    pub(super) fn take_due(&mut self, now: Timestamp) -> Option<Task> {
        self.0.first().filter(|(at, _)| *at <= now)?;
        self.0.pop_first().map(|(_, task)| task)
    }

    /// Shifts all times with the cluster's clock.
    pub(super) fn shift(&mut self, by: SignedDuration) {
        let tasks = std::mem::take(&mut self.0).into_iter();
        self.0 = tasks.map(|(at, task)| (at.saturating_add(by).unwrap_or(at), task)).collect();
    }
}
