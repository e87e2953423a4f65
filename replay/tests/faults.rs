//! Runs in which something does not answer are recorded, and replayed: what a reconcile was not begun for, cut short by or sent
//! away with is in the record, not decided anew.

mod common;

use std::{collections::BTreeSet, path::Path, sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, State,
    names::{KCP_NAMESPACE, RUNTIME_KYMA_NAME, RUNTIME_NAMESPACE},
};
use tidewatch_demo::{
    fleet, http,
    report::Recorder,
    simulated::{RECEIVER_USER, Simulated},
    story::{RUNTIMES, Stage, World, set_modules},
    wait,
};
use tidewatch_engine::{
    EngineConfig,
    journal::{Answer, Line},
};
use tidewatch_replay::{Decision, End, Item, Record, Replayed};
use tidewatch_simulator::{
    Fault,
    registry::Trouble,
    script::{Rule, RuleId, Script},
};

use common::{decisions, played};

const LONG: Duration = Duration::from_mins(2);
/// So that a quarter of them is one.
const WORKERS: usize = 4;
/// A call's, so that one that hangs costs the test little.
const DEADLINE: Duration = Duration::from_secs(2);

/// What is said of a reconcile for which there was no place.
const CROWDED: &str = "as many reconciles as may wait for it do";
/// And of one that was not begun because its runtime is parked.
const PARKED: &str = "left alone";

/// A world whose receiver writes a record, and what goes wrong in it.
struct Troubled {
    simulated: Simulated,
    stage: Stage,
    script: Arc<Script>,
    /// The receiver's admin URL.
    receiver: String,
}

impl Troubled {
    async fn start(folder: &Path) -> Result<Self> {
        let script = Arc::new(Script::new(1));
        let faults = Arc::clone(&script) as _;
        let engine = EngineConfig { workers: WORKERS, call_deadline: DEADLINE, ..EngineConfig::default() };
        let simulated = Simulated::with(folder, faults).await?;
        let mut simulated = simulated.recorded(Some(folder.join("record"))).tuned(engine);
        let stage = simulated.stage()?;
        let world = World::start(stage.clone(), &mut simulated, &Recorder::default()).await?;
        Ok(Self { simulated, stage, script, receiver: world.receiver })
    }

    /// What the receiver asks of these clusters goes wrong from now on.
    fn fault(&self, clusters: &[&str], fault: Fault) -> RuleId {
        let clusters = clusters.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let users = vec![RECEIVER_USER.to_owned()];
        self.script.add(Rule { clusters: Some(Arc::new(clusters)), users, ..Rule::always(fault) })
    }

    fn runtime(&self, index: usize) -> &Client {
        &self.stage.runtimes[index].client
    }

    /// Wishes for the module in a runtime.
    async fn wish(&self, index: usize) -> Result<()> {
        set_modules(self.runtime(index), &json!([{"name": "lighthouse"}])).await
    }

    /// Changes KCP's Kymas of these runtimes, so that they are reconciled, until something is so.
    async fn touching<F: Future<Output = Result<bool>>>(
        &self,
        indices: &[usize],
        what: &str,
        is: impl Fn() -> F,
    ) -> Result<()> {
        wait::until(what, LONG, || async {
            for index in indices {
                touch(&self.stage.kcp, RUNTIMES[*index].0).await?;
            }
            Ok(is().await?.then_some(()))
        })
        .await
    }

    /// Whether the Kyma of a runtime says something in KCP.
    async fn says(&self, index: usize, what: &str) -> Result<bool> {
        let api: Api<Kyma> = Api::namespaced(self.stage.kcp.clone(), KCP_NAMESPACE);
        let status = api.get(RUNTIMES[index].0).await?.status;
        Ok(serde_json::to_string(&status)?.contains(what))
    }

    /// Whether one of the last reconciles of a runtime was not begun, or given up, with these words.
    async fn waits(&self, index: usize, words: &str) -> Result<bool> {
        let page = http::json(&format!("{}/runtimes/{}", self.receiver, RUNTIMES[index].1)).await?;
        let ended = page["reconciles"].as_array().into_iter().flatten();
        let waits = |reconcile: &Value| {
            let message = reconcile["message"].as_str().unwrap_or_default();
            reconcile["outcome"] == "waiting" && message.contains(words)
        };
        Ok(ended.into_iter().any(waits))
    }

    async fn ready(&self, index: usize) -> Result<()> {
        let api: Api<Kyma> = Api::namespaced(self.stage.kcp.clone(), KCP_NAMESPACE);
        let is = |kyma: &Kyma| {
            let module = kyma.module_status("lighthouse");
            module.is_some_and(|module| module.state == State::Ready)
                && kyma.status.as_ref().is_some_and(|status| status.state == State::Ready)
        };
        fleet::kyma_where(api, RUNTIMES[index].0, "the module to be Ready", is).await.map(drop)
    }

    /// Ends it, and replays its record twice: nothing differs.
    async fn replayed(self, folder: &Path) -> Result<(Record, Replayed)> {
        self.simulated.end().await;
        let record = Record::read(&folder.join("record"), |_, _| {})?;
        assert_eq!(record.end, End::Closed);
        let (record, first) = played(record).await?;
        let told: Vec<_> = first.items.iter().filter(|item| !matches!(item, Item::Decision(_))).collect();
        assert_eq!(first.divergences, 0, "{told:#?}");
        let (record, second) = played(record).await?;
        assert_eq!(serde_json::to_string(&first)?, serde_json::to_string(&second)?);
        let begun = record.lines.iter().filter(|line| matches!(line.line, Line::Begin { .. })).count();
        assert_eq!(first.decisions, begun);
        Ok((record, first))
    }
}

/// How many reconciles were not begun, or given up, with these words.
fn waited(replayed: &Replayed, words: &str) -> usize {
    let waited = |decision: &&Decision| decision.outcome == "waiting" && decision.message.contains(words);
    decisions(replayed).filter(waited).count()
}

/// What reconciles have noted that begins like this.
fn noted<'a>(record: &'a Record, begins: &str) -> Vec<&'a Value> {
    let lines = record.lines.iter().filter_map(|line| match &line.line {
        Line::Value { what, value, .. } if what.starts_with(begins) => Some(value),
        _ => None,
    });
    lines.collect()
}

/// Changes KCP's Kyma, so that it is reconciled.
async fn touch(kcp: &Client, kyma: &str) -> Result<()> {
    let api: Api<Kyma> = Api::namespaced(kcp.clone(), KCP_NAMESPACE);
    let label = format!("t-{}", jiff::Timestamp::now().as_nanosecond());
    let patch = Patch::Merge(json!({"metadata": {"labels": {"example.org/touched": label}}}));
    api.patch(kyma, &PatchParams::default(), &patch).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_does_not_answer_is_parked_and_comes_back() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let world = Troubled::start(folder.path()).await?;
    world.wish(0).await?;
    world.ready(0).await?;

    // Calls hang for as long as they may, and then end without an answer.
    let hang = world.fault(&["runtime1"], Fault::Lost);
    world.touching(&[0], "an error in the status", || world.says(0, "\"Error\"")).await?;
    let ending = world.fault(&["runtime1"], Fault::Drop);
    world.script.remove(hang);
    world.touching(&[0], "the runtime to be left alone", || world.says(0, PARKED)).await?;
    // What the engine itself tries again is refused; what others do goes on, and the event of an agent is tried.
    world.wish(1).await?;
    world.ready(1).await?;
    wait::until("a reconcile to be parked", LONG, || async {
        Ok(world.waits(0, PARKED).await?.then_some(()))
    })
    .await?;
    world.script.remove(ending);
    set_modules(world.runtime(0), &json!([{"name": "lighthouse", "channel": "fast"}])).await?;
    let remote: Api<Kyma> = Api::namespaced(world.runtime(0).clone(), RUNTIME_NAMESPACE);
    let newer = |kyma: &Kyma| {
        kyma.module_status("lighthouse").is_some_and(|m| m.version == "1.1.0" && m.state == State::Ready)
    };
    fleet::kyma_where(remote, RUNTIME_KYMA_NAME, "version 1.1.0 to be Ready", newer).await?;

    let (record, replayed) = world.replayed(folder.path()).await?;
    ensure!(waited(&replayed, PARKED) > 0, "nothing was parked");
    ensure!(noted(&record, "parked").iter().any(|value| value["waitMs"].is_u64()), "and that is not noted");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn runtimes_that_hang_together_find_no_place_and_their_calls_are_cut_short() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let world = Troubled::start(folder.path()).await?;
    for index in [0, 1] {
        world.wish(index).await?;
        world.ready(index).await?;
    }
    let hang = world.fault(&["runtime1", "runtime2"], Fault::Lost);
    let crowded = || async { Ok(world.waits(0, CROWDED).await? || world.waits(1, CROWDED).await?) };
    world.touching(&[0, 1], "a reconcile to find no place", crowded).await?;
    world.script.remove(hang);
    for index in [0, 1] {
        set_modules(world.runtime(index), &json!([])).await?;
        let namespaces: Api<Namespace> = Api::all(world.runtime(index).clone());
        wait::until("the module to go", LONG, || async {
            Ok(namespaces.get_opt("lighthouse-system").await?.is_none().then_some(()))
        })
        .await?;
    }
    let (record, replayed) = world.replayed(folder.path()).await?;
    ensure!(waited(&replayed, CROWDED) > 0, "nothing was crowded");
    ensure!(!noted(&record, "cut short").is_empty(), "no call was cut short");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_that_does_not_answer_holds_a_call_no_longer_than_its_deadline() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let world = Troubled::start(folder.path()).await?;
    world.wish(0).await?;
    world.ready(0).await?;

    let hang = world.fault(&["kcp"], Fault::Lost);
    world.wish(1).await?;
    let timed_out = || async {
        let page = http::json(&format!("{}/runtimes/{}", world.receiver, RUNTIMES[1].1)).await?;
        let ended = page["reconciles"].as_array().into_iter().flatten();
        let lost = |reconcile: &Value| {
            let message = reconcile["message"].as_str().unwrap_or_default();
            reconcile["outcome"] == "lost" && message.contains("request timed out")
        };
        Ok(ended.into_iter().any(lost).then_some(()))
    };
    wait::until("a reconcile to give up", LONG, timed_out).await?;
    world.script.remove(hang);
    world.ready(1).await?;

    let (record, _) = world.replayed(folder.path()).await?;
    let failed = record.lines.iter().filter(|line| match &line.line {
        Line::Answer { answer: Answer::Failed { message }, .. } => message.contains("request timed out"),
        _ => false,
    });
    ensure!(failed.count() > 0, "no call to KCP is told to have failed");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_sends_everybody_away_is_left_alone() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let world = Troubled::start(folder.path()).await?;
    let busy = Trouble { refuse: Some(429), retry_after: Some(3), ..Trouble::default() };
    world.simulated.registry().set_trouble(busy);
    for index in [0, 1] {
        world.wish(index).await?;
        wait::until("the registry's refusal to be told", LONG, || async {
            Ok(world.says(index, "cannot be read").await?.then_some(()))
        })
        .await?;
    }
    world.simulated.registry().set_trouble(Trouble::default());
    for index in [0, 1] {
        world.ready(index).await?;
    }
    let refused = world.simulated.registry().refused();
    let (record, _) = world.replayed(folder.path()).await?;
    let told = noted(&record, "component");
    let refusals = told.iter().filter(|value| value["refused"].is_string()).count();
    ensure!(refused > 0 && refusals > refused, "{refusals} were told of {refused} refusals");
    Ok(())
}
