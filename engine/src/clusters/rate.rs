//! How many calls one runtime gets: what comes too fast waits for its turn, so that a runtime whose objects never rest takes no CPU
//! and no bandwidth from the others, and its API server is spared.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep_until};

/// Calls that one runtime gets, on average.
const PER_SECOND: u32 = 100;
/// Calls that may come at once: a large module is installed without a wait.
const AT_ONCE: u32 = 500;
/// From one call to the next.
const STEP: Duration = Duration::from_millis(1000 / PER_SECOND as u64);

/// Turns of one runtime's calls (the generic cell rate algorithm: one moment is all that is kept).
#[derive(Debug)]
pub(crate) struct RateLimit {
    /// When all calls so far would be over, had they come one after the other at the average rate.
    over: Mutex<Instant>,
}

impl RateLimit {
    pub(crate) fn new(now: Instant) -> Self {
        Self { over: Mutex::new(now) }
    }

    /// When a call that comes now may begin. Its turn counts as taken.
    fn turn(&self, now: Instant) -> Instant {
        let mut over = self.over.lock();
        *over = (*over).max(now) + STEP;
        now.max(over.checked_sub(STEP * AT_ONCE).unwrap_or(now))
    }

    /// What a call has to wait for before its turn. Those that wait are as many as its reconciles make calls at the same time, so no wait is long.
    /// `None`: it is now.
    pub(crate) fn wait(&self) -> Option<Sleep> {
        let now = Instant::now();
        let turn = self.turn(now);
        (turn > now).then(|| {
            tracing::debug!(ms = (turn - now).as_millis(), "a runtime's call waits for its turn");
            sleep_until(turn)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn wait(rate: &RateLimit) {
        if let Some(turn) = rate.wait() {
            turn.await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_at_once_pass_and_then_as_many_as_the_rate_allows() {
        let (rate, start) = (RateLimit::new(Instant::now()), Instant::now());
        for _ in 0..AT_ONCE {
            wait(&rate).await;
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        for _ in 0..3 * PER_SECOND {
            wait(&rate).await;
        }
        assert_eq!(start.elapsed(), Duration::from_secs(3));
        tokio::time::advance(Duration::from_secs(1)).await;
        let rested = Instant::now();
        for _ in 0..PER_SECOND {
            wait(&rate).await;
        }
        assert_eq!(rested.elapsed(), Duration::ZERO, "what a second of rest has brought");
        wait(&rate).await;
        assert_eq!(rested.elapsed(), STEP);
        tokio::time::advance(Duration::from_hours(1)).await;
        let rested = Instant::now();
        for _ in 0..=AT_ONCE {
            wait(&rate).await;
        }
        assert_eq!(rested.elapsed(), STEP, "a long rest brings no more than that many at once");
    }
}
