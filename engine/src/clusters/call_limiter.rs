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
    pub(crate) places: Arc<Semaphore>,
    pub(crate) own: Arc<Semaphore>,
    pub(crate) observer: Arc<Observer>,
    pub(crate) rate: Arc<RateLimit>,
}

/// A call without a place gets this fraction of its deadline.
const SHARE: u32 = 4;

impl CallLimiter {
    /// The wait before the call's turn by the rate; `None` if it may start.
    pub(super) fn turn(&self) -> Option<Sleep> {
        self.rate.wait()
    }

    /// Waits for `call` until its deadline; without a place for a slow call, until a quarter of it.
    pub(super) async fn within<T>(
        &self,
        deadline: Duration,
        mut call: Pin<Box<impl Future<Output = T>>>,
    ) -> Result<T, Elapsed> {
        let moment = deadline / SHARE;
        let elapsed = match timeout(moment, &mut call).await {
            Ok(done) => return Ok(done),
            Err(elapsed) => elapsed,
        };
        let (Ok(_own), Ok(_place)) = (self.own.try_acquire(), self.places.try_acquire()) else {
            return Err(elapsed);
        };
        timeout(deadline.saturating_sub(moment), call).await
    }

    pub(super) fn heard(&self, effect: Effect, since: Instant, answered: bool) {
        (self.observer)(effect, Instant::now().duration_since(since), answered);
    }
}

#[cfg(test)]
mod tests {
    use std::future;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn calls_that_hang_have_the_whole_time_only_while_there_is_room() {
        let care = CallLimiter {
            places: Arc::new(Semaphore::new(2)),
            own: Arc::new(Semaphore::new(2)),
            observer: Arc::new(|_, _, _| {}),
            rate: Arc::new(RateLimit::new(Instant::now())),
        };
        let deadline = Duration::from_secs(20);
        let started = Instant::now();
        let hang = || {
            let care = care.clone();
            async move {
                assert!(care.within(deadline, Box::pin(future::pending::<()>())).await.is_err());
                started.elapsed().as_secs()
            }
        };
        let mut took = futures::future::join_all((0..16).map(|_| hang())).await;
        took.sort_unstable();
        assert_eq!((took[..14].iter().all(|s| *s == 5), &took[14..]), (true, &[20, 20][..]), "{took:?}");
        let slow = tokio::time::sleep(Duration::from_secs(15));
        assert!(care.within(deadline, Box::pin(slow)).await.is_ok(), "the places are free again");
    }

    #[tokio::test(start_paused = true)]
    async fn one_runtime_has_a_part_of_the_places_at_most() {
        let (places, deadline) = (Arc::new(Semaphore::new(4)), Duration::from_secs(20));
        let of_one = || CallLimiter {
            places: Arc::clone(&places),
            own: Arc::new(Semaphore::new(2)),
            observer: Arc::new(|_, _, _| {}),
            rate: Arc::new(RateLimit::new(Instant::now())),
        };
        let (bad, other) = (of_one(), of_one());
        let hang = || async { bad.within(deadline, Box::pin(future::pending::<()>())).await.is_err() };
        let hanging = futures::future::join_all((0..8).map(|_| hang()));
        let slow = other.within(deadline, Box::pin(tokio::time::sleep(Duration::from_secs(15))));
        let (_, slow) = futures::future::join(hanging, slow).await;
        assert!(slow.is_ok(), "what takes long elsewhere has its time");
    }
}
