//! Serves agents: intake, ledgers, and other managers' lanes. In single-cluster mode, the one agent is in this process.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use jiff::Timestamp;
use prometheus::IntCounterVec;
use tidewatch_agent::app::Embedded;
use tidewatch_drain::{Drain, ShutdownSignal};
use tidewatch_engine::{Engine, index::KymaLookup};
use tidewatch_listener::{Admission, Deliveries, Guard, Intake, Limits, Metrics, RefusalLog, listener};
use tidewatch_telemetry::metrics::Registry;
use tidewatch_tls::Proxies;
use tokio::{net::TcpListener, sync::oneshot};

use super::{core::Core, files::Certificates};
use crate::{
    claims::ClaimBook,
    config::StartError,
    forward::{Forwarders, lane, target::Overrides},
    host::{EngineHost, OWN_MANAGER, refused_metric},
    klm,
    own_cluster::InProcess,
    sizes,
};

const SWEEP: Duration = Duration::from_mins(1);

/// Ledgers and lanes of all agents.
pub(super) struct Agents {
    pub(super) deliveries: Deliveries,
    /// Set once KCP is fully read; before, no runtime is known.
    pub(super) loaded: Arc<AtomicBool>,
    forwarders: Forwarders<Guard>,
    metrics: Metrics,
    refused: IntCounterVec,
    renewals: Option<klm::Certificates>,
    limits: Limits,
    queued: usize,
}

impl Agents {
    /// Creates them. Above `queued` ready keys, the intake refuses events.
    pub(super) fn new(
        core: &Core,
        certificates: Option<&Certificates>,
        routes: Overrides,
        limits: Limits,
        queued: usize,
        object_metrics: bool,
        registry: &Registry,
    ) -> Result<Self, StartError> {
        let engine = &core.engine;
        let deliveries = Deliveries::new(core.session).with_capacity(limits.held);
        sizes::register(registry, engine, &deliveries, &core.paths)?;
        Ok(Self {
            forwarders: Forwarders::new(
                OWN_MANAGER,
                engine.clone(),
                routes,
                lane::Limits::default(),
                registry,
            )?,
            metrics: Metrics::register(registry)?,
            refused: refused_metric(registry)?,
            renewals: klm::register_sizes(
                registry,
                engine,
                certificates.map(|certificates| &certificates.store),
                object_metrics,
            )?,
            loaded: Arc::default(),
            deliveries,
            limits,
            queued,
        })
    }

    /// Forwards events, and drops the records of unregistered runtimes.
    pub(super) fn forward(&self, core: &Core, drain: &Drain) {
        let records = Records {
            engine: core.engine.clone(),
            deliveries: self.deliveries.clone(),
            claims: core.claims.clone(),
            forwarders: self.forwarders.clone(),
        };
        drain.spawn("ledger-sweep", records.sweep(drain.watch()));
        drain.spawn_critical("forward", self.forwarders.clone().run(drain.watch()));
    }

    /// Serves agents once all of `known` are there: the past sessions, and the revoked runtimes. Ends if one of them never will be.
    pub(super) fn serve(
        self,
        listener: TcpListener,
        core: &Core,
        certificates: &Certificates,
        known: [oneshot::Receiver<()>; 2],
        drain: &Drain,
    ) {
        let intake = self.intake(core, Arc::clone(&certificates.proxies), drain);
        let (store, stop) = (Arc::clone(&certificates.store), drain.watch());
        drain.spawn_critical("events", async move {
            if !await_known(known, &stop).await {
                tracing::error!(
                    "the past sessions or the revoked runtimes will not be known; the receiver ends"
                );
                return;
            }
            listener::serve(listener, store, intake, Timestamp::now, stop).await;
        });
    }

    /// Serves the agent of the receiver's own cluster, from `recorded` on.
    pub(super) fn serve_own_cluster(
        self,
        agent: Embedded,
        core: &Core,
        recorded: oneshot::Receiver<()>,
        drain: &Drain,
    ) {
        let path = InProcess {
            intake: self.intake(core, Arc::new(Proxies::none()), drain),
            engine: core.engine.clone(),
            reconciled: core.reconciled.clone(),
        };
        drain.spawn_critical("events", path.serve(agent, recorded, drain.clone()));
    }

    fn intake(self, core: &Core, proxies: Arc<Proxies>, drain: &Drain) -> Arc<Intake> {
        Arc::new(Intake {
            admission: admission(self.limits, self.queued, &core.engine),
            host: Arc::new(EngineHost {
                engine: core.engine.clone(),
                forwarders: self.forwarders,
                paths: core.paths.clone(),
                claims: core.claims.clone(),
                ready: self.loaded,
                namespace: core.namespace.clone(),
                refused: self.refused,
                lines: RefusalLog::new(),
                certificates: self.renewals,
                revocations: core.revocations.clone(),
            }),
            deliveries: self.deliveries,
            metrics: self.metrics,
            drain: drain.watch(),
            proxies,
            clock: Timestamp::now,
        })
    }
}

/// Waits until all are known, or until `stop`. Returns `false` if a task that would make one known has ended.
async fn await_known(known: [oneshot::Receiver<()>; 2], stop: &ShutdownSignal) -> bool {
    tokio::select! {
        biased;
        // First: a stop ends these tasks too.
        () = stop.signaled() => true,
        known = futures::future::try_join_all(known) => known.is_ok(),
    }
}

/// Admits events until `queued` keys are ready.
fn admission(limits: Limits, queued: usize, engine: &Engine) -> Admission {
    let queue = engine.queue().clone();
    Admission::new(limits, Timestamp::now()).with_work(move || {
        let ready: usize = queue.inspect(|q| q.ready().map(|(_, keys)| keys).sum());
        #[expect(clippy::cast_precision_loss, reason = "a count of keys is far below 2^52")]
        let load = ready as f64 / queued.max(1) as f64;
        load
    })
}

/// What is kept per runtime.
struct Records {
    engine: Engine,
    deliveries: Deliveries,
    claims: ClaimBook,
    forwarders: Forwarders<Guard>,
}

impl Records {
    async fn sweep(self, drain: ShutdownSignal) {
        loop {
            tokio::select! {
                () = drain.signaled() => return,
                () = tokio::time::sleep(SWEEP) => {}
            }
            self.engine.tidy();
            // One read lock per lookup: holding it across a lane's lock may deadlock.
            let registered = |id: &str| self.engine.state().read().kymas.runtime(id) != KymaLookup::Unknown;
            self.forwarders.keep_runtimes(registered);
            self.deliveries.retain(registered);
            self.claims.retain(registered);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn agents_are_served_only_once_all_is_known() {
        let (drain, [first, second]) = (Drain::new(), [(); 2].map(|()| oneshot::channel()));
        let stop = drain.watch();
        let mut wait = Box::pin(await_known([first.1, second.1], &stop));
        assert!((&mut wait).now_or_never().is_none());
        first.0.send(()).unwrap();
        assert!((&mut wait).now_or_never().is_none(), "one is not known");
        second.0.send(()).unwrap();
        assert!(wait.await);
    }

    #[tokio::test]
    async fn no_agent_is_served_if_the_revocations_will_not_be_known() {
        let (drain, (known, is_known)) = (Drain::new(), oneshot::channel());
        let (ended, will_be_known) = oneshot::channel();
        known.send(()).unwrap();
        drop(ended);
        assert!(!await_known([is_known, will_be_known], &drain.watch()).await);
    }
}
