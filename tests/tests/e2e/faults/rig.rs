//! A runtime with the module `buoys`, its receiver and its agent, and a proxy on each of the agent's ways out.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use serde_json::Value;
use tidewatch_api::State;
use tidewatch_tests::{
    ControlPlane, buoys,
    buoys::{Buoys, Change, Dice},
    env,
    faulty::Proxy,
    fleet::{self, Agent, Member, Receiver},
    observed::{self, metric},
    spare, wait,
};
use tokio::task::JoinSet;

/// For everything to be as asked again, when nothing is broken any more.
pub(super) const SOON: Duration = Duration::from_mins(1);
/// For a fault that nobody mends to be noticed, and for what happened during it to be reconciled.
pub(super) const NOTICED: Duration = Duration::from_secs(90);

/// How many rounds of faults, instead of those that `make test` takes the time for.
pub(super) fn rounds(usual: u64) -> Result<u64> {
    match std::env::var("FAULT_ROUNDS") {
        Ok(text) => text.parse().context("FAULT_ROUNDS is not a number"),
        Err(_) => Ok(usual),
    }
}

/// The seed of this run; another one with `FAULT_SEED`.
pub(super) fn seed() -> Result<u64> {
    match std::env::var("FAULT_SEED") {
        Ok(text) => text.parse().context("FAULT_SEED is not a number"),
        Err(_) => Ok(20),
    }
}

pub(super) struct Rig {
    pub(super) receiver: Receiver,
    pub(super) agent: Agent,
    /// Between agent and receiver.
    pub(super) events: Proxy,
    /// Between agent and the runtime's API server.
    pub(super) api: Proxy,
    pub(super) buoys: Buoys,
    pub(super) dice: Dice,
    id: String,
}

/// Changes that go on until it is dropped or [`Stream::end`]s. Those that fail are tries like the others.
pub(super) struct Stream {
    tries: Arc<AtomicU64>,
    tasks: JoinSet<()>,
}

impl Rig {
    /// In a runtime that nobody else has registered, and a namespace of KCP by that name. The module is enabled, and
    /// all is at rest.
    pub(super) async fn start(kcp: &ControlPlane, runtime: &ControlPlane, name: &str) -> Result<Self> {
        Self::start_with(kcp, runtime, name, &[]).await
    }

    /// The same, with further arguments for the receiver.
    pub(super) async fn start_with(
        kcp: &ControlPlane,
        runtime: &ControlPlane,
        name: &str,
        arguments: &[&str],
    ) -> Result<Self> {
        let env = env::shared().await?;
        let (namespace, id) = (format!("kcp-{name}"), format!("runtime-{name}"));
        spare::take_over(runtime).await?;
        let control = kcp.client()?;
        fleet::prepare_kcp(&control, &namespace).await?;
        buoys::release(&control, &namespace, &env.registry.of(&namespace)).await?;
        // An API server that is killed is away for some seconds, for more of them on a machine that is busy. What a receiver does
        // that loses its Lease is another test's.
        let all = arguments.iter().copied().chain(["--lease=180"]);
        let more = |_: &_| Ok(all.map(str::to_owned).collect());
        let receiver =
            Receiver::start_with(&env.harness, kcp, &namespace, &env.registry.of(&namespace), more).await?;
        let member = Member { cluster: runtime, kyma: name, id: &id };
        fleet::register(&control, &namespace, &member).await?;
        fleet::kyma_in_state(&control, &namespace, name, State::Ready).await?;
        let (events, api) = (Proxy::before(&receiver.url).await?, Proxy::before(runtime.url()).await?);
        let identity = receiver.identity(&env.harness, &id, &member.domain())?;
        let agent = Agent::start_through(
            &events.url(),
            &api.url(),
            "v3",
            &env.harness,
            &receiver,
            &member,
            identity,
            fleet::watches(),
        )
        .await?;
        let (buoys, dice) = (Buoys::of(runtime.client()?), Dice::new(seed()?));
        let mut rig = Self { receiver, agent, events, api, buoys, dice, id };
        rig.agent.connected().await?;
        rig.buoys.make(Change::Enable(false)).await?;
        rig.proven(Timestamp::now(), SOON).await.context("before any fault")?;
        rig.healthy()?;
        rig.dice = Dice::new(seed()?);
        Ok(rig)
    }

    /// Begins to change things.
    pub(super) fn changes(&mut self) -> Stream {
        let (buoys, mut dice) = (self.buoys.clone(), Dice::new(self.dice.below(u64::MAX)));
        let (tries, mut tasks) = (Arc::new(AtomicU64::new(0)), JoinSet::new());
        let counter = Arc::clone(&tries);
        tasks.spawn(async move {
            loop {
                // While an API server is down, nothing can be changed, and what was asked for may have happened or not.
                let _tried = tokio::time::timeout(SOON, buoys.make(dice.change())).await;
                counter.fetch_add(1, Ordering::Relaxed);
                wait::pause().await;
            }
        });
        Stream { tries, tasks }
    }

    /// One more change, with an effect, and then the proof: everything becomes as asked, by a reconcile that began after
    /// that change, and the agent has nothing left that is not acknowledged.
    pub(super) async fn last_change_is_reconciled(&mut self, within: Duration) -> Result<()> {
        let (change, before) = self.last_change().await?;
        self.proven(before, within).await.with_context(|| format!("the last change was {change:?}"))
    }

    /// One more change, with an effect, and a moment before it.
    pub(super) async fn last_change(&mut self) -> Result<(Change, Timestamp)> {
        let before = Timestamp::now();
        Ok((self.buoys.make_last(&mut self.dice).await?, before))
    }

    /// What is promised of a change after that moment.
    pub(super) async fn proven(&self, before: Timestamp, within: Duration) -> Result<()> {
        let deadline = tokio::time::Instant::now() + within;
        self.buoys.as_asked(within).await?;
        let left = deadline.saturating_duration_since(tokio::time::Instant::now());
        wait::until(&format!("a reconcile that began after {before}"), left, || self.reconciled(before))
            .await?;
        self.agent.connected().await?;
        fleet::settled(&self.receiver).await?;
        self.agent.connected().await?;
        // Nothing of what came to rest has changed it again.
        self.buoys.as_asked(SOON).await
    }

    async fn reconciled(&self, since: Timestamp) -> Result<Option<()>> {
        let page = self.receiver.runtime(&self.id).await?;
        let began = |record: &Value| {
            let finished: Timestamp = record["finishedAt"].as_str()?.parse().ok()?;
            let worked = Duration::try_from_secs_f64(record["workSeconds"].as_f64()?).ok()?;
            finished.checked_sub(worked).ok()
        };
        let records = page["reconciles"].as_array().context("the page has no reconciles")?;
        let ours = |record: &&Value| {
            record["outcome"] != "failed"
                && record["key"]
                    .as_str()
                    .is_some_and(|key| key.starts_with("Manifest/") || key.starts_with("Kyma/"))
        };
        Ok(records.iter().filter(ours).filter_map(began).any(|began| began >= since).then_some(()))
    }

    /// The agent's epoch, and the number of the last change it has seen.
    pub(super) async fn epoch(&self) -> Result<(String, u64)> {
        let status = self.agent.status().await?;
        let epoch = status["epoch"].as_str().context("no epoch")?.to_owned();
        Ok((epoch, status["lastObservedSeq"].as_u64().context("no number")?))
    }

    /// Connections to the receiver that this agent has made.
    pub(super) async fn connections(&self) -> Result<u64> {
        metric(&self.agent.admin, "tidewatch_agent_connections_total").await
    }

    /// Both programs run, and nothing in them has panicked.
    pub(super) fn healthy(&self) -> Result<()> {
        for process in [&self.receiver.process, &self.agent.process] {
            fleet::alive(process)?;
            observed::no_panic(process)?;
        }
        Ok(())
    }

    /// What tells most about a failure.
    pub(super) fn logs(&self) -> String {
        let log = |process: &tidewatch_tests::Process| {
            format!("--- {}\n{}", process.log().display(), process.log_tail(25))
        };
        format!("{}\n{}", log(&self.receiver.process), log(&self.agent.process))
    }
}

impl Stream {
    /// Waits until so many more changes were tried.
    pub(super) async fn more(&self, count: u64) -> Result<()> {
        let until = self.tries.load(Ordering::Relaxed) + count;
        wait::until(&format!("{count} more changes"), SOON, || async {
            Ok((self.tries.load(Ordering::Relaxed) >= until).then_some(()))
        })
        .await
    }

    /// Ends it; the last change has happened or has not.
    pub(super) async fn end(mut self) -> Result<()> {
        self.tasks.shutdown().await;
        ensure!(self.tries.load(Ordering::Relaxed) > 0, "nothing was changed");
        Ok(())
    }
}
