//! A runtime with `buoys`, receiver, agent, and a proxy on each of the agent's connections.

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
    by_hand::{self, Settings},
    env,
    faulty::Proxy,
    fleet::{self, Agent, Member, Receiver},
    observed::{self, metric},
    spare, wait,
};
use tokio::task::JoinSet;

/// Timeout of convergence without faults.
pub(super) const SOON: Duration = Duration::from_mins(1);
/// Timeout to notice a permanent fault and reconcile.
pub(super) const NOTICED: Duration = Duration::from_secs(90);

/// Number of rounds; `FAULT_ROUNDS` overrides it.
pub(super) fn rounds(usual: u64) -> Result<u64> {
    match std::env::var("FAULT_ROUNDS") {
        Ok(text) => text.parse().context("FAULT_ROUNDS is not a number"),
        Err(_) => Ok(usual),
    }
}

/// Seed of the run; `FAULT_SEED` overrides it.
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
    /// Between agent and API server.
    pub(super) api: Proxy,
    pub(super) buoys: Buoys,
    pub(super) dice: Dice,
    id: String,
}

/// A killed API server is away for seconds, so the lease is long. Other tests cover its loss.
const LEASE: &str = "--lease=180";

/// Settings of an agent that is configured by hand.
pub(super) fn by_hand<'a>(receiver: &'a str, api: &'a str) -> Settings<'a> {
    Settings { protocol: "v3", receiver, api, watches: by_hand::watches(), follows_engine: true }
}

/// Prepares an exclusive namespace in KCP with the module, and returns it.
async fn prepare(kcp: &ControlPlane, runtime: &ControlPlane, name: &str) -> Result<String> {
    let (namespace, control) = (format!("kcp-{name}"), kcp.client()?);
    spare::take_over(runtime).await?;
    fleet::prepare_kcp(&control, &namespace).await?;
    buoys::release(&control, &namespace, &env::shared().await?.registry.of(&namespace)).await?;
    Ok(namespace)
}

/// Continuous changes until dropped or [`Stream::end`]. Failed changes count as attempts.
pub(super) struct Stream {
    tries: Arc<AtomicU64>,
    tasks: JoinSet<()>,
}

impl Rig {
    /// Starts in an exclusive runtime and namespace; waits for the enabled module to rest.
    pub(super) async fn start(kcp: &ControlPlane, runtime: &ControlPlane, name: &str) -> Result<Self> {
        Self::start_with(kcp, runtime, name, &[]).await
    }

    /// Starts with further receiver arguments.
    pub(super) async fn start_with(
        kcp: &ControlPlane,
        runtime: &ControlPlane,
        name: &str,
        arguments: &[&str],
    ) -> Result<Self> {
        let env = env::shared().await?;
        let namespace = prepare(kcp, runtime, name).await?;
        let more = arguments.iter().copied().chain([LEASE]).map(str::to_owned).collect();
        let modules = env.registry.of(&namespace);
        let receiver = Receiver::start_with(&env.harness, kcp, &namespace, &modules, more).await?;
        Self::of(kcp, runtime, name, receiver, async |receiver, member, to_receiver, to_api| {
            Agent::start_through(to_receiver, to_api, &env.harness, receiver, member).await
        })
        .await
    }

    /// Starts with certificates in files and an agent that is configured by hand.
    pub(super) async fn start_with_files(
        kcp: &ControlPlane,
        runtime: &ControlPlane,
        name: &str,
    ) -> Result<Self> {
        let env = env::shared().await?;
        let namespace = prepare(kcp, runtime, name).await?;
        let modules = env.registry.of(&namespace);
        let more = |_: &_| Ok(vec![LEASE.to_owned()]);
        let receiver = by_hand::receiver(&env.harness, kcp, &namespace, &modules, more).await?;
        Self::of(kcp, runtime, name, receiver, async |receiver, member, to_receiver, to_api| {
            by_hand(to_receiver, to_api).start(&env.harness, receiver, member).await
        })
        .await
    }

    async fn of(
        kcp: &ControlPlane,
        runtime: &ControlPlane,
        name: &str,
        receiver: Receiver,
        agent: impl AsyncFnOnce(&Receiver, &Member<'_>, &str, &str) -> Result<Agent>,
    ) -> Result<Self> {
        let (control, id) = (kcp.client()?, format!("runtime-{name}"));
        let member = Member { cluster: runtime, kyma: name, id: &id };
        fleet::register(&control, &receiver.namespace, &member).await?;
        fleet::kyma_in_state(&control, &receiver.namespace, name, State::Ready).await?;
        let (events, api) = (Proxy::before(&receiver.url).await?, Proxy::before(runtime.url()).await?);
        let agent = agent(&receiver, &member, &events.url(), &api.url()).await?;
        let (buoys, dice) = (Buoys::of(runtime.client()?), Dice::new(seed()?));
        let mut rig = Self { receiver, agent, events, api, buoys, dice, id };
        rig.agent.connected().await?;
        rig.buoys.make(Change::Enable(false)).await?;
        rig.proven(Timestamp::now(), SOON).await.context("before any fault")?;
        rig.healthy()?;
        rig.dice = Dice::new(seed()?);
        Ok(rig)
    }

    pub(super) fn changes(&mut self) -> Stream {
        let (buoys, mut dice) = (self.buoys.clone(), Dice::new(self.dice.below(u64::MAX)));
        let (tries, mut tasks) = (Arc::new(AtomicU64::new(0)), JoinSet::new());
        let counter = Arc::clone(&tries);
        tasks.spawn(async move {
            loop {
                // The outcome of a change is unknown while an API server is down.
                let _tried = tokio::time::timeout(SOON, buoys.make(dice.change())).await;
                counter.fetch_add(1, Ordering::Relaxed);
                wait::pause().await;
            }
        });
        Stream { tries, tasks }
    }

    /// Makes an effective last change and waits for proof: a later reconcile, the requested state, and no
    /// unacknowledged events.
    pub(super) async fn last_change_is_reconciled(&mut self, within: Duration) -> Result<()> {
        let (change, before) = self.last_change().await?;
        self.proven(before, within).await.with_context(|| format!("the last change was {change:?}"))
    }

    /// Makes an effective change and returns a time before it.
    pub(super) async fn last_change(&mut self) -> Result<(Change, Timestamp)> {
        let before = Timestamp::now();
        Ok((self.buoys.make_last(&mut self.dice).await?, before))
    }

    /// Waits for the reconcile of a change after that time.
    pub(super) async fn proven(&self, before: Timestamp, within: Duration) -> Result<()> {
        let deadline = tokio::time::Instant::now() + within;
        self.buoys.as_asked(within).await?;
        let left = deadline.saturating_duration_since(tokio::time::Instant::now());
        wait::until(&format!("a reconcile that began after {before}"), left, || self.reconciled(before))
            .await?;
        self.agent.connected().await?;
        fleet::settled(&self.receiver).await?;
        self.agent.connected().await?;
        // The state is stable.
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

    /// Returns the agent's epoch and last sequence number.
    pub(super) async fn epoch(&self) -> Result<(String, u64)> {
        let status = self.agent.status().await?;
        let epoch = status["epoch"].as_str().context("no epoch")?.to_owned();
        Ok((epoch, status["lastObservedSeq"].as_u64().context("no number")?))
    }

    /// Returns the agent's connections to the receiver.
    pub(super) async fn connections(&self) -> Result<u64> {
        metric(&self.agent.admin, "tidewatch_agent_connections_total").await
    }

    pub(super) fn healthy(&self) -> Result<()> {
        for process in [&self.receiver.process, &self.agent.process] {
            fleet::alive(process)?;
            observed::no_panic(process)?;
        }
        Ok(())
    }

    /// Returns the most useful logs.
    pub(super) fn logs(&self) -> String {
        let log = |process: &tidewatch_tests::Process| {
            format!("--- {}\n{}", process.log().display(), process.log_tail(25))
        };
        format!("{}\n{}", log(&self.receiver.process), log(&self.agent.process))
    }
}

impl Stream {
    /// Waits for this many further attempts.
    pub(super) async fn more(&self, count: u64) -> Result<()> {
        let until = self.tries.load(Ordering::Relaxed) + count;
        wait::until(&format!("{count} more changes"), SOON, || async {
            Ok((self.tries.load(Ordering::Relaxed) >= until).then_some(()))
        })
        .await
    }

    /// Ends the changes; the last one may or may not have happened.
    pub(super) async fn end(mut self) -> Result<()> {
        self.tasks.shutdown().await;
        ensure!(self.tries.load(Ordering::Relaxed) > 0, "nothing was changed");
        Ok(())
    }
}
