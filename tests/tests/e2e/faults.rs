//! Real faults: processes are killed, connections cut, delayed or silenced, and no change is lost.
//!
//! `FAULT_SEED` repeats a run, `FAULT_ROUNDS` extends it: `FAULT_ROUNDS=50 make e2e T=faults`.

mod connections;
mod hibernation;
mod rig;
mod watches;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tidewatch_real_only::real_only;
use tidewatch_tests::{
    ControlPlane, Options, User, env,
    faulty::{Blow, Door},
    fleet::AGENT_USER,
};
use tokio::time::Instant;

use rig::{NOTICED, Rig, SOON, rounds, seed};

/// An exclusive runtime.
async fn runtime(name: &str) -> Result<ControlPlane> {
    let env = env::shared().await?;
    // No receiver user: a new API server learns roles late, which would delay requests.
    let users = vec![User { name: AGENT_USER.to_owned(), groups: Vec::new() }];
    // Boxed: its future is large.
    Box::pin(ControlPlane::start(&env.harness, env.etcd(), Options { users, ..Options::named(name) })).await
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Receiver,
    Agent,
    Both,
}

/// Changes, kills during changes, continues, and makes a last change before or after the restart.
async fn kill(rig: &mut Rig, victim: Victim) -> Result<()> {
    let (epoch, seen) = rig.epoch().await?;
    let changes = rig.changes();
    let (before, meanwhile) = (1 + rig.dice.below(12), 1 + rig.dice.below(6));
    changes.more(before).await?;
    rig.healthy()?;
    if victim != Victim::Agent {
        rig.receiver.process.kill().await?;
    }
    if victim != Victim::Receiver {
        rig.agent.process.kill().await?;
    }
    changes.more(meanwhile).await?;
    // The last change is during or after the downtime.
    let goes_on = rig.dice.below(2) == 1;
    let (changes, last) = if goes_on {
        (Some(changes), None)
    } else {
        changes.end().await?;
        (None, Some(rig.last_change().await?.1))
    };
    if victim != Victim::Agent {
        rig.receiver.start_again().await?;
    }
    if victim != Victim::Receiver {
        rig.agent.start_again().await?;
    }
    if let Some(changes) = changes {
        changes.more(1 + rig.dice.below(4)).await?;
        changes.end().await?;
    }
    match last {
        Some(last) => rig.proven(last, SOON).await?,
        None => rig.last_change_is_reconciled(SOON).await?,
    }
    let (epoch_now, seen_now) = rig.epoch().await?;
    if victim == Victim::Receiver {
        ensure!(epoch_now == epoch && seen_now > seen, "{epoch} {seen} became {epoch_now} {seen_now}");
    } else {
        ensure!(epoch_now != epoch, "another run is another epoch");
    }
    rig.healthy()
}

/// Kills receiver and agent, then breaks their connection.
async fn programs_and_their_way() -> Result<()> {
    let env = env::shared().await?;
    let runtime = runtime("squall").await?;
    let mut rig = Rig::start(&env.kcp, &runtime, "squall").await?;
    for round in 0..rounds(11)? {
        let victim = match round % 11 {
            10 => Victim::Both,
            n if n % 2 == 0 => Victim::Receiver,
            _ => Victim::Agent,
        };
        kill(&mut rig, victim).await.with_context(|| format!("round {round}: {victim:?}\n{}", rig.logs()))?;
    }
    cut_and_slow(&mut rig).await.with_context(|| format!("a cut or slow way\n{}", rig.logs()))?;
    swallowed(&mut rig, Blow::HalfOpen).await
}

/// Drops, refuses and then delays connections during changes.
async fn cut_and_slow(rig: &mut Rig) -> Result<()> {
    for round in 0..rounds(4)? {
        if round % 4 == 3 {
            rig.events.set_delay(Duration::from_millis(300));
        }
        let changes = rig.changes();
        changes.more(1 + rig.dice.below(8)).await?;
        rig.events.strike(Blow::Drop);
        changes.more(1 + rig.dice.below(4)).await?;
        if rig.dice.below(2) == 0 {
            rig.events.set_door(Door::Refused);
            rig.events.strike(Blow::Drop);
            changes.more(1 + rig.dice.below(4)).await?;
            rig.events.set_door(Door::Open);
        }
        changes.end().await?;
        rig.last_change_is_reconciled(SOON).await.with_context(|| format!("round {round}"))?;
        rig.events.set_delay(Duration::ZERO);
    }
    rig.healthy()
}

/// Silently loses the connection's data, and with it a change.
async fn swallowed(rig: &mut Rig, blow: Blow) -> Result<()> {
    let (connections, lost) = (rig.connections().await?, rig.events.lost());
    rig.events.strike(blow);
    let begun = Instant::now();
    rig.last_change_is_reconciled(NOTICED).await.with_context(|| format!("{blow:?}\n{}", rig.logs()))?;
    let took = begun.elapsed();
    ensure!(took < NOTICED, "{blow:?}: it took {took:?}");
    ensure!(rig.connections().await? > connections, "{blow:?}: the agent has not connected again");
    if blow != Blow::HalfOpen {
        ensure!(rig.events.lost() > lost, "{blow:?}: nothing was lost");
    }
    rig.healthy()
}

/// Kills an API server during changes. The last change is during or after the downtime.
async fn kill_api(rig: &mut Rig, cluster: &mut ControlPlane, is_the_runtime: bool) -> Result<()> {
    let env = env::shared().await?;
    let epoch = rig.epoch().await?.0;
    let changes = rig.changes();
    changes.more(1 + rig.dice.below(8)).await?;
    cluster.kill_api().await?;
    changes.more(1 + rig.dice.below(4)).await?;
    // The runtime accepts no changes during its own downtime.
    if is_the_runtime {
        cluster.start_api(&env.harness, env.etcd()).await?;
        changes.more(1 + rig.dice.below(4)).await?;
        changes.end().await?;
        rig.last_change_is_reconciled(SOON).await?;
    } else {
        changes.end().await?;
        let (_, before) = rig.last_change().await?;
        cluster.start_api(&env.harness, env.etcd()).await?;
        rig.proven(before, SOON).await?;
    }
    ensure!(rig.epoch().await?.0 == epoch, "the agent was not started again");
    rig.healthy()
}

/// Kills the API servers: the runtime's, KCP's, and the runtime's while the agent is cut off.
async fn api_servers() -> Result<()> {
    let (mut kcp, mut runtime) = futures::future::try_join(runtime("gale-kcp"), runtime("gale")).await?;
    let mut rig = Rig::start(&kcp, &runtime, "gale").await?;
    for _ in 0..rounds(1)? {
        kill_api(&mut rig, &mut runtime, true)
            .await
            .with_context(|| format!("the runtime's API server\n{}", rig.logs()))?;
        kill_api(&mut rig, &mut kcp, false)
            .await
            .with_context(|| format!("KCP's API server\n{}", rig.logs()))?;
        expired(&mut rig, &mut runtime).await.with_context(|| format!("410\n{}", rig.logs()))?;
    }
    swallowed(&mut rig, Blow::SwallowRequests).await
}

/// The agent is cut off while its API server compacts the history of its watches.
async fn expired(rig: &mut Rig, runtime: &mut ControlPlane) -> Result<()> {
    let env = env::shared().await?;
    let seen = rig.buoys.version().await?;
    rig.api.set_door(Door::Refused);
    rig.api.strike(Blow::Drop);
    let (_, before) = rig.last_change().await?;
    runtime.kill_api().await?;
    runtime.start_api(&env.harness, env.etcd()).await?;
    ensure!(rig.buoys.is_expired(&seen).await?, "version {seen} is still known: this shows nothing");
    ensure!(!rig.buoys.differences().await?.is_empty(), "somebody else has told of it");
    rig.api.set_door(Door::Open);
    rig.proven(before, SOON).await
}

/// One test: it mostly waits, and several would block other tests.
#[real_only("API servers and etcd are killed as processes")]
#[tokio::test(flavor = "multi_thread")]
async fn killed_processes_and_broken_connections_lose_nothing() -> Result<()> {
    let (programs, servers) =
        futures::future::join(Box::pin(programs_and_their_way()), Box::pin(api_servers())).await;
    let seed = seed()?;
    programs.with_context(|| format!("receiver and agent, FAULT_SEED={seed}"))?;
    servers.with_context(|| format!("API servers, FAULT_SEED={seed}"))
}
