//! One engine, on threads that end with it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use jiff::Timestamp;
use kube::{Client, Config};
use tidewatch_api::names::KCP_NAMESPACE;
use tidewatch_engine::{
    Acknowledge, Engine, EngineConfig, Guard, ReconcileLimits, WorkKey,
    history::{Observer, Record},
    queue::{Class, Push},
};
use tokio::{runtime::Runtime, sync::oneshot};
use tokio_util::sync::CancellationToken;

use super::{KYMA, preexisting::PULL_SECRET};

const GRACE: Duration = Duration::from_secs(10);

pub(crate) struct Incarnation {
    engine: Engine,
    threads: Option<Runtime>,
    reported: AtomicUsize,
    acknowledged: Arc<AtomicUsize>,
}

struct Unseen;

impl Observer for Unseen {
    fn reconciled(&self, _: &WorkKey, _: &Record) {}
    fn reachable(&self, _: &str, _: bool) {}
}

struct Told(Arc<AtomicUsize>);

impl Acknowledge for Told {
    fn finished(self: Box<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Incarnation {
    /// Starts an engine that knows only KCP's state.
    pub(crate) async fn begin(kcp: Config, modules: String) -> Result<Self> {
        let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let (send, made) = oneshot::channel();
        threads.spawn(async move {
            let config = EngineConfig {
                namespace: KCP_NAMESPACE.to_owned(),
                modules,
                limits: ReconcileLimits { workers: 4, ..ReconcileLimits::default() },
                pull_secret: Some(PULL_SECRET.to_owned()),
                ..EngineConfig::default()
            };
            let made = Client::try_from(kcp).map_err(anyhow::Error::from).and_then(|client| {
                Ok(Engine::new(client, config, Arc::new(Unseen), Arc::new(Timestamp::now))?)
            });
            let engine = made.as_ref().ok().cloned();
            let _nobody = send.send(made);
            if let Some(engine) = engine {
                engine.run(CancellationToken::new(), || ()).await;
            }
        });
        let engine = made.await.context("the engine's thread has ended")??;
        Ok(Self {
            engine,
            threads: Some(threads),
            reported: AtomicUsize::new(0),
            acknowledged: Arc::default(),
        })
    }

    pub(crate) fn tell_of_kyma(&self) {
        self.reported.fetch_add(1, Ordering::SeqCst);
        let guards: Vec<Guard> = vec![Box::new(Told(Arc::clone(&self.acknowledged)))];
        let push = Push { class: Class::UserEdit, trigger: None, guards };
        self.engine.queue().push(WorkKey::Kyma { kyma: KYMA.to_owned() }, push);
    }

    pub(crate) fn tell_of_objects(&self) {
        for manifest in self.engine.state().read().manifests.of(KYMA) {
            let name = manifest.metadata.name.clone().unwrap_or_default();
            let push = Push { class: Class::UserEdit, trigger: None, guards: Vec::new() };
            self.engine.queue().push(WorkKey::Manifest { kyma: KYMA.to_owned(), name }, push);
        }
    }

    /// Whether no event must be sent again.
    pub(crate) fn has_acknowledged(&self) -> bool {
        self.acknowledged.load(Ordering::SeqCst) == self.reported.load(Ordering::SeqCst)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.engine.queue().inspect(|queue| queue.working() == 0 && queue.ready().all(|(_, n)| n == 0))
    }

    pub(crate) fn last(&self) -> Vec<String> {
        let history = self.engine.history().of(KYMA);
        history.iter().rev().take(8).map(|r| format!("{} {:?} {}", r.key, r.outcome, r.message)).collect()
    }

    pub(crate) async fn end(mut self) {
        if let Some(threads) = self.threads.take() {
            let _ended = tokio::task::spawn_blocking(move || threads.shutdown_timeout(GRACE)).await;
        }
    }
}

impl Drop for Incarnation {
    /// A failed test does not wait.
    fn drop(&mut self) {
        if let Some(threads) = self.threads.take() {
            threads.shutdown_background();
        }
    }
}
