//! Counts failures, and limits log lines about repeated ones.

use super::clock::Clock;
use std::time::Duration;
use tidewatch_delivery::repeats::{Repeated, Repeats};
use tokio::time::Instant;

/// Time without failures that resets their count.
const RESET_AFTER: Duration = Duration::from_mins(10);
/// Distinct messages to count.
const MESSAGES: usize = 8;

pub(super) struct Failures {
    /// Since the last acknowledgement.
    count: u32,
    last: Instant,
    errors: Repeats,
    demands: Repeats,
}

impl Failures {
    pub(super) fn new(now: Instant) -> Self {
        Self { count: 0, last: now, errors: Repeats::of(MESSAGES), demands: Repeats::of(MESSAGES) }
    }

    /// Counts a failure. Returns the number of earlier ones.
    pub(super) fn add(&mut self, now: Instant) -> u32 {
        if now.duration_since(self.last) > RESET_AFTER {
            self.count = 0;
        }
        self.last = now;
        let earlier = self.count;
        self.count = earlier.saturating_add(1);
        earlier
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Resets the count after an acknowledgement.
    pub(super) fn reset(&mut self) {
        self.count = 0;
        self.errors.clear();
    }

    /// Records an error, or a recovery. Returns the number of repetitions if it should be logged.
    pub(super) fn record_error(&mut self, message: &str, clock: &Clock) -> Option<u64> {
        self.errors.record(message, clock.now(), clock.tick())
    }

    /// Records a demand of the receiver. Returns the number of repetitions if it should be logged.
    pub(super) fn record_demand(&mut self, message: &str, clock: &Clock) -> Option<u64> {
        self.demands.record(message, clock.now(), clock.tick())
    }

    pub(super) fn repeated(&self) -> impl Iterator<Item = &Repeated> {
        self.errors.repeated().chain(self.demands.repeated())
    }
}
