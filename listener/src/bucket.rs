//! A token bucket.
//!
//! A request may overdraw it, and an event that a common limit refuses gives its tokens back. `governor` offers
//! neither: it refuses a request larger than the burst for good, and never returns tokens.

use std::time::Duration;

use tokio::time::Instant;

use crate::limits::Rate;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    pub(crate) fn full(rate: Rate, now: Instant) -> Self {
        Self { tokens: capacity(rate), at: now }
    }

    /// Takes `count` tokens if one is left, else returns the wait.
    ///
    /// A large request may overdraw, so that it always passes.
    pub(crate) fn take(&mut self, rate: Rate, count: f64, now: Instant) -> Result<(), Duration> {
        self.tokens = self.tokens_at(rate, now);
        self.at = now.max(self.at);
        if self.tokens >= 1.0 {
            self.tokens -= count;
            Ok(())
        } else {
            Err(Duration::try_from_secs_f64((1.0 - self.tokens) / per_second(rate)).unwrap_or(Duration::MAX))
        }
    }

    pub(crate) fn give_back(&mut self, count: f64) {
        self.tokens += count;
    }

    /// Whether the bucket can be forgotten.
    pub(crate) fn is_full(&self, rate: Rate, now: Instant) -> bool {
        self.tokens_at(rate, now) >= capacity(rate)
    }

    fn tokens_at(&self, rate: Rate, now: Instant) -> f64 {
        let gained = now.saturating_duration_since(self.at).as_secs_f64() * per_second(rate);
        (self.tokens + gained).min(capacity(rate))
    }
}

fn per_second(rate: Rate) -> f64 {
    rate.per_second.max(0.001)
}

fn capacity(rate: Rate) -> f64 {
    rate.burst.max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { per_second: 50.0, burst: 200.0 };

    #[tokio::test(start_paused = true)]
    async fn a_burst_and_then_the_rate() {
        let start = Instant::now();
        let mut bucket = Bucket::full(RATE, start);
        let mut passed = 0;
        for millisecond in 0..10_000 {
            let now = start + Duration::from_millis(millisecond);
            while bucket.take(RATE, 1.0, now).is_ok() {
                passed += 1;
            }
        }
        assert!((698..=700).contains(&passed), "200 and 50 in each of 10 s: {passed}");
        let wait = bucket.take(RATE, 1.0, start + Duration::from_secs(10)).err();
        assert!(wait.is_none_or(|wait| wait <= Duration::from_millis(20)), "{wait:?}");
        assert!(!bucket.is_full(RATE, start + Duration::from_secs(11)));
        assert!(bucket.is_full(RATE, start + Duration::from_secs(15)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_request_passes_and_delays_the_next() {
        let start = Instant::now();
        let mut bucket = Bucket::full(RATE, start);
        bucket.take(RATE, 1_000.0, start).unwrap();
        let wait = bucket.take(RATE, 1.0, start).unwrap_err();
        assert!(wait > Duration::from_secs(16) && wait < Duration::from_secs(17), "{wait:?}");
        bucket.take(RATE, 1.0, start + wait + Duration::from_millis(1)).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_zero_rate_does_not_block_forever() {
        let now = Instant::now();
        let rate = Rate { per_second: 0.0, burst: 0.0 };
        let mut bucket = Bucket::full(rate, now);
        bucket.take(rate, 1.0, now).unwrap();
        assert_eq!(bucket.take(rate, 1.0, now).unwrap_err(), Duration::from_secs(1_000));
        let burst = Rate { per_second: 0.0, burst: 1.0 };
        for rate in [rate, burst] {
            assert!(!bucket.is_full(rate, now + Duration::from_secs(999)), "{rate:?}");
            assert!(bucket.is_full(rate, now + Duration::from_secs(1_000)), "{rate:?}");
        }
    }
}
