//! The demo's twin: the same story, checked instead of shown.

use anyhow::{Context, Result};
use tidewatch_tests::{env, http, promtool, report::Recorder, story::World};

#[tokio::test(flavor = "multi_thread")]
async fn installs_repairs_upgrades_and_removes_by_events_alone() -> Result<()> {
    let env = env::shared().await?;
    let recorder = Recorder::default();
    let world = World::start(env, &recorder).await?;
    if let Err(error) = world.run(&recorder).await {
        println!("{}", world.receiver.process.log_tail(60));
        for agent in &world.agents {
            println!("{}", agent.process.log_tail(30));
        }
        return Err(error);
    }
    let seqs: Vec<u64> = recorder.lines().iter().filter_map(|line| line.seq).collect();
    assert_eq!(seqs.len(), 8, "each step of the module's way names the event that caused it");
    assert!(seqs.iter().all(|seq| *seq > 0));

    // After the story there are series of nearly all metrics.
    let program = env.harness.promtool()?;
    if let Some(program) = &program {
        promtool::check_rules(program)?;
    }
    let agent = world.agents.first().context("there is no agent")?;
    for (admin, prefix) in [
        (&world.receiver.admin, "tidewatch_receiver_"),
        (&world.receiver.admin, "lifecycle_mgr_"),
        (&world.receiver.admin, "controller_runtime_"),
        (&world.receiver.admin, "workqueue_"),
        (&world.receiver.admin, "leader_election_"),
        (&world.receiver.admin, "rest_client_"),
        (&world.receiver.admin, "watcher_listener_"),
        (&agent.admin, "tidewatch_agent_"),
        (&agent.admin, "watcher_"),
    ] {
        let page = http::text(&format!("{admin}/metrics")).await?;
        if let Some(program) = &program {
            promtool::check(program, &page).with_context(|| prefix.to_owned())?;
        }
        promtool::documented(&page, prefix)?;
    }
    Ok(())
}
