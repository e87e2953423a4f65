//! The story on simulated clusters, and with unresponsive servers.

mod faults;

use std::time::Duration;

use anyhow::Result;
use tidewatch_demo::{fleet, http, report::Recorder, simulated::Simulated, story::World, wait};

const SOON: Duration = Duration::from_mins(1);

#[tokio::test(flavor = "multi_thread")]
async fn installs_repairs_upgrades_and_removes_on_simulated_clusters() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let recorder = Recorder::default();
    let mut simulated = Simulated::start(folder.path()).await?;
    let world = World::start(simulated.stage()?, &mut simulated, &recorder).await?;
    world.run(&recorder).await?;
    let lines = recorder.lines();
    let caused: Vec<u64> = lines.iter().filter_map(|line| line.seq).collect();
    assert_eq!(caused.len(), 8, "each step of the module's way names the event that caused it");
    assert!(caused.iter().all(|seq| *seq > 0));

    for agent in &world.agents {
        wait::until("the agent to have nothing unacknowledged", SOON, || async {
            Ok(fleet::connected(&http::json(&format!("{agent}/status")).await?).then_some(()))
        })
        .await?;
        // The agent's permissions suffice for its canary.
        wait::until("a canary to come back", SOON, || async {
            let metrics = http::text(&format!("{agent}/metrics")).await?;
            let back = metrics.lines().find_map(|l| l.strip_prefix("tidewatch_agent_canary_seconds_count "));
            Ok(back.is_some_and(|count| count != "0").then_some(()))
        })
        .await?;
    }
    simulated.end().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_cluster_has_the_same_story_without_an_agent() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let recorder = Recorder::default();
    let mut simulated = Simulated::single(folder.path()).await?;
    let (client, registry) = simulated.single_stage()?;
    let world = World::start_single(client, &registry, &mut simulated, &recorder).await?;
    world.run(&recorder).await?;
    let caused: Vec<u64> = recorder.lines().iter().filter_map(|line| line.seq).collect();
    assert_eq!(
        caused.len(),
        3,
        "repair and readiness are caused by events; edits of the Kyma are seen directly"
    );
    let metrics = http::text(&format!("{}/metrics", world.receiver)).await?;
    assert!(metrics.contains("tidewatch_agent_events_sent_total"), "the receiver shows its agent's metrics");
    simulated.end().await;
    Ok(())
}
