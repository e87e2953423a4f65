//! Times of the connection's checks and of its replacement.

use std::time::Duration;
use tokio::time::Instant;

/// Interval of checks: timers miss clock changes.
const CHECK_INTERVAL: Duration = Duration::from_hours(1);
/// Replacement lead before the certificate's expiry.
const MARGIN: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug)]
pub(super) struct Upkeep {
    check_at: Instant,
    old_at: Instant,
    replace_at: Option<Instant>,
    failures: u32,
}

impl Upkeep {
    pub(super) fn new(now: Instant) -> Self {
        let check_at = now + CHECK_INTERVAL;
        Self { check_at, old_at: check_at, replace_at: None, failures: 0 }
    }

    /// Records a new connection. Its age limit is reduced randomly by up to half to spread agents. `random` is in
    /// `[0, 1)`.
    pub(super) fn connected(&mut self, now: Instant, age: Duration, random: f64) {
        self.old_at = now + age.mul_f64(1.0 - random / 2.0);
        self.failures = 0;
    }

    pub(super) fn wake(&self) -> Instant {
        self.replace_at.map_or(self.check_at, |at| at.min(self.check_at))
    }

    pub(super) fn is_check_due(&self, now: Instant) -> bool {
        self.check_at <= now
    }

    /// Sets the next check without a connection.
    pub(super) fn check_later(&mut self, now: Instant) {
        self.check_at = now + CHECK_INTERVAL;
    }

    /// Sets the next check of a connection with a certificate valid for `valid`.
    pub(super) fn check_before_expiry(&mut self, now: Instant, valid: Duration) {
        self.check_at = now + valid.clamp(Duration::from_secs(1), CHECK_INTERVAL);
        if now < self.old_at {
            self.check_at = self.check_at.min(self.old_at);
        }
    }

    pub(super) fn is_old(&self, now: Instant) -> bool {
        self.old_at <= now
    }

    pub(super) fn is_replacing(&self) -> bool {
        self.replace_at.is_some()
    }

    pub(super) fn is_replacement_due(&self, now: Instant) -> bool {
        self.replace_at.is_some_and(|at| at <= now)
    }

    pub(super) fn replace_at(&mut self, at: Instant) {
        self.replace_at = Some(at);
    }

    pub(super) fn keep(&mut self) {
        self.replace_at = None;
    }

    /// Spreads a replacement over `within`, and before the certificate's expiry. `random` is in `[0, 1)`.
    pub(super) fn replace_within(&mut self, now: Instant, within: Duration, valid: Duration, random: f64) {
        let window = within.min(valid.saturating_sub(MARGIN));
        self.replace_at = Some(now + window.mul_f64(random));
    }

    /// Counts a failed replacement. Returns the number of earlier ones.
    pub(super) fn replacement_failed(&mut self) -> u32 {
        let earlier = self.failures;
        self.failures = earlier.saturating_add(1);
        earlier
    }
}
