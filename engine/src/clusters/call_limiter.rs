//! Limits the calls to one runtime: their rate, and how many of them may take long while other runtimes need the workers.

use std::{pin::Pin, sync::Arc, time::Duration};

use tokio::{
    sync::Semaphore,
    time::{Instant, Sleep, error::Elapsed, timeout},
};

use super::rate::RateLimit;

/// Whether a call writes. An API server may answer reads and no writes, for example when etcd has lost its quorum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Reads,
    Writes,
}

/// Observes the end of a call: its effect, its duration, and whether an API server has answered, if only with an error.
pub(crate) type Observer = dyn Fn(Effect, Duration, bool) + Send + Sync;

#[derive(Clone)]
pub(crate) struct CallLimiter {
    /// Slow calls of all runtimes.
    pub(crate) slow_calls: Arc<Semaphore>,
    /// Slow calls of this runtime.
    pub(crate) own_slow_calls: Arc<Semaphore>,
    pub(crate) observer: Arc<Observer>,
    pub(crate) rate: Arc<RateLimit>,
}

/// Beyond this fraction of its deadline, a call counts as slow.
const SLOW_FRACTION: u32 = 4;

impl CallLimiter {
    /// The wait before the call's turn by the rate; `None` if it may start.
    pub(super) fn turn(&self) -> Option<Sleep> {
        self.rate.wait()
    }

    /// Waits for `call` until its deadline; without capacity for a slow call, until a quarter of it.
    pub(super) async fn within<T>(
        &self,
        deadline: Duration,
        mut call: Pin<Box<impl Future<Output = T>>>,
    ) -> Result<T, Elapsed> {
        let slow_after = deadline / SLOW_FRACTION;
        let elapsed = match timeout(slow_after, &mut call).await {
            Ok(done) => return Ok(done),
            Err(elapsed) => elapsed,
        };
        let (Ok(_own), Ok(_slow)) = (self.own_slow_calls.try_acquire(), self.slow_calls.try_acquire()) else {
            return Err(elapsed);
        };
        timeout(deadline.saturating_sub(slow_after), call).await
    }

    pub(super) fn ended(&self, effect: Effect, since: Instant, answered: bool) {
        (self.observer)(effect, Instant::now().duration_since(since), answered);
    }
}

#[cfg(test)]
mod tests {
    use std::future;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn hanging_calls_keep_the_full_deadline_only_with_capacity() {
        let limiter = CallLimiter {
            slow_calls: Arc::new(Semaphore::new(2)),
            own_slow_calls: Arc::new(Semaphore::new(2)),
            observer: Arc::new(|_, _, _| {}),
            rate: Arc::new(RateLimit::new(Instant::now())),
        };
        let deadline = Duration::from_secs(20);
        let started = Instant::now();
        let hang = || {
            let limiter = limiter.clone();
            async move {
                assert!(limiter.within(deadline, Box::pin(future::pending::<()>())).await.is_err());
                started.elapsed().as_secs()
            }
        };
        let mut took = futures::future::join_all((0..16).map(|_| hang())).await;
        took.sort_unstable();
        assert_eq!((took[..14].iter().all(|s| *s == 5), &took[14..]), (true, &[20, 20][..]), "{took:?}");
        let slow = tokio::time::sleep(Duration::from_secs(15));
        assert!(limiter.within(deadline, Box::pin(slow)).await.is_ok(), "the capacity is free again");
    }

    #[tokio::test(start_paused = true)]
    async fn one_runtime_cannot_take_every_call_slot() {
        let (slow_calls, deadline) = (Arc::new(Semaphore::new(4)), Duration::from_secs(20));
        let of_one = || CallLimiter {
            slow_calls: Arc::clone(&slow_calls),
            own_slow_calls: Arc::new(Semaphore::new(2)),
            observer: Arc::new(|_, _, _| {}),
            rate: Arc::new(RateLimit::new(Instant::now())),
        };
        let (bad, other) = (of_one(), of_one());
        let hang = || async { bad.within(deadline, Box::pin(future::pending::<()>())).await.is_err() };
        let hanging = futures::future::join_all((0..8).map(|_| hang()));
        let slow = other.within(deadline, Box::pin(tokio::time::sleep(Duration::from_secs(15))));
        let (_, slow) = futures::future::join(hanging, slow).await;
        assert!(slow.is_ok(), "a slow call of another runtime has its whole deadline");
    }
}
