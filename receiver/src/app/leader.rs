//! Leadership: the Lease, and the session that the leader records.

use tidewatch_drain::{Drain, ShutdownSignal};
use tidewatch_telemetry::chain;
use tokio::sync::{oneshot, watch};

use crate::{
    controllers::ControllerMetrics,
    lease::Candidate,
    sessions::{SessionRecord, Sessions},
    switch::Switch,
};

/// Becomes the leader, and stays it until the Lease is lost or the engine has finished.
pub(super) struct Leader {
    pub(super) candidate: Candidate,
    pub(super) switch: Switch,
    pub(super) controllers: ControllerMetrics,
}

impl Leader {
    /// Starts the election. The returned value is true from leadership on.
    pub(super) fn run(self, engine_ended: oneshot::Receiver<()>, drain: &Drain) -> watch::Receiver<bool> {
        let (leads, leading) = watch::channel(false);
        drain.spawn_critical("lease", self.lead(leads, engine_ended, drain.watch()));
        leading
    }

    async fn lead(
        self,
        leads: watch::Sender<bool>,
        engine_ended: oneshot::Receiver<()>,
        stop: ShutdownSignal,
    ) {
        let Self { candidate, switch, controllers } = self;
        let mut term = tokio::select! {
            term = candidate.acquire() => term,
            () = stop.signaled() => return,
        };
        tracing::info!(transitions = term.transitions(), "this receiver works: it holds the Lease");
        switch.leads(true);
        controllers.leads();
        leads.send_replace(true);
        let lost = tokio::select! {
            lost = term.keep() => Some(lost),
            () = stop.signaled() => None,
        };
        // Shutdown: keep the Lease until the engine has finished.
        let lost = match lost {
            Some(lost) => Some(lost),
            None => tokio::select! {
                lost = term.keep() => Some(lost),
                _ = engine_ended => None,
            },
        };
        switch.leads(false);
        match lost {
            Some(lost) => {
                tracing::error!(error = %chain(&lost), "this receiver does not work any more; ending");
            }
            None => term.release().await,
        }
    }
}

/// Records the leader's session, and its marks. The returned channel closes when the past sessions are known.
pub(super) fn record_sessions(
    sessions: Sessions,
    record: SessionRecord,
    leads: watch::Receiver<bool>,
    drain: &Drain,
) -> oneshot::Receiver<()> {
    let (recorded, is_recorded) = oneshot::channel();
    let stop = drain.watch();
    // Two waiting receivers would overwrite each other's sessions.
    drain.spawn_critical(
        "session",
        when_leading(leads, drain.watch(), async move {
            tokio::select! {
                () = sessions.record(&record) => {}
                () = stop.signaled() => return,
            }
            let _ = recorded.send(());
            tokio::select! {
                () = sessions.keep(&record) => {}
                () = stop.signaled() => {}
            }
        }),
    );
    is_recorded
}

/// Runs `work` from leadership on.
pub(super) async fn when_leading(
    mut leads: watch::Receiver<bool>,
    stop: ShutdownSignal,
    work: impl Future<Output = ()>,
) {
    let leads = tokio::select! {
        leads = leads.wait_for(|leads| *leads) => leads.is_ok(),
        () = stop.signaled() => false,
    };
    if leads {
        work.await;
    }
}
