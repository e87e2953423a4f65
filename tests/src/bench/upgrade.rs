//! Change → applied: a channel change makes the other version Ready.

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use futures::{StreamExt, stream::BoxStream};
use kube::{
    Api,
    runtime::watcher::{self, watcher},
};
use serde_json::json;
use tidewatch_api::{Manifest, State, names::KCP_NAMESPACE};
use tokio::time::Instant;

use super::{
    Bench, Figure, Goal, Size, Spec,
    repair::{Watched, apply, bare},
    stats::percentile_ms,
};
use crate::story::set_modules;

/// Timeout of one upgrade.
const LIMIT: Duration = Duration::from_mins(2);

pub(super) fn specs(size: &Size) -> Vec<Spec> {
    let spec = |p: &str| Spec {
        name: format!("change -> applied: channel changed -> Manifest Ready in it, {p} of {}", size.upgrades),
        unit: "ms",
        goal: Goal::AtMost(23_900.0),
        yardstick:
            "measured here, in turns: one Deployment changed by a bare apply -> rolled out; goal recorded: \
                    Go manager, Kyma CR created -> Ready, 23.9 s"
                .into(),
    };
    vec![spec("p50"), spec("p99 (the slowest)")]
}

pub(super) async fn run(bench: &Bench<'_>) -> Result<Vec<Figure>> {
    let runtime = bench.env.runtime1.client()?;
    let kcp = bench.env.kcp.client()?;
    // Every other turn downgrades.
    crate::kcp::allow_downgrade(&kcp, KCP_NAMESPACE, "lighthouse").await?;
    let manifests: Api<Manifest> = Api::namespaced(kcp, KCP_NAMESPACE);
    let mut manifests = watcher(manifests, watcher::Config::default()).boxed();
    // Skips the initial list of the watch.
    until(&mut manifests, |event| matches!(event, watcher::Event::InitDone).then_some(())).await?;
    let namespace = bare(0)["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
    let bare_api = bench.deployments(&namespace)?;
    let first = apply(&bare_api, 1).await?;
    let bare = Watched::start(bare_api.clone(), first.metadata.name.as_deref().unwrap_or_default());

    let (mut our_times, mut bare_times) = (Vec::new(), Vec::new());
    for turn in 0..bench.size.upgrades {
        let (channel, version) = if turn % 2 == 0 { ("fast", "1.1.0") } else { ("regular", "1.0.0") };
        bench.calm().await?;
        set_modules(&runtime, &json!([{"name": "lighthouse", "channel": channel}])).await?;
        let patched = Instant::now();
        let ready = until(&mut manifests, |event| is_ready(event, version).then(Instant::now));
        match tokio::time::timeout(LIMIT, ready).await {
            Ok(at) => our_times.push(at?.saturating_duration_since(patched)),
            Err(_) => return Err(anyhow!("version {version} was not Ready within {LIMIT:?}")),
        }
        bench.calm().await?;
        let changed = apply(&bare_api, 2 + u32::try_from(turn)?).await?;
        let applied = Instant::now();
        bare.rolled_out(changed.metadata.generation.unwrap_or_default()).await?;
        bare_times.push(Instant::now().duration_since(applied));
    }
    [0.5, 0.99]
        .into_iter()
        .map(|q| {
            let value = percentile_ms(&our_times, q).context("nothing was measured")?;
            Ok(Figure { value, against: percentile_ms(&bare_times, q) })
        })
        .collect()
}

async fn until<T>(
    manifests: &mut BoxStream<'_, watcher::Result<watcher::Event<Manifest>>>,
    probe: impl Fn(&watcher::Event<Manifest>) -> Option<T>,
) -> Result<T> {
    while let Some(event) = manifests.next().await {
        if let Ok(Some(found)) = event.map(|event| probe(&event)) {
            return Ok(found);
        }
    }
    Err(anyhow!("the watch on Manifests ended"))
}

fn is_ready(event: &watcher::Event<Manifest>, version: &str) -> bool {
    let (watcher::Event::Apply(manifest) | watcher::Event::InitApply(manifest)) = event else { return false };
    let generation = manifest.metadata.generation;
    manifest.spec.version == version
        && manifest.status.as_ref().is_some_and(|s| {
            s.state == State::Ready && s.conditions.iter().any(|c| c.observed_generation == generation)
        })
}
