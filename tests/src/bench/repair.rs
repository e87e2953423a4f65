//! Change → applied: a deleted Deployment comes back.

use std::{collections::BTreeMap, pin::pin, sync::Arc, time::Duration};

use anyhow::{Context, Result, anyhow};
use futures::StreamExt;
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
    runtime::watcher::{self, watcher},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{sync::Notify, task::JoinSet, time::Instant};

use super::{Bench, DEPLOYMENT, Figure, Goal, SYSTEM, Size, Spec, stats::percentile_ms};

const BARE: &str = "bare-keeper";
const BARE_NAMESPACE: &str = "default";
/// Timeout of one repair.
const LIMIT: Duration = Duration::from_mins(1);

pub(super) fn specs(size: &Size) -> Vec<Spec> {
    let spec = |p: &str, goal| Spec {
        name: format!("change -> applied: Deployment deleted -> restored, {p} of {}", size.repairs),
        unit: "ms",
        goal,
        yardstick:
            "measured here, in turns: a bare watcher that re-creates its Deployment by server-side apply \
                    (the Go manager finds it at its next poll, every 5 minutes by default)"
                .into(),
    };
    vec![spec("p50", Goal::AtMost(1_000.0)), spec("p99 (the slowest)", Goal::AtMost(5_000.0))]
}

pub(super) async fn run(bench: &Bench<'_>) -> Result<Vec<Figure>> {
    let ours = Watched::start(bench.deployments(SYSTEM)?, DEPLOYMENT);
    let bare_api = bench.deployments(BARE_NAMESPACE)?;
    apply(&bare_api, 1).await?;
    let _keeper = keep(bare_api.clone());
    let bare = Watched::start(bare_api.clone(), BARE);

    let (mut our_times, mut bare_times) = (Vec::new(), Vec::new());
    for _ in 0..bench.size.repairs {
        bench.calm().await?;
        our_times.push(ours.delete_and_wait().await.context("the module's Deployment")?);
        bench.calm().await?;
        bare_times.push(bare.delete_and_wait().await.context("the bare watcher's Deployment")?);
    }
    [0.5, 0.99]
        .into_iter()
        .map(|q| {
            let value = percentile_ms(&our_times, q).context("nothing was measured")?;
            Ok(Figure { value, against: percentile_ms(&bare_times, q) })
        })
        .collect()
}

/// A Deployment of the module's shape. `generation` changes its pod template.
pub(super) fn bare(generation: u32) -> Value {
    let labels = json!({"app": BARE});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": BARE, "namespace": BARE_NAMESPACE, "labels": labels},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels},
                 "template": {"metadata": {"labels": labels}, "spec": {
                     "terminationGracePeriodSeconds": 10,
                     "containers": [{"name": "keeper", "image": format!("example.local/bare:{generation}"),
                                     "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}}}]}}}
    })
}

pub(super) async fn apply(api: &Api<Deployment>, generation: u32) -> Result<Deployment> {
    let params = PatchParams::apply(BARE).force();
    Ok(api.patch(BARE, &params, &Patch::Apply(bare(generation))).await?)
}

/// The yardstick: a watcher that only recreates the Deployment.
fn keep(api: Api<Deployment>) -> JoinSet<()> {
    let mut task = JoinSet::new();
    task.spawn(async move {
        let config = watcher::Config::default().fields(&format!("metadata.name={BARE}"));
        let mut events = pin!(watcher(api.clone(), config));
        while let Some(event) = events.next().await {
            if matches!(event, Ok(watcher::Event::Delete(_))) {
                // A failure leaves the Deployment missing.
                drop(apply(&api, 1).await);
            }
        }
    });
    task
}

/// Creation time of each uid, and the last state.
#[derive(Default)]
struct Seen {
    uids: BTreeMap<String, Instant>,
    last: Option<Deployment>,
}

pub(super) struct Watched {
    api: Api<Deployment>,
    name: String,
    seen: Arc<Mutex<Seen>>,
    changed: Arc<Notify>,
    _watch: JoinSet<()>,
}

impl Watched {
    pub(super) fn start(api: Api<Deployment>, name: &str) -> Self {
        let (seen, changed) = (Arc::<Mutex<Seen>>::default(), Arc::<Notify>::default());
        let mut watch = JoinSet::new();
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        watch.spawn({
            let (api, seen, changed) = (api.clone(), Arc::clone(&seen), Arc::clone(&changed));
            async move {
                let mut events = pin!(watcher(api, config));
                while let Some(event) = events.next().await {
                    if let Ok(watcher::Event::Apply(found) | watcher::Event::InitApply(found)) = event {
                        let at = Instant::now();
                        let mut seen = seen.lock();
                        seen.uids.entry(found.uid().unwrap_or_default()).or_insert(at);
                        seen.last = Some(found);
                    }
                    changed.notify_waiters();
                }
            }
        });
        Self { api, name: name.to_owned(), seen, changed, _watch: watch }
    }

    /// Returns the time from the deletion's answer to the new object.
    async fn delete_and_wait(&self) -> Result<Duration> {
        self.until("it is available", |seen| seen.last.as_ref().and_then(available)).await?;
        let known: Vec<String> = self.seen.lock().uids.keys().cloned().collect();
        self.api.delete(&self.name, &DeleteParams::background()).await?;
        let deleted = Instant::now();
        let back = self
            .until("it came back", |seen| {
                seen.uids.iter().find(|(uid, _)| !known.contains(uid)).map(|(_, at)| *at)
            })
            .await?;
        Ok(back.saturating_duration_since(deleted))
    }

    /// Waits until a generation of at least `generation` is rolled out.
    pub(super) async fn rolled_out(&self, generation: i64) -> Result<()> {
        self.until("it is rolled out", |seen| {
            let last = seen.last.as_ref()?;
            (last.metadata.generation? >= generation).then_some(())?;
            available(last)
        })
        .await
    }

    async fn until<T>(&self, what: &str, probe: impl Fn(&Seen) -> Option<T>) -> Result<T> {
        let found = async {
            loop {
                let changed = self.changed.notified();
                let mut changed = pin!(changed);
                // Subscribes before reading, so no change is missed.
                changed.as_mut().enable();
                if let Some(value) = probe(&self.seen.lock()) {
                    return value;
                }
                changed.await;
            }
        };
        tokio::time::timeout(LIMIT, found).await.map_err(|_| anyhow!("not within {LIMIT:?}: {what}"))
    }
}

fn available(deployment: &Deployment) -> Option<()> {
    let status = deployment.status.as_ref()?;
    let current = status.observed_generation == deployment.metadata.generation;
    let one = Some(1);
    (current && status.replicas == one && status.updated_replicas == one && status.available_replicas == one)
        .then_some(())
}
