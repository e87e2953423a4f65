//! Time and randomness of the sender, replaceable for reproducible runs.

use crate::jitter;
use jiff::Timestamp;
use tidewatch_delivery::Tick;
use tokio::time::Instant;

#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    wall: fn() -> Timestamp,
    jitter: fn() -> f64,
    start: Instant,
}

impl Clock {
    pub(super) fn new(wall: fn() -> Timestamp, start: Instant) -> Self {
        Self { wall, jitter: jitter::random, start }
    }

    pub(super) fn with_jitter(self, jitter: fn() -> f64) -> Self {
        Self { jitter, ..self }
    }

    /// The wall-clock time.
    pub(super) fn now(&self) -> Timestamp {
        (self.wall)()
    }

    /// A number in `[0, 1)`.
    pub(super) fn random(&self) -> f64 {
        (self.jitter)()
    }

    /// Time since the start.
    pub(super) fn tick(&self) -> Tick {
        self.start.elapsed()
    }

    pub(super) fn tick_of(&self, instant: Instant) -> Tick {
        instant.duration_since(self.start)
    }

    pub(super) fn instant(&self, tick: Tick) -> Instant {
        self.start + tick
    }
}
