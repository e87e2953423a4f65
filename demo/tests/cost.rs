//! Bounds a module's reconciles and calls.

#![allow(clippy::print_stderr, reason = "what it has cost, if somebody asks")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, ResourceExt, api::DeleteParams};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, State,
    names::{KCP_NAMESPACE, RUNTIME_KYMA_NAME, RUNTIME_NAMESPACE, conditions},
};
use tidewatch_demo::{
    fixtures::LIGHTHOUSE_1_1_0,
    fleet, http,
    report::Recorder,
    simulated::{RECEIVER_USER, Simulated},
    story::{RUNTIMES, Stage, World, set_modules},
    wait,
};
use tidewatch_fake_apiserver::{Call, Fault, Faults};
use tokio::time::Instant;

const SOON: Duration = Duration::from_mins(1);
/// Idle after this time without calls or reconciles.
const REST: Duration = Duration::from_secs(2);

/// By cluster, verb and resource.
#[derive(Debug, Default)]
struct Calls(Mutex<BTreeMap<String, usize>>);

impl Faults for Calls {
    fn fault(&self, call: &Call<'_>) -> Fault {
        // Lease and sessions are not about modules.
        let own = ["leases", "configmaps"].contains(&resource(call.path).as_str()) && call.cluster == "kcp";
        if call.user == RECEIVER_USER && !call.is_watch && !own {
            let line = format!("{} {} {}", call.cluster, call.verb, resource(call.path));
            *self.0.lock().entry(line).or_default() += 1;
        }
        Fault::None
    }
}

fn resource(path: &str) -> String {
    let path = path.split('?').next().unwrap_or_default();
    let mut parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let group = if parts.first() == Some(&"api") { 2 } else { 3 };
    parts.drain(..group.min(parts.len()));
    if parts.first() == Some(&"namespaces") && parts.len() > 2 {
        parts.drain(..2);
    }
    match parts[..] {
        [] => "discovery".to_owned(),
        [resource, _, sub, ..] => format!("{resource}/{sub}"),
        [resource, ..] => resource.to_owned(),
    }
}

struct Bench {
    stage: Stage,
    world: World,
    calls: Arc<Calls>,
    /// End of the last known reconcile.
    known: String,
}

struct Cost {
    /// By kind of key.
    reconciles: BTreeMap<String, usize>,
    calls: BTreeMap<String, usize>,
    /// Agent watches that reported module objects.
    watches: BTreeSet<String>,
    /// Details for failures.
    text: String,
}

impl Cost {
    fn of(&self, key: &str) -> usize {
        self.reconciles.get(key).copied().unwrap_or_default()
    }

    /// Calls with this prefix.
    fn calls(&self, start: &str) -> usize {
        self.calls.iter().filter(|(line, _)| line.starts_with(start)).map(|(_, n)| n).sum()
    }

    fn at_most(&self, what: &str, have: usize, most: usize) -> Result<()> {
        ensure!(have <= most, "{what}: {have}, at most {most} were to be expected\n{}", self.text);
        Ok(())
    }
}

impl Bench {
    async fn total(&self) -> Result<(usize, usize)> {
        let metrics = http::text(&format!("{}/metrics", self.world.receiver)).await?;
        let reconciles = metrics
            .lines()
            .filter(|line| {
                line.starts_with("tidewatch_receiver_reconciles_total{") && !line.contains("\"Path\"")
            })
            .filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok())
            .sum();
        Ok((reconciles, self.calls.0.lock().values().sum()))
    }

    async fn records(&self) -> Result<Vec<Value>> {
        let page = http::json(&format!("{}/runtimes/{}", self.world.receiver, RUNTIMES[0].1)).await?;
        Ok(page["reconciles"].as_array().context("no records")?.clone())
    }

    async fn rest(&self) -> Result<()> {
        let mut last = (self.total().await?, Instant::now());
        while last.1.elapsed() < REST {
            wait::pause().await;
            let now = self.total().await?;
            if now != last.0 {
                last = (now, Instant::now());
            }
        }
        Ok(())
    }

    /// Waits until idle and resets the counts.
    async fn begin(&mut self) -> Result<()> {
        self.rest().await?;
        self.calls.0.lock().clear();
        let last = self.records().await?.pop();
        self.known =
            last.map(|last| last["finishedAt"].as_str().unwrap_or_default().to_owned()).unwrap_or_default();
        Ok(())
    }

    /// Waits until idle.
    async fn cost(&self) -> Result<Cost> {
        self.rest().await?;
        let mut reconciles = BTreeMap::<String, usize>::new();
        let (mut watches, mut text) = (BTreeSet::new(), String::new());
        let new = |record: &&Value| record["finishedAt"].as_str() > Some(&self.known);
        for record in self.records().await?.iter().filter(new) {
            let key = record["key"].as_str().unwrap_or_default().split('/').next().unwrap_or_default();
            *reconciles.entry(key.to_owned()).or_default() += 1;
            let _ = writeln!(text, "{} {} {}", record["key"], record["outcome"], record["message"]);
            for cause in record["causes"].as_array().into_iter().flatten() {
                let _ = writeln!(text, "    {cause}");
                watches.extend(cause["watch"].as_str().filter(|_| key == "Manifest").map(str::to_owned));
            }
        }
        let calls = self.calls.0.lock().clone();
        for (line, count) in &calls {
            let _ = writeln!(text, "{count} {line}");
        }
        if std::env::var_os("COST").is_some() {
            eprintln!("{text}");
        }
        Ok(Cost { reconciles, calls, watches, text })
    }

    async fn ready(&self, version: &str) -> Result<()> {
        let is = |kyma: &Kyma| {
            kyma.status.as_ref().is_some_and(|s| s.state == State::Ready)
                && kyma
                    .module_status("lighthouse")
                    .is_some_and(|m| m.version == version && m.state == State::Ready)
        };
        let kcp: Api<Kyma> = Api::namespaced(self.stage.kcp.clone(), KCP_NAMESPACE);
        fleet::kyma_where(kcp, RUNTIMES[0].0, "the version to be Ready in KCP", is).await?;
        let runtime: Api<Kyma> = Api::namespaced(self.stage.runtimes[0].client.clone(), RUNTIME_NAMESPACE);
        fleet::kyma_where(runtime, RUNTIME_KYMA_NAME, "the version to be Ready in the runtime", is).await?;
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_module_costs_few_reconciles_and_calls() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let calls = Arc::new(Calls::default());
    let mut simulated = Simulated::with(folder.path(), Arc::clone(&calls) as Arc<dyn Faults>).await?;
    let stage = simulated.stage()?;
    let world = World::start(stage.clone(), &mut simulated, &Recorder::default()).await?;
    let kcp: Api<Kyma> = Api::namespaced(stage.kcp.clone(), KCP_NAMESPACE);
    for (kyma, _) in RUNTIMES {
        let proven = |kyma: &Kyma| {
            let conditions = kyma.status.iter().flat_map(|status| &status.conditions);
            conditions.into_iter().any(|c| c.type_ == conditions::RUNTIME_EVENTS && c.status == "True")
        };
        fleet::kyma_where(kcp.clone(), kyma, "the way of events to be proven", proven).await?;
    }
    let mut bench = Bench { stage, world, calls, known: String::new() };
    let runtime = bench.stage.runtimes[0].client.clone();

    bench.begin().await?;
    set_modules(&runtime, &json!([{"name": "lighthouse"}])).await?;
    bench.ready("1.0.0").await?;
    let cost = bench.cost().await?;
    cost.at_most("installation: reconciles of the Kyma", cost.of("Kyma"), 5)?;
    // Creation, retry, readiness; each new watch may report existing objects separately.
    cost.at_most("installation: reconciles of the Manifest", cost.of("Manifest"), 3 + cost.watches.len())?;
    cost.at_most("installation: writes to KCP", cost.calls("kcp patch"), 9)?;
    cost.at_most("installation: writes to the runtime", cost.calls("runtime1 patch"), 20)?;

    // Kinds change, so the agent's watches list again.
    bench.begin().await?;
    fleet::release(&bench.stage.kcp, KCP_NAMESPACE, &[("regular", "1.1.0"), ("fast", "1.1.0")]).await?;
    bench.ready("1.1.0").await?;
    let cost = bench.cost().await?;
    cost.at_most("upgrade with another kind: reconciles of the Kyma", cost.of("Kyma"), 4)?;
    cost.at_most("upgrade with another kind: reconciles of the Manifest", cost.of("Manifest"), 8)?;

    let third = LIGHTHOUSE_1_1_0.replace("1.1.0", "1.2.0");
    fleet::push_lighthouse(&bench.stage.registry, "1.2.0", &third).await?;
    fleet::offer_template(&bench.stage.kcp, KCP_NAMESPACE, "1.2.0").await?;
    bench.begin().await?;
    fleet::release(&bench.stage.kcp, KCP_NAMESPACE, &[("regular", "1.2.0"), ("fast", "1.2.0")]).await?;
    bench.ready("1.2.0").await?;
    let cost = bench.cost().await?;
    cost.at_most("upgrade: reconciles of the Kyma", cost.of("Kyma"), 3)?;
    cost.at_most("upgrade: reconciles of the Manifest", cost.of("Manifest"), 6)?;
    // The engine itself removes entries.
    cost.at_most("upgrade: reconciles of the catalog", cost.of("Catalog"), 1)?;
    cost.at_most("upgrade: reconciles of the agent", cost.of("AgentConfig"), 0)?;
    cost.at_most("upgrade: reads in KCP", cost.calls("kcp get"), 6)?;
    cost.at_most("upgrade: writes to KCP", cost.calls("kcp patch"), 5)?;
    cost.at_most("upgrade: reads in the runtime", cost.calls("runtime1 get"), 18)?;
    cost.at_most("upgrade: writes to the runtime", cost.calls("runtime1 patch"), 7)?;
    cost.at_most("upgrade: discovery", cost.calls("runtime1 discovery"), 0)?;

    bench.begin().await?;
    let deployments: Api<Deployment> = Api::namespaced(runtime, "lighthouse-system");
    let old = deployments.get("lighthouse-keeper").await?.uid();
    deployments.delete("lighthouse-keeper", &DeleteParams::background()).await?;
    wait::until("the Deployment to be back, and available", SOON, || async {
        let deployment = deployments.get("lighthouse-keeper").await?;
        let available = deployment.status.as_ref().and_then(|s| s.available_replicas) == Some(1);
        Ok((deployment.uid() != old && available).then_some(()))
    })
    .await?;
    bench.ready("1.2.0").await?;
    let cost = bench.cost().await?;
    cost.at_most("repair: reconciles of the Manifest", cost.of("Manifest"), 4)?;
    cost.at_most("repair: writes to the runtime", cost.calls("runtime1 patch"), 4)?;
    simulated.end().await;
    Ok(())
}
