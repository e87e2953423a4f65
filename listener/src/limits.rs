//! Limits, described in `docs/operate/limits.md`.

use std::time::Duration;

/// A rate with a burst.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Average, at least 0.001.
    pub per_second: f64,
    /// Burst, at least 1.
    pub burst: f64,
}

/// Limits of a listener.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Time for a TLS handshake.
    pub handshake: Duration,
    /// Time for a first request, or head of an HTTP/1 request.
    pub headers: Duration,
    /// Time for a body.
    pub body: Duration,
    /// Time between requests. Agents send one per minute.
    pub idle: Duration,
    /// Time for requests in flight at a connection's end.
    pub farewell: Duration,
    /// Connections. More must wait.
    pub connections: usize,
    /// Connections per identity. More end the oldest, which may be half-open.
    pub per_identity: usize,
    /// Concurrent handshakes. More must wait. Beyond half per address, connections are closed.
    pub handshakes: usize,
    /// Concurrent bodies of up to 1 MiB.
    pub bodies: usize,
    /// Concurrent bodies per runtime, over all connections, at most half of `bodies`.
    pub bodies_per_runtime: usize,
    /// Requests per runtime. Unregistered peers share one rate.
    pub requests: Rate,
    /// V2 events per runtime, each a reconcile.
    pub v2_events: Rate,
    /// Events of full reports or from before the session, all runtimes. One runtime gets a tenth. New changes pass
    /// resends after a restart.
    pub resent: Rate,
    /// Held events; see [`crate::Deliveries::with_capacity`].
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
