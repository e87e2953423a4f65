//! After a receiver's restart all agents reconnect, so waits are random.

use std::time::Duration;
use tokio::time::Instant;

/// Range of a random wait; doubles with each failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Initial size.
    pub first: Duration,
    /// Largest size.
    pub max: Duration,
}

/// Waits before a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// For agents without changes: 10,000 agents in 20 s are 500 handshakes per second.
    pub calm: Window,
    /// For agents with unacknowledged changes.
    pub urgent: Window,
}

impl Default for Spread {
    fn default() -> Self {
        Self {
            calm: Window { first: Duration::from_secs(20), max: Duration::from_mins(1) },
            urgent: Window { first: Duration::from_secs(2), max: Duration::from_secs(15) },
        }
    }
}

/// A wait that changes can shorten. Both ends are fixed: many changes cause no extra tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pause {
    calm: Instant,
    urgent: Instant,
}

impl Window {
    fn wait(self, failures: u32, random: f64) -> Duration {
        let window = self.first.saturating_mul(1_u32 << failures.min(20)).min(self.max);
        window.mul_f64(random.clamp(0.0, 1.0))
    }
}

impl Spread {
    /// `random` is in `[0, 1)`.
    pub(super) fn pause(&self, now: Instant, failures: u32, random: f64) -> Pause {
        let calm = now + self.calm.wait(failures, random);
        // Never after calm.
        Pause { calm, urgent: calm.min(now + self.urgent.wait(failures, random)) }
    }
}

impl Pause {
    pub(super) fn none(now: Instant) -> Self {
        Self { calm: now, urgent: now }
    }

    pub(super) fn until(&self, urgent: bool) -> Instant {
        if urgent { self.urgent } else { self.calm }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGENTS: u32 = 10_000;

    #[test]
    fn reconnects_are_spread_and_changes_go_first() {
        let (spread, now) = (Spread::default(), Instant::now());
        let mut calm = [0_u32; 60];
        let mut urgent = [0_u32; 60];
        for agent in 0..AGENTS {
            let pause = spread.pause(now, 0, f64::from(agent) / f64::from(AGENTS));
            assert!(pause.until(true) <= pause.until(false));
            for (urgency, buckets) in [(false, &mut calm), (true, &mut urgent)] {
                let second = (pause.until(urgency) - now).as_secs();
                buckets[usize::try_from(second).unwrap()] += 1;
            }
        }
        assert_eq!(calm[20..].iter().sum::<u32>(), 0, "all are back in 20 s");
        assert!(calm.iter().all(|agents| *agents <= 510), "{calm:?}");
        assert_eq!(urgent[2..].iter().sum::<u32>(), 0, "{urgent:?}");
    }

    #[test]
    fn reconnect_windows_grow_with_failures_to_a_maximum() {
        let (spread, now) = (Spread::default(), Instant::now());
        let latest = |failures, urgent| (spread.pause(now, failures, 1.0).until(urgent) - now).as_secs();
        let calm: Vec<u64> = (0..4).map(|failures| latest(failures, false)).collect();
        let urgent: Vec<u64> = (0..5).map(|failures| latest(failures, true)).collect();
        assert_eq!((calm, urgent), (vec![20, 40, 60, 60], vec![2, 4, 8, 15, 15]));
        assert_eq!((latest(u32::MAX, false), latest(u32::MAX, true)), (60, 15));
    }
}
