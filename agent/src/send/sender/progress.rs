use tidewatch_delivery::repeats::Repeated;
use tidewatch_wire::SessionId;

/// Sending state for the status page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Whether the receiver has answered on the connection.
    pub connected: bool,
    /// The receiver's session.
    pub session: Option<SessionId>,
    /// Unacknowledged keys.
    pub dirty: usize,
    /// Number of the latest change.
    pub last_observed: u64,
    /// Highest acknowledged number.
    pub last_acknowledged: u64,
    /// Latest error; empty after a success.
    pub last_error: String,
    /// Failed requests and connections since the start.
    pub failures: u64,
    /// Repeated errors and demands.
    pub repeated: Vec<Repeated>,
}

impl Progress {
    pub(super) fn failed(&mut self, error: String) {
        self.last_error = error;
        self.failures += 1;
    }
}
