use std::time::Duration;

use tidewatch_delivery::backoff::Backoff;
use tidewatch_wire::limits;

use crate::send::spread::Spread;

/// Timing and limits of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Limit for an answer to a batch or heartbeat.
    pub answer: Duration,
    /// Limit for a poll; exceeds the receiver's.
    pub poll: Duration,
    /// Shortest time between polls.
    pub poll_pause: Duration,
    /// Heartbeat interval while idle.
    pub heartbeat: Duration,
    /// Delay after failures that keep the connection.
    pub backoff: Backoff,
    /// Delays full reports and digests if sessions keep changing.
    pub sessions: Backoff,
    /// Delay of new connections.
    pub spread: Spread,
    /// Age of replacement, reduced randomly by up to half. Bounds the age of verified certificates and resolved names.
    pub connection_age: Duration,
    /// Time to replace a connection after a certificate renewal.
    pub replace_within: Duration,
    /// Delay after a failed replacement.
    pub replace_backoff: Backoff,
    /// Limit of dirty keys. Beyond, watches wait: short-lived objects would grow the set without end.
    pub max_dirty: usize,
    /// Limit of kept names: about as many as can be stored.
    pub max_names: usize,
    /// Delay of storing a changed digest.
    pub store: Duration,
    /// Delay for irrelevant changes; losing them costs needless reports.
    pub store_quiet: Duration,
    /// Longest wait of a change for its stored name.
    pub withhold: Duration,
    /// Shutdown limit, each for storing and declaring the digest.
    pub shutdown: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            answer: Duration::from_secs(30),
            poll: Duration::from_secs(limits::POLL_SECONDS + 15),
            poll_pause: Duration::from_millis(20),
            // Longer than the canary's interval and transit: canaries replace heartbeats.
            heartbeat: Duration::from_secs(65),
            backoff: Backoff { base: Duration::from_millis(500), max: Duration::from_secs(30) },
            sessions: Backoff { base: Duration::from_secs(5), max: Duration::from_mins(5) },
            spread: Spread::default(),
            connection_age: Duration::from_hours(24),
            replace_within: Duration::from_mins(3),
            replace_backoff: Backoff { base: Duration::from_secs(5), max: Duration::from_mins(2) },
            max_dirty: 1_000_000,
            max_names: 200_000,
            store: Duration::from_secs(10),
            store_quiet: Duration::from_mins(10),
            withhold: Duration::from_secs(5),
            shutdown: Duration::from_secs(4),
        }
    }
}
