//! What can be set about sending.

use std::time::Duration;

use tidewatch_delivery::backoff::Backoff;
use tidewatch_wire::limits;

use crate::{
    config::{DEFAULT_CONNECTION_AGE, DEFAULT_MAX_NAMES},
    send::spread::Spread,
};

/// How long things take and wait, and how much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// For the answer to a batch or a heartbeat.
    pub answer: Duration,
    /// For the answer to a poll; longer than the receiver keeps one open.
    pub poll: Duration,
    /// Between a poll's start and its replacement by one that names more numbers.
    pub poll_pause: Duration,
    /// Between two signs of life while there is nothing to send or to wait for.
    pub heartbeat: Duration,
    /// After failures that leave the connection as it is.
    pub backoff: Backoff,
    /// After a receiver's further session within a short time, before it gets a full report or a digest is stored for it.
    pub sessions: Backoff,
    /// Before a new connection, when one was lost or could not be made.
    pub spread: Spread,
    /// A connection is replaced after this, or up to half of it before.
    pub connection_age: Duration,
    /// After a renewal of the certificate, the connection is replaced within this.
    pub replace_within: Duration,
    /// After a replacement that failed.
    pub replace_backoff: Backoff,
    /// Dirty keys kept. With that many no more changes are taken, and the watches wait; objects that come and go
    /// while the receiver is away would otherwise grow the set without end.
    pub max_dirty: usize,
    /// Names kept for other managers.
    pub max_names: usize,
    /// From a change of the digest to its being stored.
    pub store: Duration,
    /// The same for changes that do not count; without them, a restart reports a few objects for nothing.
    pub store_quiet: Duration,
    /// A change whose object's name cannot be stored is sent all the same after this.
    pub withhold: Duration,
    /// At shutdown, for the digest to be stored, and again for it to be declared.
    pub farewell: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            answer: Duration::from_secs(30),
            poll: Duration::from_secs(limits::POLL_SECONDS + 15),
            poll_pause: Duration::from_millis(20),
            // The canary says the same each minute. One that is on its way must not find that said just now.
            heartbeat: Duration::from_secs(65),
            backoff: Backoff { base: Duration::from_millis(500), max: Duration::from_secs(30) },
            sessions: Backoff { base: Duration::from_secs(5), max: Duration::from_mins(5) },
            spread: Spread::default(),
            connection_age: Duration::from_secs(DEFAULT_CONNECTION_AGE),
            replace_within: Duration::from_mins(3),
            replace_backoff: Backoff { base: Duration::from_secs(5), max: Duration::from_mins(2) },
            max_dirty: 1_000_000,
            max_names: DEFAULT_MAX_NAMES,
            store: Duration::from_secs(10),
            store_quiet: Duration::from_mins(10),
            withhold: Duration::from_secs(5),
            farewell: Duration::from_secs(4),
        }
    }
}
