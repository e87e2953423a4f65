//! Exponential backoff with jitter.

use std::time::Duration;

/// Limits of a backoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// First delay.
    pub base: Duration,
    /// Longest delay.
    pub max: Duration,
}

impl Backoff {
    /// Delay before retry `attempt` (from 0). `jitter` in `[0, 1)` spreads its upper half, so a fleet does not retry in
    /// step.
    #[must_use]
    pub fn delay(&self, attempt: u32, jitter: f64) -> Duration {
        let full = self.base.saturating_mul(1_u32 << attempt.min(20)).min(self.max);
        full.mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_maximum() {
        let backoff = Backoff { base: Duration::from_millis(500), max: Duration::from_secs(30) };
        assert_eq!(backoff.delay(0, 1.0), Duration::from_millis(500));
        assert_eq!(backoff.delay(1, 1.0), Duration::from_secs(1));
        assert_eq!(backoff.delay(1, 0.0), Duration::from_millis(500));
        assert_eq!(backoff.delay(u32::MAX, 1.0), Duration::from_secs(30));
    }
}
