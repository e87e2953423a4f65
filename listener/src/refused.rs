//! Refused peers.

use jiff::Timestamp;
use parking_lot::Mutex;
use tidewatch_delivery::repeats::Repeats;
use tidewatch_tls::Names;
use tokio::time::Instant;

use crate::{bucket::Bucket, limits::Rate};

/// Distinct refusals to count.
const COUNTED: usize = 256;
/// Invented names must not fill the log.
const LINES: Rate = Rate { per_second: 1.0, burst: 50.0 };

/// A peer with a refused certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedPeer {
    /// Label.
    pub reason: &'static str,
    /// Whether a trusted issuer signed it. Else names may be forged.
    pub verified: bool,
    /// Names in the certificate.
    pub names: Names,
}

/// Limits log lines caused by peers.
#[derive(Debug)]
pub struct RefusalLog {
    start: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    repeats: Repeats,
    bucket: Bucket,
    /// Suppressed lines since the last [`LogLine`].
    left_out: u64,
}

/// A line to log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Repetitions.
    pub times: u64,
    /// Suppressed lines since the last one.
    pub left_out: u64,
}

impl RefusalLog {
    /// Creates an empty log.
    #[must_use]
    pub fn new() -> Self {
        let start = Instant::now();
        let state = State { repeats: Repeats::of(COUNTED), bucket: Bucket::full(LINES, start), left_out: 0 };
        Self { start, state: Mutex::new(state) }
    }

    /// Counts a refusal. Returns a line to log, if any.
    pub fn record(&self, message: &str, now: Timestamp) -> Option<LogLine> {
        let state = &mut *self.state.lock();
        let times = state.admit(message, now, self.start)?;
        Some(LogLine { times, left_out: std::mem::take(&mut state.left_out) })
    }

    /// Counts another message that peers cause. Returns its repetitions if it should be logged. The next [`LogLine`]
    /// still has the number of suppressed lines.
    pub fn repeat(&self, message: &str, now: Timestamp) -> Option<u64> {
        self.state.lock().admit(message, now, self.start)
    }
}

impl State {
    fn admit(&mut self, message: &str, now: Timestamp, start: Instant) -> Option<u64> {
        let at = Instant::now();
        let times = self.repeats.record(message, now, at.duration_since(start))?;
        if self.bucket.take(LINES, 1.0, at).is_err() {
            self.left_out = self.left_out.saturating_add(1);
            return None;
        }
        Some(times)
    }
}

impl Default for RefusalLog {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn repeated_and_random_refusals_are_logged_rarely() {
        let (log, now) = (RefusalLog::new(), Timestamp::UNIX_EPOCH);
        let lines: Vec<u64> =
            (0..1_000).filter_map(|_| log.record("one", now)).map(|line| line.times).collect();
        assert_eq!(lines, [1, 10, 100, 1_000]);
        let lines = (0..100_000).filter_map(|n| log.record(&format!("made up {n}"), now)).count();
        assert_eq!(lines, 46, "the burst, less the four lines before");
        tokio::time::advance(Duration::from_secs(2)).await;
        let left_out = 100_000 - 46;
        assert_eq!(log.repeat("a connection has ended", now), Some(1), "the next refusal has the number");
        assert_eq!(log.record("another", now), Some(LogLine { times: 1, left_out }));
    }
}
