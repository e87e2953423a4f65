//! What the listener takes at most. `docs/limits.md` says what happens at each.

use std::time::Duration;

/// A rate with a burst.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// In the long run, at least one in a thousand seconds.
    pub per_second: f64,
    /// At once, after a rest; at least 1.
    pub burst: f64,
}

/// The limits of one listener.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// For a TLS handshake.
    pub handshake: Duration,
    /// For the first request of a connection, and for the head of any HTTP/1 request.
    pub headers: Duration,
    /// For a body.
    pub body: Duration,
    /// Between two requests of a connection. An agent shows itself each minute.
    pub idle: Duration,
    /// For requests in hand, when a connection is ended.
    pub farewell: Duration,
    /// Connections; more wait to be accepted.
    pub connections: usize,
    /// Connections of one identity. With one more, the oldest is ended: the newest is the one that lives, since an
    /// agent that comes back may have left a half-open one.
    pub per_identity: usize,
    /// Handshakes at the same time; more connections wait to be accepted. One address has at most half of them, its
    /// further connections are closed.
    pub handshakes: usize,
    /// Bodies read at the same time, each of up to 1 MiB.
    pub bodies: usize,
    /// Bodies of one runtime among them, over all of its connections, and never more than half of them.
    pub bodies_per_runtime: usize,
    /// Requests of one runtime; all that are not registered share one.
    pub requests: Rate,
    /// Events of one runtime by the v2 contract; each is work of its own.
    pub v2_events: Rate,
    /// Events that were observed before this session began or are part of a full report, of all runtimes: what a fleet sends again after a restart
    /// is spread, and does not stand before new changes. One runtime may send a tenth of that.
    pub resent: Rate,
    /// Events that wait for their work to finish, of all runtimes, each of which has a share; see
    /// [`crate::Deliveries::with_room_for`].
    pub held: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            headers: Duration::from_secs(30),
            body: Duration::from_secs(30),
            idle: Duration::from_mins(5),
            farewell: Duration::from_secs(10),
            connections: 20_000,
            per_identity: 4,
            handshakes: 256,
            bodies: 256,
            bodies_per_runtime: 8,
            requests: Rate { per_second: 50.0, burst: 200.0 },
            v2_events: Rate { per_second: 10.0, burst: 100.0 },
            resent: Rate { per_second: 5_000.0, burst: 20_000.0 },
            held: 500_000,
        }
    }
}
