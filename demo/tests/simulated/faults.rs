use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
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
use tidewatch_engine::{EngineConfig, ReconcileLimits};
use tidewatch_fake_apiserver::{
    Fault,
    registry::Trouble,
    script::{Rule, RuleId, Script},
};

const LONG: Duration = Duration::from_mins(2);
/// A quarter of them is one.
const WORKERS: usize = 4;
/// Short, so that hanging calls cost little.
const DEADLINE: Duration = Duration::from_secs(2);

/// Message of a reconcile without capacity.
const CROWDED: &str = "as many reconciles as may wait for it do";
/// Message of a suspended runtime.
const SUSPENDED: &str = "is suspended until";
/// Message of a call without a response.
const ELAPSED: &str = "the cluster did not answer in time";

struct Troubled {
    simulated: Simulated,
    stage: Stage,
    script: Arc<Script>,
    receiver: String,
}

impl Troubled {
    async fn start(folder: &Path) -> Result<Self> {
        let script = Arc::new(Script::new(1));
        let faults = Arc::clone(&script) as _;
        let limits =
            ReconcileLimits { workers: WORKERS, call_deadline: DEADLINE, ..ReconcileLimits::default() };
        let engine = EngineConfig { limits, ..EngineConfig::default() };
        let mut simulated = Simulated::with(folder, faults).await?.tuned(engine);
        let stage = simulated.stage()?;
        let world = World::start(stage.clone(), &mut simulated, &Recorder::default()).await?;
        Ok(Self { simulated, stage, script, receiver: world.receiver })
    }

    fn fault(&self, clusters: &[&str], fault: Fault) -> RuleId {
        let clusters = clusters.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let users = vec![RECEIVER_USER.to_owned()];
        self.script.add(Rule { clusters: Some(Arc::new(clusters)), users, ..Rule::always(fault) })
    }

    fn runtime(&self, index: usize) -> &Client {
        &self.stage.runtimes[index].client
    }

    /// Enables the module.
    async fn wish(&self, index: usize) -> Result<()> {
        set_modules(self.runtime(index), &json!([{"name": "lighthouse"}])).await
    }

    /// Triggers reconciles until `is`.
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

    async fn says(&self, index: usize, what: &str) -> Result<bool> {
        let api: Api<Kyma> = Api::namespaced(self.stage.kcp.clone(), KCP_NAMESPACE);
        let status = api.get(RUNTIMES[index].0).await?.status;
        Ok(serde_json::to_string(&status)?.contains(what))
    }

    async fn reconciles(&self, index: usize) -> Result<Vec<Ended>> {
        let page = http::json(&format!("{}/runtimes/{}", self.receiver, RUNTIMES[index].1)).await?;
        let all = page["reconciles"].as_array().context("the page has no reconciles")?;
        Ok(all.iter().map(Ended::of).collect())
    }

    async fn has_ended(&self, index: usize, so: impl Fn(&Ended) -> bool) -> Result<bool> {
        Ok(self.reconciles(index).await?.iter().any(so))
    }

    async fn until_suspended(&self, count: u64) -> Result<()> {
        let line = format!("tidewatch_receiver_runtimes_suspended {count}");
        wait::until(&line, LONG, || async {
            let metrics = http::text(&format!("{}/metrics", self.receiver)).await?;
            Ok(metrics.lines().any(|l| l == line).then_some(()))
        })
        .await
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
}

/// A reconcile on its runtime's page.
struct Ended {
    outcome: String,
    message: String,
    seconds: f64,
    /// Key and time.
    of: String,
}

impl Ended {
    fn of(reconcile: &Value) -> Self {
        let text = |name: &str| reconcile[name].as_str().unwrap_or_default().to_owned();
        Self {
            outcome: text("outcome"),
            message: text("message"),
            seconds: reconcile["workSeconds"].as_f64().unwrap_or_default(),
            of: format!("{} {}", text("key"), text("finishedAt")),
        }
    }

    /// Not begun, or ended early, with this message.
    fn waits(&self, words: &str) -> bool {
        self.outcome == "waiting" && self.message.contains(words)
    }

    /// Failed by a call without a response, before the deadline.
    fn is_cut_short(&self) -> bool {
        self.outcome == "failed" && self.message.contains(ELAPSED) && self.seconds < DEADLINE.as_secs_f64()
    }
}

/// Triggers a reconcile.
async fn touch(kcp: &Client, kyma: &str) -> Result<()> {
    let api: Api<Kyma> = Api::namespaced(kcp.clone(), KCP_NAMESPACE);
    let label = format!("t-{}", jiff::Timestamp::now().as_nanosecond());
    let patch = Patch::Merge(json!({"metadata": {"labels": {"example.org/touched": label}}}));
    api.patch(kyma, &PatchParams::default(), &patch).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unresponsive_runtime_is_suspended_and_recovers() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let world = Troubled::start(folder.path()).await?;
    world.wish(0).await?;
    world.ready(0).await?;

    // Calls hang up to their deadline.
    let hang = world.fault(&["runtime1"], Fault::Lost);
    world.touching(&[0], "an error in the status", || world.says(0, "\"Error\"")).await?;
    let ending = world.fault(&["runtime1"], Fault::Drop);
    world.script.remove(hang);
    world.touching(&[0], "the runtime to be suspended", || world.says(0, SUSPENDED)).await?;
    world.until_suspended(1).await?;
    // Only the engine's retries are refused.
    world.wish(1).await?;
    world.ready(1).await?;
    wait::until("a reconcile to be suspended", LONG, || async {
        Ok(world.has_ended(0, |ended| ended.waits(SUSPENDED)).await?.then_some(()))
    })
    .await?;
    world.script.remove(ending);
    set_modules(world.runtime(0), &json!([{"name": "lighthouse", "channel": "fast"}])).await?;
    let remote: Api<Kyma> = Api::namespaced(world.runtime(0).clone(), RUNTIME_NAMESPACE);
    let newer = |kyma: &Kyma| {
        kyma.module_status("lighthouse").is_some_and(|m| m.version == "1.1.0" && m.state == State::Ready)
    };
    fleet::kyma_where(remote, RUNTIME_KYMA_NAME, "version 1.1.0 to be Ready", newer).await?;
    world.until_suspended(0).await?;
    world.simulated.end().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn several_hanging_runtimes_share_limited_capacity() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let world = Troubled::start(folder.path()).await?;
    for index in [0, 1] {
        world.wish(index).await?;
        world.ready(index).await?;
    }
    let hang = world.fault(&["runtime1", "runtime2"], Fault::Lost);
    // Pages only have the last reconciles.
    let (crowded, cut) = (Cell::new(false), Cell::new(false));
    let seen = || async {
        for index in [0, 1] {
            for ended in world.reconciles(index).await? {
                crowded.set(crowded.get() || ended.waits(CROWDED));
                cut.set(cut.get() || ended.is_cut_short());
            }
        }
        Ok(crowded.get() && cut.get())
    };
    let both = "a reconcile to find no place, and one to be cut short";
    let result = world.touching(&[0, 1], both, seen).await;
    result.with_context(|| format!("crowded: {}, cut short: {}", crowded.get(), cut.get()))?;
    world.script.remove(hang);
    for index in [0, 1] {
        set_modules(world.runtime(index), &json!([])).await?;
        let namespaces: Api<Namespace> = Api::all(world.runtime(index).clone());
        wait::until("the module to go", LONG, || async {
            Ok(namespaces.get_opt("lighthouse-system").await?.is_none().then_some(()))
        })
        .await?;
    }
    world.simulated.end().await;
    Ok(())
}

/// Without it, the reconcile hangs for this test's whole timeout.
#[tokio::test(flavor = "multi_thread")]
async fn calls_to_a_hanging_kcp_end_at_their_deadline() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let world = Troubled::start(folder.path()).await?;
    world.wish(0).await?;
    world.ready(0).await?;

    let hang = world.fault(&["kcp"], Fault::Lost);
    world.wish(1).await?;
    let lost = |ended: &Ended| ended.outcome == "unreported" && ended.message.contains("request timed out");
    wait::until("a reconcile to give up", LONG, || async {
        Ok(world.has_ended(1, lost).await?.then_some(()))
    })
    .await?;
    world.script.remove(hang);
    world.ready(1).await?;
    world.simulated.end().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_throttling_registry_is_not_asked_for_a_while() -> Result<()> {
    const REFUSED: &str = "cannot be read";
    let folder = tempfile::tempdir()?;
    let world = Troubled::start(folder.path()).await?;
    let busy = Trouble { refuse: Some(429), retry_after: Some(3), ..Trouble::default() };
    world.simulated.registry().set_trouble(busy);
    for index in [0, 1] {
        world.wish(index).await?;
        wait::until("the registry's refusal to be told", LONG, || async {
            Ok(world.says(index, REFUSED).await?.then_some(()))
        })
        .await?;
    }
    // Two may share one refusal.
    let told = RefCell::new(BTreeSet::new());
    let far_more = || async {
        for index in [0, 1] {
            let ended = world.reconciles(index).await?;
            told.borrow_mut().extend(ended.into_iter().filter(|e| e.message.contains(REFUSED)).map(|e| e.of));
        }
        Ok(told.borrow().len() > 2 * world.simulated.registry().refused())
    };
    world.touching(&[0, 1], "a refusal to be told of without a request", far_more).await?;
    assert!(world.simulated.registry().refused() > 0);
    world.simulated.registry().set_trouble(Trouble::default());
    for index in [0, 1] {
        world.ready(index).await?;
    }
    world.simulated.end().await;
    Ok(())
}
