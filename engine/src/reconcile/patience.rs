//! How many reconciles may wait for registries, so that one that hangs does not hold all workers.

use std::{pin::pin, time::Duration};

use tokio::{sync::Semaphore, time::timeout};

/// How long everybody may wait. As a rule a registry answers in less.
const MOMENT: Duration = Duration::from_secs(1);
/// The same while somebody waits for longer already: enough for what is on our own disk.
const BLINK: Duration = Duration::from_millis(50);

/// Too many wait already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Crowded;

/// See the module.
#[derive(Debug)]
pub(crate) struct Patience {
    places: Semaphore,
    most: usize,
}

impl Patience {
    /// A quarter of the workers may wait for long.
    pub(crate) fn new(workers: usize) -> Self {
        let most = (workers / 4).max(1);
        Self { places: Semaphore::new(most), most }
    }

    /// Waits for `work` for a moment, and then only if there is a place among those that wait for long. Without one, `work` is given
    /// up: whoever has a place and waits for the same goes on waiting for it.
    pub(crate) async fn wait<T>(&self, work: impl Future<Output = T> + Send) -> Result<T, Crowded> {
        let mut work = pin!(work);
        let free = self.places.available_permits() == self.most;
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
    async fn a_quarter_waits_and_the_others_go_on() {
        let patience = Arc::new(Patience::new(16));
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
