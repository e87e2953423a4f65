//! Who was not let in: one line for many equal refusals, and a word to the host.

use jiff::Timestamp;
use parking_lot::Mutex;
use tidewatch_delivery::repeats::Repeats;
use tidewatch_tls::Names;
use tokio::time::Instant;

use crate::{bucket::Bucket, limits::Rate};

/// Different refusals whose repetitions are counted.
const COUNTED: usize = 256;
/// Lines about refusals that were not counted before: whoever makes up names must not fill the log.
const LINES: Rate = Rate { per_second: 1.0, burst: 50.0 };

/// A peer that was refused because of its certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedPeer {
    /// Why, in a stable word.
    pub reason: &'static str,
    /// Whether the certificate is one of a trusted issuer, so that its names are its owner's. Without, anybody may
    /// have made it.
    pub verified: bool,
    /// What it says.
    pub names: Names,
}

/// Decides which of the lines that peers can cause are worth being written.
#[derive(Debug)]
pub struct RefusalLog {
    start: Instant,
    state: Mutex<(Repeats, Bucket, u64)>,
}

/// A line to write: how often it was told, and how many others were left out since the last line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// How often.
    pub times: u64,
    /// Others that were left out.
    pub left_out: u64,
}

impl RefusalLog {
    /// Nothing was told.
    #[must_use]
    pub fn new() -> Self {
        let start = Instant::now();
        Self { start, state: Mutex::new((Repeats::of(COUNTED), Bucket::full(LINES, start), 0)) }
    }

    /// Counts a refusal; `what` says whose and why.
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
