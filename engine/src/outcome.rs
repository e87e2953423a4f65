//! How a reconcile ends.

use std::time::Duration;

use jiff::Timestamp;
use tidewatch_api::State;

use crate::{
    key::{OutcomeKind, Report},
    pace::{self, Pace},
    trigger::Reason,
};

/// Wait for a kind after its CRD is established: it may be served a moment later, without an event.
pub(crate) const SERVED_AFTER: Duration = Duration::from_secs(2);

/// How a reconcile ended, and when its key is due again. An event always makes it due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) state: Ending,
    pub(crate) next: Next,
    /// An extra time at which the key is due, since a plan may change with time alone.
    pub(crate) due: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Nothing was read: an earlier reconcile has observed all events that asked for this one.
    Unneeded,
    Done,
    Waiting(String),
    Failed(Report),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    OnEvent,
    After(Duration),
    Backoff {
        pace: Pace,
        reason: Reason,
        /// The server asked for at least this pause.
        at_least: Option<Duration>,
    },
}

impl Outcome {
    const fn on_event(state: Ending) -> Self {
        Self { state, next: Next::OnEvent, due: None }
    }

    const fn backing_off(state: Ending, pace: Pace, reason: Reason, at_least: Option<Duration>) -> Self {
        Self { state, next: Next::Backoff { pace, reason, at_least }, due: None }
    }

    pub(crate) const fn unneeded() -> Self {
        Self::on_event(Ending::Unneeded)
    }

    pub(crate) const fn done() -> Self {
        Self::on_event(Ending::Done)
    }

    pub(crate) const fn waiting(reason: String) -> Self {
        Self::on_event(Ending::Waiting(reason))
    }

    /// It waits for an event that comes soon, or for a condition without events.
    pub(crate) const fn recheck_soon(reason: String) -> Self {
        Self::backing_off(Ending::Waiting(reason), pace::RECHECK_SOON, Reason::Waiting, None)
    }

    /// It waits for a condition without events, maybe for days.
    pub(crate) const fn recheck_rarely(reason: String) -> Self {
        Self::backing_off(Ending::Waiting(reason), pace::RECHECK_RARELY, Reason::Waiting, None)
    }

    /// It waits for an event, for at most this time.
    pub(crate) const fn after(wait: Duration, reason: String) -> Self {
        Self { state: Ending::Waiting(reason), next: Next::After(wait), due: None }
    }

    /// It failed, and only a change can fix it; a change is an event.
    pub(crate) const fn failed(report: Report) -> Self {
        Self::on_event(Ending::Failed(report))
    }

    /// It failed, and is retried. `class` is a stable word for metrics; `at_least` is the pause that the server asked for.
    pub(crate) const fn retried(report: Report, class: &'static str, at_least: Option<Duration>) -> Self {
        Self::backing_off(Ending::Failed(report), pace::RETRY, Reason::Failed(class), at_least)
    }

    /// This outcome, with the key due at a time besides; at the earlier one of two.
    #[must_use]
    pub(crate) fn due_at(mut self, at: Option<Timestamp>) -> Self {
        self.due = self.due.into_iter().chain(at).min();
        self
    }

    /// This outcome, with the key due at this time at the latest. Nothing changes if it is done, or is rechecked soon anyway.
    #[must_use]
    pub(crate) fn due_by(self, at: Option<Timestamp>) -> Self {
        let is_done = matches!(self.state, Ending::Done | Ending::Unneeded);
        let is_soon = matches!(self.next, Next::After(_))
            || self.next != Next::OnEvent && !self.has_pace(pace::RECHECK_RARELY);
        if self.due.is_some() || !is_done && !is_soon { self.due_at(at) } else { self }
    }

    /// [`Self::due_by`], unless it has failed.
    #[must_use]
    pub(crate) fn if_waiting_due_by(self, at: Option<Timestamp>) -> Self {
        if matches!(self.state, Ending::Waiting(_)) { self.due_by(at) } else { self }
    }

    pub(crate) const fn kind(&self) -> OutcomeKind {
        match self.state {
            Ending::Unneeded | Ending::Done => OutcomeKind::Done,
            Ending::Waiting(_) => OutcomeKind::Waiting,
            Ending::Failed(_) => OutcomeKind::Failed,
        }
    }

    pub(crate) fn message(&self) -> &str {
        match &self.state {
            Ending::Unneeded | Ending::Done => "",
            Ending::Waiting(reason) => reason,
            Ending::Failed(report) => &report.message,
        }
    }

    pub(crate) const fn waits_for_event(&self) -> bool {
        matches!((&self.state, self.next), (Ending::Waiting(_), Next::OnEvent))
    }

    /// Whether it is rechecked at this pace.
    pub(crate) fn has_pace(&self, expected: Pace) -> bool {
        matches!(self.next, Next::Backoff { pace, .. } if pace == expected)
    }

    pub(crate) const fn report(&self) -> Option<&Report> {
        match &self.state {
            Ending::Failed(report) => Some(report),
            _ => None,
        }
    }
}

pub(crate) fn error_report(message: String) -> Report {
    Report { state: State::Error, message, is_found: false }
}

pub(crate) const fn found_report(state: State, message: String) -> Report {
    Report { state, message, is_found: true }
}

#[cfg(test)]
mod tests {
    use crate::outcome::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_earlier_of_two_due_times_counts() {
        let waiting = || Outcome::waiting("for a kind".into());
        for (outcome, due) in [
            (waiting().if_waiting_due_by(None), None),
            (waiting().if_waiting_due_by(Some(at(5))), Some(at(5))),
            (waiting().due_at(Some(at(9))).if_waiting_due_by(Some(at(5))), Some(at(5))),
            (waiting().due_at(Some(at(3))).if_waiting_due_by(Some(at(5))), Some(at(3))),
            (waiting().due_at(Some(at(9))).due_by(Some(at(5))), Some(at(5))),
            (Outcome::recheck_rarely("w".into()).if_waiting_due_by(Some(at(5))), Some(at(5))),
        ] {
            assert_eq!(outcome.due, due, "{outcome:?}");
        }
    }

    #[test]
    fn done_and_soon_rechecked_outcomes_get_no_due_time() {
        let failed = || Outcome::failed(error_report("e".into()));
        for outcome in [
            Outcome::done(),
            Outcome::recheck_soon("r".into()),
            Outcome::after(Duration::from_secs(5), "w".into()),
            Outcome::retried(error_report("e".into()), "unready", None),
        ] {
            assert_eq!(outcome.clone().due_by(Some(at(5))), outcome);
        }
        assert_eq!(failed().if_waiting_due_by(Some(at(5))), failed());
        assert_eq!(failed().due_by(Some(at(5))).due, Some(at(5)), "also a failure that only a user can end");
    }
}
