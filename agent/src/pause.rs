//! Detects suspensions of the process and clock changes: open connections are then dead without an error.

use jiff::Timestamp;
use std::time::Duration;
use tokio::{sync::watch, time::Instant};

const TICK: Duration = Duration::from_secs(15);
/// A gap longer than a tick plus this is a pause. Peers close silent connections after about a minute.
const TOLERATED: Duration = Duration::from_secs(45);

/// The monotonic clock stops while a machine is suspended, but not while a process is stopped.
#[derive(Clone, Copy, Debug)]
struct Sample {
    wall: Timestamp,
    steady: Instant,
}

impl Sample {
    /// Ignores a wall clock set back.
    fn pause_since(self, before: Self) -> Option<Duration> {
        let wall = Duration::try_from(self.wall.duration_since(before.wall)).unwrap_or_default();
        let longest = wall.max(self.steady.duration_since(before.steady)).saturating_sub(TICK);
        (longest > TOLERATED).then_some(longest)
    }
}

pub(crate) async fn watch(clock: fn() -> Timestamp, resumed: watch::Sender<u64>) {
    let sample = || Sample { wall: clock(), steady: Instant::now() };
    let mut before = sample();
    loop {
        tokio::time::sleep(TICK).await;
        let now = sample();
        if let Some(pause) = now.pause_since(before) {
            tracing::warn!(?pause, "nothing ran for a while, or the clock was set: beginning anew");
            resumed.send_modify(|count| *count += 1);
        }
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::SignedDuration;
    use std::sync::atomic::{AtomicI64, Ordering};

    const WEEKS: i64 = 3 * 7 * 24 * 3600;

    #[tokio::test(start_paused = true)]
    async fn a_pause_is_detected_on_either_clock() {
        let before = Sample { wall: Timestamp::UNIX_EPOCH, steady: Instant::now() };
        let after = |wall: i64, steady: u64| Sample {
            wall: before.wall + SignedDuration::from_secs(wall),
            steady: before.steady + Duration::from_secs(steady),
        };
        for (wall, steady, pause) in [
            (15, 15, None),
            (60, 60, None),
            (61, 15, Some(46)),
            (15, 61, Some(46)),
            (WEEKS, 15, Some(WEEKS - 15)),
            (WEEKS, WEEKS, Some(WEEKS - 15)),
            (-WEEKS, 15, None),
        ] {
            let steady = u64::try_from(steady).unwrap();
            let pause = pause.map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap()));
            assert_eq!(after(wall, steady).pause_since(before), pause, "{wall} {steady}");
        }
        let end = Sample { wall: Timestamp::MAX, steady: before.steady };
        assert!(end.pause_since(Sample { wall: Timestamp::MIN, ..before }).is_some(), "no overflow");
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_jump_is_reported_once() {
        static JUMPED: AtomicI64 = AtomicI64::new(0);
        fn clock() -> Timestamp {
            Timestamp::from_second(JUMPED.load(Ordering::Relaxed)).unwrap()
        }
        let (resumed, mut receiver) = watch::channel(0);
        let watching = tokio::spawn(watch(clock, resumed));
        tokio::time::sleep(TICK * 3).await;
        assert!(!receiver.has_changed().unwrap());
        JUMPED.store(WEEKS, Ordering::Relaxed);
        receiver.changed().await.unwrap();
        tokio::time::sleep(TICK * 10).await;
        assert_eq!(*receiver.borrow_and_update(), 1);
        watching.abort();
    }
}
