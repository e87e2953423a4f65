//! Call rate per runtime. A runtime that changes constantly must not take CPU and bandwidth from others, or overload its API server.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep_until};

const PER_SECOND: u32 = 100;
/// A large module installs without a wait.
const BURST: u32 = 500;
const STEP: Duration = Duration::from_millis(1000 / PER_SECOND as u64);

/// The rate limit of one runtime (generic cell rate algorithm: one instant is the whole state).
#[derive(Debug)]
pub(crate) struct RateLimit {
    /// When all calls so far would end at the average rate.
    ends_at: Mutex<Instant>,
}

impl RateLimit {
    pub(crate) fn new(now: Instant) -> Self {
        Self { ends_at: Mutex::new(now) }
    }

    /// Reserves a turn and returns its start.
    fn turn(&self, now: Instant) -> Instant {
        let mut ends_at = self.ends_at.lock();
        *ends_at = (*ends_at).max(now) + STEP;
        now.max(ends_at.checked_sub(STEP * BURST).unwrap_or(now))
    }

    /// Returns the wait for the call's turn; `None` if it may start. Waits are short, since few calls of a runtime run at the same time.
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
        for _ in 0..BURST {
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
        assert_eq!(rested.elapsed(), Duration::ZERO, "a second without calls allows a second's calls");
        wait(&rate).await;
        assert_eq!(rested.elapsed(), STEP);
        tokio::time::advance(Duration::from_hours(1)).await;
        let rested = Instant::now();
        for _ in 0..=BURST {
            wait(&rate).await;
        }
        assert_eq!(rested.elapsed(), STEP, "a long rest allows no more than a burst");
    }
}
