//! SIGTERM and SIGINT.

use crate::{Drain, Outcome};
use std::{io, time::Duration};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens for SIGTERM and SIGINT. From its creation on the signals no longer end the process by themselves.
#[derive(Debug)]
pub struct Signals {
    term: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Starts to listen. Fails only when the process may not install handlers.
    pub fn listen() -> io::Result<Self> {
        Ok(Self { term: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// The name of the next signal. Cancel-safe.
    pub async fn recv(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Resolves with the name of the next SIGTERM or SIGINT.
pub async fn wait() -> io::Result<&'static str> {
    Ok(Signals::listen()?.recv().await)
}

/// Waits for a signal or for shutdown to begin by itself (a critical task ended), then drains with `grace`. A
/// second signal aborts at once. What a `main` calls last; [`Drain::cause`] tells afterwards why it ended.
pub async fn run(drain: &Drain, grace: Duration) -> io::Result<Outcome> {
    let mut signals = Signals::listen()?;
    let watch = drain.watch();
    tokio::select! {
        name = signals.recv() => tracing::info!(signal = name, ?grace, "shutting down"),
        () = watch.signaled() => {}
    }
    let outcome = tokio::select! {
        outcome = drain.shutdown(grace) => outcome,
        name = signals.recv() => {
            tracing::warn!(signal = name, "second signal: not waiting for the rest");
            drain.abort().await
        }
    };
    tracing::info!(%outcome, "drained");
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    // No other test of this crate may send signals: they reach every listener of the process.
    #[tokio::test]
    async fn first_signal_drains_and_second_aborts() {
        let drain = Drain::new();
        let (seen, saw) = tokio::sync::oneshot::channel();
        let watch = drain.watch();
        drain.spawn("stuck", async move {
            watch.signaled().await;
            let _ = seen.send(());
            std::future::pending::<()>().await;
        });
        let run = tokio::spawn({
            let drain = drain.clone();
            async move { run(&drain, Duration::from_hours(1)).await }
        });
        // Installed before the kill, so that the process survives even when `run` has not listened yet.
        let mut ours = Signals::listen().unwrap();
        tokio::task::yield_now().await;
        kill("-TERM");
        assert_eq!(ours.recv().await, "SIGTERM");
        saw.await.unwrap();
        kill("-INT");
        assert_eq!(run.await.unwrap().unwrap(), Outcome::Aborted(vec!["stuck".into()]));
    }

    fn kill(signal: &str) {
        let pid = std::process::id().to_string();
        assert!(std::process::Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }
}
