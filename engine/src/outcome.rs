//! How a reconcile ends.

use std::time::Duration;

use jiff::Timestamp;
use tidewatch_api::{State, object::ObjectRef};
use tidewatch_planner::watches;

use crate::{
    gate,
    key::{OutcomeKind, Report},
    pace::{self, Pace},
    trigger::{Reason, Trigger},
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
    /// Nothing was read: an earlier reconcile had observed every event that asked for this one.
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

    /// It waits for an event that comes soon, or for something without an event.
    pub(crate) const fn recheck_soon(reason: String) -> Self {
        Self::backing_off(Ending::Waiting(reason), pace::RECHECK_SOON, Reason::Waiting, None)
    }

    /// It waits for something without an event, maybe for days.
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

    /// It failed, and is tried again. `reason` is a stable word for metrics; `at_least` is the pause that the server asked for.
    pub(crate) const fn retried(report: Report, class: &'static str, at_least: Option<Duration>) -> Self {
        Self::backing_off(Ending::Failed(report), pace::RETRY, Reason::Failed(class), at_least)
    }

    /// This outcome, with the key due at a time besides; at the earlier one of two.
    #[must_use]
    pub(crate) fn due_at(mut self, at: Option<Timestamp>) -> Self {
        self.due = self.due.into_iter().chain(at).min();
        self
    }

    /// This outcome, with the key due at this time at the latest. Nothing changes if it is done, or is looked at soon anyway.
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

    /// Whether it is looked at again with pauses of this pace.
    pub(crate) fn has_pace(&self, of: Pace) -> bool {
        matches!(self.next, Next::Backoff { pace, .. } if pace == of)
    }

    pub(crate) const fn report(&self) -> Option<&Report> {
        match &self.state {
            Ending::Failed(report) => Some(report),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Why<'a> {
    pub(crate) causes: &'a [Trigger],
    pub(crate) count: usize,
}

impl Why<'_> {
    pub(crate) fn is_all(&self, is: impl Fn(&Trigger) -> bool) -> bool {
        !self.causes.is_empty() && self.causes.len() >= self.count && self.causes.iter().all(is)
    }

    /// Whether a trigger may match. Unlisted triggers count as matching.
    pub(crate) fn may_be(&self, is: impl Fn(&Trigger) -> bool) -> bool {
        self.causes.len() < self.count || self.causes.iter().any(is)
    }
}

/// Whether it is an event of a CRD or an `APIService`, which decide the served kinds.
pub(crate) fn is_of_definition(trigger: &Trigger) -> bool {
    let is = |object: &ObjectRef| watches::definitions().iter().any(|kind| kind.same_kind(&object.gvk));
    matches!(trigger, Trigger::Event { object, .. } if is(object))
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Lost {
    #[error("{what} in KCP failed")]
    Kcp {
        what: String,
        #[source]
        source: Box<kube::Error>,
    },
    /// The plan used an outdated version; the watch will deliver the current one.
    #[error("{0}: KCP has another one than was seen")]
    Behind(String),
    #[error(transparent)]
    Held(#[from] gate::Held),
    /// It waits for a slow resource, and the limit of waiting reconciles is reached.
    #[error("{0}; as many reconciles as may wait for it do; it is tried again in a moment")]
    Crowded(String),
    #[error("{0}")]
    Suspended(String, Duration),
    #[error("the reconcile took longer than {} s", .0.as_secs())]
    Deadline(Duration),
}

impl Lost {
    /// KCP's rejection of an object, which a retry would get again; `None` for another failure.
    pub(crate) fn refusal(&self) -> Option<String> {
        match self {
            Self::Kcp { what, source } => match source.as_ref() {
                kube::Error::Api(status) if matches!(status.code, 400 | 422) => {
                    Some(format!("{what} in KCP was refused: {}", status.message))
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// The triggers that remain after a reconcile that did not begin or used outdated versions. Plain retries are dropped: they may wait
    /// and rely on earlier results.
    pub(crate) fn leaves(&self, causes: &[Trigger]) -> Vec<Trigger> {
        let keeps = |cause: &&Trigger| match (self, cause) {
            (_, Trigger::Retry { .. }) => false,
            (Self::Held(_) | Self::Behind(_) | Self::Crowded(_), _) => true,
            // The event has had its probe, or another reconcile probes.
            (Self::Suspended(..), cause) => cause.is_full_look(),
            _ => false,
        };
        causes.iter().filter(keeps).cloned().collect()
    }

    pub(crate) const fn kind(&self) -> OutcomeKind {
        match self {
            Self::Kcp { .. } | Self::Deadline(_) => OutcomeKind::Lost,
            Self::Behind(_) | Self::Held(_) | Self::Crowded(_) | Self::Suspended(..) => OutcomeKind::Waiting,
        }
    }

    pub(crate) fn next(&self) -> Next {
        let backoff = |pace, at_least| Next::Backoff { pace, reason: self.reason(), at_least };
        match self {
            Self::Kcp { .. } | Self::Deadline(_) => backoff(pace::RETRY, None),
            Self::Behind(_) => backoff(pace::RECHECK_SOON, None),
            Self::Crowded(_) => backoff(pace::CROWDED, None),
            // The mode change requeues the key; this covers a change in between.
            Self::Held(_) => Next::After(pace::RETRY.longest),
            Self::Suspended(_, left) => backoff(pace::PARKED, Some(*left)),
        }
    }

    pub(crate) const fn reason(&self) -> Reason {
        match self {
            Self::Kcp { .. } | Self::Behind(_) => Reason::Kcp,
            Self::Held(_) => Reason::Held,
            Self::Crowded(_) => Reason::Crowded,
            Self::Suspended(..) => Reason::Suspended,
            Self::Deadline(_) => Reason::Deadline,
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
    fn what_is_done_or_looked_at_soon_is_not_due_besides() {
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
        assert_eq!(failed().due_by(Some(at(5))).due, Some(at(5)), "even what only a user can end");
    }
}
