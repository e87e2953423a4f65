use super::Sender;
use crate::send::{
    Channel, Fate, SendError, Transport,
    link::{Link, Up},
};
use futures::FutureExt;
use std::time::Duration;
use tidewatch_telemetry::chain;
use tokio::time::Instant;

/// Interval of checks: timers miss clock changes.
const LOOK: Duration = Duration::from_hours(1);
/// Replacement lead before the certificate's expiry.
const MARGIN: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug)]
pub(super) struct Upkeep {
    look_at: Instant,
    old_at: Instant,
    replace_at: Option<Instant>,
    failures: u32,
}

impl Upkeep {
    pub(super) fn new(now: Instant) -> Self {
        Self { look_at: now + LOOK, old_at: now + LOOK, replace_at: None, failures: 0 }
    }

    /// Sets the age limit, reduced randomly by up to half to spread agents. `random` is in `[0, 1)`.
    pub(super) fn made(&mut self, now: Instant, age: Duration, random: f64) {
        self.old_at = now + age.mul_f64(1.0 - random / 2.0);
    }

    pub(super) fn wake(&self) -> Instant {
        self.replace_at.map_or(self.look_at, |at| at.min(self.look_at))
    }
}

impl<T: Transport> Sender<T> {
    pub(super) fn keep_up(&mut self) {
        let now = Instant::now();
        if self.upkeep.look_at <= now {
            self.look();
        }
        if let Link::Up(up) = &mut self.link
            && up.replacement.is_none()
            && self.upkeep.replace_at.is_some_and(|at| at <= now)
        {
            if self.patience > now {
                self.upkeep.replace_at = Some(self.patience);
                return;
            }
            self.upkeep.replace_at = None;
            up.replacement = Some(self.connector.clone().connect().boxed());
        }
    }

    pub(super) fn look(&mut self) {
        let now = Instant::now();
        self.upkeep.look_at = now + LOOK;
        let Link::Up(up) = &self.link else { return };
        let left = up.connection.not_after().duration_since((self.clock)());
        let left = Duration::try_from(left).unwrap_or_default();
        let old_at = self.upkeep.old_at;
        self.upkeep.look_at = now + left.clamp(Duration::from_secs(1), LOOK);
        if now < old_at {
            self.upkeep.look_at = self.upkeep.look_at.min(old_at);
        }
        match self.connector.fate(&up.connection) {
            Fate::Keep if now < old_at => self.upkeep.replace_at = None,
            // Ages are spread already.
            Fate::Keep if self.upkeep.replace_at.is_none() && up.replacement.is_none() => {
                self.upkeep.replace_at = Some(now);
            }
            Fate::Replace if self.upkeep.replace_at.is_none() && up.replacement.is_none() => {
                let window = self.settings.replace_within.min(left.saturating_sub(MARGIN));
                self.upkeep.replace_at = Some(now + window.mul_f64((self.jitter)()));
            }
            Fate::Keep | Fate::Replace => {}
            Fate::End(reason) => {
                let error = SendError::Unusable(reason);
                let (failures, text) = (self.count_failure(), chain(&error).to_string());
                let (told, tick) = ((self.clock)(), self.tick());
                if let Some(times) = self.errors.told(&text, told, tick) {
                    tracing::warn!(reason, error = text, times, "ending the connection to the receiver");
                }
                self.metrics.connections_ended.with_label_values(&[reason]).inc();
                self.progress.lock().last_error = text;
                // A new connection may be good; further failures back off.
                match failures.checked_sub(1) {
                    None => self.take_down(now),
                    Some(failures) => self.lose(failures),
                }
            }
        }
    }

    /// Requests in flight end on the old connection.
    pub(super) fn replaced(&mut self, made: Result<T::Connection, SendError>) {
        match made {
            Ok(connection) => {
                let now = Instant::now();
                let reason = if self.upkeep.old_at <= now { "old" } else { "renewed" };
                tracing::info!(reason, "the connection to the receiver was replaced");
                self.metrics.connections.inc();
                self.metrics.connections_ended.with_label_values(&[reason]).inc();
                self.upkeep.failures = 0;
                self.upkeep.made(now, self.settings.connection_age, (self.jitter)());
                if let Link::Up(up) = &mut self.link {
                    up.connection = connection;
                    // It would be answered on the old connection.
                    up.poll = None;
                    if let Some(batch) = &mut up.batch {
                        batch.sent.elsewhere = true;
                    }
                }
                // The receiver ends connections without requests.
                self.heartbeat_at = now;
                self.look();
            }
            Err(error) => {
                self.metrics.failures.with_label_values(&["replacement", error.label()]).inc();
                tracing::warn!(error = %chain(&error), "the connection cannot be replaced yet; keeping it");
                let wait = self.settings.replace_backoff.delay(self.upkeep.failures, (self.jitter)());
                self.upkeep.failures = self.upkeep.failures.saturating_add(1);
                self.upkeep.replace_at = Some(Instant::now() + wait);
            }
        }
    }

    /// During the pause, the peer has closed the connection.
    pub(super) fn resumed(&mut self) {
        self.metrics.pauses.inc();
        if matches!(self.link, Link::Up(_)) {
            self.metrics.connections_ended.with_label_values(&["paused"]).inc();
            self.lose(0);
        }
    }

    /// Drops the connection; reconnects after a random wait.
    pub(super) fn lose(&mut self, failures: u32) {
        let now = Instant::now();
        self.take_down(now);
        self.link = Link::Down(self.settings.spread.pause(now, failures, (self.jitter)()));
    }

    /// Drops the connection; reconnects at once.
    fn take_down(&mut self, now: Instant) {
        self.upkeep = Upkeep::new(now);
        if let Link::Up(up) = std::mem::replace(&mut self.link, Link::now()) {
            let Up { connection: _, answered: _, batch, poll: _, replacement: _ } = *up;
            if let Some(batch) = batch {
                self.outbox.failed(&batch.sent.in_flight);
            }
        }
    }
}
