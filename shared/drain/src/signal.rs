//! SIGTERM and SIGINT.

use crate::{Drain, Outcome};
use std::{io, time::Duration};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Receives SIGTERM and SIGINT, which then do not end the process.
#[derive(Debug)]
pub struct Signals {
    term: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Installs the handlers.
    pub fn listen() -> io::Result<Self> {
        Ok(Self { term: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Returns the next signal. Cancel-safe.
    pub async fn recv(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Waits for a signal.
pub async fn wait() -> io::Result<&'static str> {
    Ok(Signals::listen()?.recv().await)
}

/// Waits for a signal or shutdown, then drains. A second signal aborts. Call it last in `main`; [`Drain::cause`] has
/// the cause.
///
/// Make `signals` before anything else starts: they hold a signal that arrives during the start.
pub async fn run(mut signals: Signals, drain: &Drain, grace: Duration) -> Outcome {
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
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    // Signals reach all tests of the process, so only this one sends them.
    #[tokio::test]
    async fn first_signal_drains_and_second_aborts() {
        let signals = Signals::listen().unwrap();
        kill("-TERM");
        assert_eq!(
            run(signals, &Drain::new(), Duration::from_hours(1)).await,
            Outcome::Finished,
            "sent before"
        );

        let drain = Drain::new();
        let (seen, saw) = tokio::sync::oneshot::channel();
        let watch = drain.watch();
        drain.spawn("stuck", async move {
            watch.signaled().await;
            let _ = seen.send(());
            std::future::pending::<()>().await;
        });
        let signals = Signals::listen().unwrap();
        let run = tokio::spawn({
            let drain = drain.clone();
            async move { run(signals, &drain, Duration::from_hours(1)).await }
        });
        kill("-TERM");
        saw.await.unwrap();
        kill("-INT");
        assert_eq!(run.await.unwrap(), Outcome::Aborted(vec!["stuck".into()]));
    }

    fn kill(signal: &str) {
        let pid = std::process::id().to_string();
        assert!(std::process::Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }
}
