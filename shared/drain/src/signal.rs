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

    // Signals reach all tests of the process, so only this one sends them.
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
        // Before the kill, so that the process survives.
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
