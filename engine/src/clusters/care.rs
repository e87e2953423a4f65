//! How long a runtime's calls may take while others need the workers, and who hears how they end.

use std::{pin::Pin, sync::Arc, time::Duration};

use tokio::{
    sync::Semaphore,
    time::{Instant, Sleep, error::Elapsed, timeout},
};

use super::RateLimit;

/// What a call does. An API server may answer the one and not the other: one whose store has lost its majority, say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing.
    Reads,
    /// Something.
    Writes,
}

/// Hears how a call ended: what it does, how long it took, and whether an API server has answered, if only with an error.
pub(crate) type Ear = dyn Fn(Effect, Duration, bool) + Send + Sync;

/// What a client's calls are under. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Care {
    /// Places for calls of all runtimes that take long.
    pub(crate) places: Arc<Semaphore>,
    /// How many of them this one may have.
    pub(crate) own: Arc<Semaphore>,
    pub(crate) ear: Arc<Ear>,
    /// Those of one runtime.
    pub(crate) rate: Arc<RateLimit>,
}

/// The share of its deadline that a call gets without a place.
const SHARE: u32 = 4;

impl Care {
    /// What a call has to wait for before its turn.
    pub(super) fn turn(&self) -> Option<Sleep> {
        self.rate.wait()
    }

    /// Waits for `call` until its deadline; if there is no place among those that take long, only for a quarter of that.
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
        (self.ear)(effect, Instant::now().duration_since(since), answered);
    }
}

#[cfg(test)]
mod tests {
    use std::future;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn calls_that_hang_have_the_whole_time_only_while_there_is_room() {
        let care = Care {
            places: Arc::new(Semaphore::new(2)),
            own: Arc::new(Semaphore::new(2)),
            ear: Arc::new(|_, _, _| {}),
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
        let of_one = || Care {
            places: Arc::clone(&places),
            own: Arc::new(Semaphore::new(2)),
            ear: Arc::new(|_, _, _| {}),
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
