//! Earliest times of requests and reports.

use super::{clock::Clock, settings::Settings};
use crate::send::connect::MAX_RETRY_AFTER;
use std::time::Duration;
use tidewatch_delivery::{
    backoff::Backoff,
    outbox::{May, Outbox},
    pace::Pace,
};
use tidewatch_wire::limits;
use tokio::time::Instant;

/// Delay after polls that returned early without acknowledgements.
const FRUITLESS: Backoff =
    Backoff { base: Duration::from_secs(1), max: Duration::from_secs(limits::POLL_SECONDS) };

pub(super) struct Schedule {
    /// The receiver accepts no request and no connection before.
    pub(super) not_before: Instant,
    pub(super) batch_after: Instant,
    /// The canary may precede a delayed batch.
    pub(super) canary_after: Instant,
    /// Delays full reports and events older than the session.
    pub(super) older_after: Instant,
    pub(super) poll_after: Instant,
    pub(super) heartbeat_at: Instant,
    pub(super) health_at: Instant,
    report_at: Option<Instant>,
    /// Delays events that the receiver has requested again.
    again: Pace,
    /// Delays events that wait for a turn.
    turns: Pace,
    /// Delays full reports if the receiver's session keeps changing.
    sessions: Pace,
    /// Delays fruitless polls.
    polls: Pace,
}

impl Schedule {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            not_before: now,
            batch_after: now,
            canary_after: now,
            older_after: now,
            poll_after: now,
            heartbeat_at: now,
            health_at: now,
            report_at: None,
            again: Pace::default(),
            turns: Pace::default(),
            sessions: Pace::default(),
            polls: Pace::default(),
        }
    }

    /// Starts all requests on a new connection.
    pub(super) fn connected(&mut self, now: Instant) {
        let begin = now.max(self.not_before);
        (self.batch_after, self.canary_after) = (begin, begin);
        (self.poll_after, self.heartbeat_at) = (begin, begin);
    }

    /// Delays all requests after a failure.
    pub(super) fn postpone(&mut self, until: Instant) {
        for after in [&mut self.batch_after, &mut self.canary_after, &mut self.poll_after] {
            *after = (*after).max(until);
        }
    }

    /// Delays connections and requests as the receiver asks.
    pub(super) fn refuse_until(&mut self, until: Instant) {
        self.not_before = self.not_before.max(until);
    }

    pub(super) fn delay_batches(&mut self, now: Instant, wait: Duration) {
        self.refuse_until(now + wait.min(MAX_RETRY_AFTER));
        self.batch_after = self.batch_after.max(self.not_before);
    }

    /// Fruitless turns back off, even against the receiver's wish.
    pub(super) fn delay_older(&mut self, now: Instant, wait: Duration, settings: &Settings, clock: &Clock) {
        self.turns.demanded(&settings.backoff, clock.random(), clock.tick());
        let until = (now + wait.min(MAX_RETRY_AFTER)).max(clock.instant(self.turns.until()));
        self.older_after = self.older_after.max(until);
    }

    pub(super) fn turn_succeeded(&mut self) {
        self.turns.progress();
    }

    pub(super) fn requested_again(&mut self, settings: &Settings, clock: &Clock) {
        self.again.demanded(&settings.backoff, clock.random(), clock.tick());
    }

    pub(super) fn nothing_requested_again(&mut self) {
        self.again.progress();
    }

    pub(super) fn session_changed(&mut self, settings: &Settings, clock: &Clock) {
        self.sessions.demanded(&settings.sessions, clock.random(), clock.tick());
    }

    /// End of the pause after changed sessions.
    pub(super) fn sessions_until(&self, clock: &Clock) -> Instant {
        clock.instant(self.sessions.until())
    }

    pub(super) fn poll_succeeded(&mut self) {
        self.polls.progress();
    }

    /// Avoids a loop if the receiver answers early.
    pub(super) fn poll_was_fruitless(&mut self, since: Instant, clock: &Clock) {
        self.polls.fruitless(&FRUITLESS, clock.random(), clock.tick_of(since), clock.tick());
        self.poll_after = self.poll_after.max(clock.instant(self.polls.until()));
    }

    pub(super) fn demand_report(&mut self, now: Instant, clock: &Clock) {
        self.report_at = Some(now.max(self.sessions_until(clock)));
    }

    pub(super) fn take_due_report(&mut self, now: Instant) -> bool {
        let due = self.report_at.is_some_and(|at| at <= now);
        if due {
            self.report_at = None;
        }
        due
    }

    pub(super) fn report_at(&self) -> Option<Instant> {
        self.report_at
    }

    /// Events other than fresh changes that may be sent now.
    pub(super) fn permits(&self, now: Instant, clock: &Clock) -> May {
        May { again: self.again.until() <= clock.tick_of(now), older: self.older_after <= now }
    }

    /// Time of the next batch; `None` without unsent changes.
    pub(super) fn batch_at(&self, outbox: &Outbox, clock: &Clock) -> Option<Instant> {
        let kinds = [(false, false), (true, false), (false, true), (true, true)];
        let kinds = kinds.into_iter().map(|(again, older)| May { again, older });
        let at = kinds.filter(|kind| outbox.dirty().has_unsent(*kind)).map(|May { again, older }| {
            let again = if again { clock.instant(self.again.until()) } else { self.batch_after };
            let older = if older { self.older_after } else { self.batch_after };
            self.batch_after.max(again).max(older)
        });
        at.min()
    }
}
