//! Makes, checks, replaces and ends connections.

use super::{Sender, upkeep::Upkeep};
use crate::send::{
    error::SendError,
    link::{Link, Up},
    transport::{Channel, Fate, Transport},
};
use futures::FutureExt;
use std::time::Duration;
use tidewatch_telemetry::chain;
use tokio::time::Instant;

impl<T: Transport> Sender<T> {
    pub(super) fn connected(&mut self, connection: T::Connection) {
        self.metrics.connections.inc();
        let up = Up { connection, answered: false, replacement: None, batch: None, poll: None };
        self.link = Link::Up(Box::new(up));
        let now = Instant::now();
        self.schedule.connected(now);
        self.upkeep.connected(now, self.settings.connection_age, self.clock.random());
        self.check_connection();
    }

    pub(super) fn maintain_connection(&mut self) {
        let now = Instant::now();
        if self.upkeep.is_check_due(now) {
            self.check_connection();
        }
        if let Link::Up(up) = &mut self.link
            && up.replacement.is_none()
            && self.upkeep.is_replacement_due(now)
        {
            if self.schedule.not_before > now {
                self.upkeep.replace_at(self.schedule.not_before);
                return;
            }
            self.upkeep.keep();
            up.replacement = Some(self.connector.clone().connect().boxed());
        }
    }

    /// Keeps, replaces or ends the connection by its certificates and age.
    pub(super) fn check_connection(&mut self) {
        let now = Instant::now();
        self.upkeep.check_later(now);
        let Link::Up(up) = &self.link else { return };
        let valid = up.connection.not_after().duration_since(self.clock.now());
        let valid = Duration::try_from(valid).unwrap_or_default();
        self.upkeep.check_before_expiry(now, valid);
        let replacing = self.upkeep.is_replacing() || up.replacement.is_some();
        match self.connector.fate(&up.connection) {
            Fate::Keep if !self.upkeep.is_old(now) => self.upkeep.keep(),
            // Ages are spread already.
            Fate::Keep if !replacing => self.upkeep.replace_at(now),
            Fate::Replace if !replacing => {
                let within = self.settings.replace_within;
                self.upkeep.replace_within(now, within, valid, self.clock.random());
            }
            Fate::Keep | Fate::Replace => {}
            Fate::End(reason) => self.end(reason, now),
        }
    }

    /// Ends an unusable connection.
    fn end(&mut self, reason: &'static str, now: Instant) {
        let error = SendError::Unusable(reason);
        let (failures, text) = (self.failures.add(now), chain(&error).to_string());
        if let Some(times) = self.failures.record_error(&text, &self.clock) {
            tracing::warn!(reason, error = text, times, "ending the connection to the receiver");
        }
        self.metrics.connections_ended.with_label_values(&[reason]).inc();
        self.status.progress.lock().failed(text);
        // A new connection may be good; further failures back off.
        match failures.checked_sub(1) {
            None => self.drop_connection(now),
            Some(failures) => self.reconnect_later(failures),
        }
    }

    /// Requests in flight end on the old connection.
    pub(super) fn replaced(&mut self, replacement: Result<T::Connection, SendError>) {
        let now = Instant::now();
        let connection = match replacement {
            Ok(connection) => connection,
            Err(error) => {
                self.metrics.failures.with_label_values(&["replacement", error.label()]).inc();
                tracing::warn!(error = %chain(&error), "the connection cannot be replaced yet; keeping it");
                let failures = self.upkeep.replacement_failed();
                let wait = self.settings.replace_backoff.delay(failures, self.clock.random());
                return self.upkeep.replace_at(now + wait);
            }
        };
        let reason = if self.upkeep.is_old(now) { "old" } else { "renewed" };
        tracing::info!(reason, "the connection to the receiver was replaced");
        self.metrics.connections.inc();
        self.metrics.connections_ended.with_label_values(&[reason]).inc();
        self.upkeep.connected(now, self.settings.connection_age, self.clock.random());
        if let Link::Up(up) = &mut self.link {
            up.connection = connection;
            // It would be answered on the old connection.
            up.poll = None;
            if let Some(batch) = &mut up.batch {
                batch.sent.elsewhere = true;
            }
        }
        // The receiver ends connections without requests.
        self.schedule.heartbeat_at = now;
        self.check_connection();
    }

    /// During the pause, the peer has closed the connection.
    pub(super) fn reconnect_after_pause(&mut self) {
        self.metrics.pauses.inc();
        if matches!(self.link, Link::Up(_)) {
            self.metrics.connections_ended.with_label_values(&["paused"]).inc();
            self.reconnect_later(0);
        }
    }

    /// Drops the connection; reconnects after a random wait.
    pub(super) fn reconnect_later(&mut self, failures: u32) {
        let now = Instant::now();
        self.drop_connection(now);
        self.link = Link::Down(self.settings.spread.pause(now, failures, self.clock.random()));
    }

    /// Drops the connection; reconnects at once.
    fn drop_connection(&mut self, now: Instant) {
        self.upkeep = Upkeep::new(now);
        if let Link::Up(up) = std::mem::replace(&mut self.link, Link::now()) {
            let Up { connection: _, answered: _, batch, poll: _, replacement: _ } = *up;
            if let Some(batch) = batch {
                self.outbox.failed(&batch.sent.in_flight);
            }
        }
    }
}
