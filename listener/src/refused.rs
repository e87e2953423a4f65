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
    state: Mutex<(Repeats, Bucket, u64)>,
}

/// A line to log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Repetitions.
    pub times: u64,
    /// Refusals without a line.
    pub left_out: u64,
}

impl RefusalLog {
    /// Creates an empty log.
    #[must_use]
    pub fn new() -> Self {
        let start = Instant::now();
        Self { start, state: Mutex::new((Repeats::of(COUNTED), Bucket::full(LINES, start), 0)) }
    }

    /// Counts a refusal. Returns a line to log, if any.
    pub fn told(&self, what: &str, now: Timestamp) -> Option<LogLine> {
        let at = Instant::now();
        let (repeats, bucket, left_out) = &mut *self.state.lock();
        let times = repeats.told(what, now, at.duration_since(self.start))?;
        if bucket.take(LINES, 1.0, at).is_err() {
            *left_out = left_out.saturating_add(1);
            return None;
        }
        Some(LogLine { times, left_out: std::mem::take(left_out) })
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
    async fn equal_refusals_are_counted_and_made_up_ones_are_few_lines() {
        let (log, now) = (RefusalLog::new(), Timestamp::UNIX_EPOCH);
        let lines: Vec<u64> =
            (0..1_000).filter_map(|_| log.told("one", now)).map(|line| line.times).collect();
        assert_eq!(lines, [1, 10, 100, 1_000]);
        let lines = (0..100_000).filter_map(|n| log.told(&format!("made up {n}"), now)).count();
        assert_eq!(lines, 46, "the burst, less the four lines before");
        tokio::time::advance(Duration::from_secs(2)).await;
        let left_out = 100_000 - 46;
        assert_eq!(log.told("another", now), Some(LogLine { times: 1, left_out }));
    }
}
