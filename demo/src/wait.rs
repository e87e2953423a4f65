//! Waits for conditions by polling.

use std::{future::Future, time::Duration};

use anyhow::{Result, anyhow};
use tokio::time::{Instant, sleep, timeout_at};

const PAUSE: Duration = Duration::from_millis(50);

/// Sleeps between two polls.
pub async fn pause() {
    sleep(PAUSE).await;
}

/// Calls `probe` every 50 ms until `Some`. Retries errors; a timeout reports the last.
pub async fn until<T, F, Fut>(what: &str, timeout: Duration, mut probe: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<Option<T>>>,
{
    let deadline = Instant::now() + timeout;
    let mut last = None;
    loop {
        match timeout_at(deadline, probe()).await {
            Ok(Ok(Some(value))) => return Ok(value),
            Ok(Ok(None)) => last = None,
            Ok(Err(error)) => last = Some(error),
            Err(_) => last = last.or_else(|| Some(anyhow!("the last try did not finish"))),
        }
        if Instant::now() + PAUSE >= deadline {
            let message = format!("timed out after {timeout:?} waiting for {what}");
            return Err(match last {
                Some(error) => error.context(message),
                None => anyhow!("{message}: it did not become true"),
            });
        }
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn an_error_is_tried_again() {
        let tries = AtomicUsize::new(0);
        let value = until("three tries", Duration::from_secs(10), || async {
            match tries.fetch_add(1, Ordering::Relaxed) {
                0 => Err(anyhow!("not up")),
                1 => Ok(None),
                _ => Ok(Some("up")),
            }
        });
        assert_eq!(value.await.unwrap(), "up");
        assert_eq!(tries.load(Ordering::Relaxed), 3);
    }

    #[tokio::test]
    async fn a_timeout_names_the_condition_and_the_last_error() {
        let never =
            until::<(), _, _>("the moon", Duration::from_millis(1), || async { Err(anyhow!("no rocket")) });
        let text = format!("{:#}", never.await.unwrap_err());
        assert_eq!(text, "timed out after 1ms waiting for the moon: no rocket");
    }

    #[tokio::test]
    async fn a_hanging_probe_is_cancelled() {
        let hangs = until::<(), _, _>("an answer", Duration::from_millis(60), std::future::pending);
        let text = format!("{:#}", hangs.await.unwrap_err());
        assert_eq!(text, "timed out after 60ms waiting for an answer: the last try did not finish");
    }
}
