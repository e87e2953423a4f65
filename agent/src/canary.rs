//! A Lease that changes every minute. Its event proves the path from the API server to the acknowledgement. It is in
//! no digest.

use crate::{jitter, metrics::Metrics, observe::message::Message};
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    core::PartialObjectMeta,
    runtime::{WatchStreamExt, watcher},
};
use serde_json::json;
use std::time::Duration;
use tidewatch_delivery::{
    backoff::Backoff,
    outbox::{Key, Moved, Observation},
};
use tidewatch_telemetry::chain;
use tidewatch_wire::v3::{CANARY, Change};
use tokio::{sync::mpsc, time::Instant};

/// Name of the Lease.
pub const NAME: &str = "tidewatch-agent-canary";
/// Namespace of the Lease.
pub const NAMESPACE: &str = "kyma-system";
const MANAGER: &str = "tidewatch-agent";
const FIRST: Duration = Duration::from_secs(3);
/// Time between changes.
pub const INTERVAL: Duration = Duration::from_mins(1);
const TIMEOUT: Duration = Duration::from_secs(10);
const RETRY: Backoff = Backoff { base: Duration::from_secs(2), max: Duration::from_secs(30) };
const WATCH_SECONDS: u32 = 200;

/// Changes and watches the Lease until `changes` closes.
pub async fn run(client: Client, changes: mpsc::Sender<Message>, metrics: Metrics, clock: fn() -> Timestamp) {
    tokio::select! {
        () = change(Api::namespaced(client.clone(), NAMESPACE), &metrics, clock) => {}
        () = watch(Api::namespaced(client, NAMESPACE), &changes, clock) => {}
    }
}

async fn change(api: Api<Lease>, metrics: &Metrics, clock: fn() -> Timestamp) {
    // Spread simultaneous starts.
    let mut due = Instant::now() + FIRST.mul_f64(jitter::random());
    let mut attempt = 0;
    loop {
        tokio::time::sleep_until(due).await;
        let renewed = tokio::time::timeout(TIMEOUT, renew(&api, clock())).await;
        let now = Instant::now();
        let error = match renewed {
            Ok(Ok(())) => {
                attempt = 0;
                metrics.canaries.with_label_values(&["changed"]).inc();
                due = (due + INTERVAL).max(now + INTERVAL / 2);
                continue;
            }
            Ok(Err(error)) => chain(&error).to_string(),
            Err(_) => format!("the API server did not answer within {} s", TIMEOUT.as_secs()),
        };
        metrics.canaries.with_label_values(&["failed"]).inc();
        if attempt == 0 {
            tracing::warn!(error, "the canary cannot be changed; the event path is not proven");
        }
        due = now + RETRY.delay(attempt, jitter::random());
        attempt = attempt.saturating_add(1);
    }
}

async fn renew(api: &Api<Lease>, now: Timestamp) -> kube::Result<()> {
    let time = now.round(jiff::Unit::Microsecond).unwrap_or(now);
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": NAME},
        "spec": {"holderIdentity": MANAGER, "renewTime": format!("{time:.6}")}
    });
    api.patch_metadata(NAME, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&lease)).await.map(drop)
}

async fn watch(
    api: Api<PartialObjectMeta<Lease>>,
    changes: &mpsc::Sender<Message>,
    clock: fn() -> Timestamp,
) {
    let config = watcher::Config::default().fields(&format!("metadata.name={NAME}")).timeout(WATCH_SECONDS);
    let mut events = watcher(api, config).default_backoff().boxed();
    let mut last = None;
    loop {
        let Ok(event) = events.try_next().await else { continue };
        let Some(event) = event else { return };
        let (watcher::Event::Apply(lease) | watcher::Event::InitApply(lease)) = event else { continue };
        let version = lease.metadata.resource_version;
        if version == last {
            continue;
        }
        if changes.send(Message::Changed(observation(clock()), Moved::default())).await.is_err() {
            return;
        }
        last = version;
    }
}

/// Minimal: it is sent every minute.
pub(crate) fn observation(at: Timestamp) -> Observation {
    Observation {
        // Identified by its watch; events need a name.
        key: Key { watch: CANARY.into(), namespace: "".into(), name: "canary".into() },
        group: "".into(),
        version: "v1".into(),
        kind: "Lease".into(),
        uid: String::new(),
        resource_version: String::new(),
        change: Change::Changed,
        listed: false,
        at: at.round(jiff::Unit::Millisecond).unwrap_or(at),
    }
}
