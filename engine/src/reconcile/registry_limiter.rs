//! Limits reconciles that wait for registries, so that a hanging registry does not block all workers.

use std::{pin::pin, time::Duration};

use tokio::{sync::Semaphore, time::timeout};

/// Wait allowed for every reconcile; registries mostly answer sooner.
const MOMENT: Duration = Duration::from_secs(1);
/// Wait while another reconcile waits longer than [`MOMENT`]: enough for a layer on the local disk.
const BLINK: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Crowded;

/// Places for reconciles that wait longer: a quarter of the workers.
#[derive(Debug)]
pub(crate) struct RegistryLimiter {
    places: Semaphore,
    limit: usize,
}

impl RegistryLimiter {
    pub(crate) fn new(workers: usize) -> Self {
        let limit = (workers / 4).max(1);
        Self { places: Semaphore::new(limit), limit }
    }

    /// Waits for `work` briefly, and longer only with a place. Otherwise drops `work`; another reconcile with a place continues to wait
    /// for the same layer.
    pub(crate) async fn wait<T>(&self, work: impl Future<Output = T> + Send) -> Result<T, Crowded> {
        let mut work = pin!(work);
        let free = self.places.available_permits() == self.limit;
        if let Ok(done) = timeout(if free { MOMENT } else { BLINK }, &mut work).await {
            return Ok(done);
        }
        let _place = self.places.try_acquire().map_err(|_| Crowded)?;
        Ok(work.await)
    }
}

#[cfg(test)]
mod tests {
    use std::{future, sync::Arc};

    use tokio::{task::JoinSet, time::Instant};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn registry_waits_take_a_quarter_of_the_workers() {
        let patience = Arc::new(RegistryLimiter::new(16));
        let hangs = |tasks: &mut JoinSet<Result<(), Crowded>>| {
            let patience = Arc::clone(&patience);
            tasks.spawn(async move { patience.wait(future::pending()).await });
        };
        let (mut tasks, started) = (JoinSet::new(), Instant::now());
        (0..16).for_each(|_| hangs(&mut tasks));
        for _ in 0..12 {
            assert_eq!(tasks.join_next().await.unwrap().unwrap(), Err(Crowded));
        }
        assert!(started.elapsed() <= MOMENT + BLINK, "nobody is held for longer than a moment");
        let later = Instant::now();
        hangs(&mut tasks);
        assert_eq!(tasks.join_next().await.unwrap().unwrap(), Err(Crowded));
        assert!(later.elapsed() <= 2 * BLINK, "and hardly at all while it is known");
        assert_eq!(patience.wait(future::ready(7)).await, Ok(7), "what is there already needs no place");
        tasks.shutdown().await;
        let slow = async {
            tokio::time::sleep(Duration::from_secs(20)).await;
            8
        };
        assert_eq!(patience.wait(slow).await, Ok(8), "their places are free again");
    }
}
