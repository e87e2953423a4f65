//! Crashes the engine at seeded writes and expects the result of a life without crashes.
//!
//! Only the API servers outlive an engine. `make crashes` plays 200 seeds (`TIDEWATCH_CRASHES`) from
//! `TIDEWATCH_SEED` on.

mod crashing;

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use crashing::{ALL, Cuts, LEFT_BEFORE, Life, Part, Plan, World};
use futures::{StreamExt, stream};

const SEEDS: u64 = 6;
const TOGETHER: usize = 3;

fn setting(name: &str, usual: u64) -> Result<u64> {
    match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name} is not a number")),
        Err(_) => Ok(usual),
    }
}

#[test]
fn crashes_at_any_point_reach_the_same_end() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let (seeds, first) = (setting("TIDEWATCH_CRASHES", SEEDS)?, setting("TIDEWATCH_SEED", 1)?);
        let world = Arc::new(World::start().await?);
        let whole = Life::new(&world, "whole", Plan::default()).await?.live(&ALL, None).await?;
        ensure!(whole.crashes == 0 && whole.writes > 20, "{} writes", whole.writes);
        let whole = Arc::new(whole);
        let mut all = stream::iter(first..first + seeds)
            .map(|seed| {
                let (world, whole) = (Arc::clone(&world), Arc::clone(&whole));
                async move {
                    let plan = Plan::of(seed, whole.writes);
                    let context = format!("seed {seed}, {plan:?}");
                    let life = Life::new(&world, &format!("seed-{seed}"), plan).await?;
                    life.live(&ALL, Some(&whole)).await.context(context)
                }
            })
            .buffer_unordered(TOGETHER);
        let (mut played, mut crashes, mut without) = (0_u64, 0, 0);
        while let Some(lived) = all.next().await {
            let lived = lived?;
            played += 1;
            crashes += lived.crashes;
            without += u64::from(lived.crashes == 0);
        }
        println!(
            "{played} lives of about {} writes, {crashes} crashes, {without} lives without one",
            whole.writes
        );
        ensure!(without * 4 <= played, "too few crashes");
        Ok(())
    })
}

/// Each deletion step looks for other objects: no step may be inferred from a later one.
#[test]
fn a_deletion_continues_after_a_crash_at_any_write() -> Result<()> {
    const LIFE: [Part; 2] = [Part::Created, Part::Deleted];
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let world = Arc::new(World::start().await?);
        let whole = Life::new(&world, "whole", Plan::default()).await?.live(&LIFE, None).await?;
        let writes = whole.last_writes;
        ensure!(whole.crashes == 0 && writes > 15, "{writes} writes");
        for name in LEFT_BEFORE {
            ensure!(whole.has(0, name) && !whole.has(1, name), "{name} goes with the Kyma");
        }
        let whole = Arc::new(whole);
        let mut all = stream::iter((1..=writes).flat_map(|write| [(write, true), (write, false)]))
            .map(|(write, done)| {
                let (world, whole) = (Arc::clone(&world), Arc::clone(&whole));
                async move {
                    let life =
                        Life::new(&world, &format!("{write}-{done}"), Plan::in_deletion(write, done)).await?;
                    let context = format!("write {write} of the deletion, done: {done}");
                    Ok::<_, anyhow::Error>(life.live(&LIFE, Some(&whole)).await.context(context)?.crashes)
                }
            })
            .buffer_unordered(TOGETHER);
        let mut crashes = 0;
        while let Some(crashed) = all.next().await {
            crashes += crashed?;
        }
        println!("{writes} writes, {crashes} crashes");
        ensure!(crashes + 4 >= 2 * writes, "too few crashes: {crashes} at {writes} writes");
        Ok(())
    })
}

#[test]
fn a_cut_blocks_the_engines_calls_until_removed() {
    use tidewatch_fake_apiserver::{Call, Fault, Faults};
    let cuts = Cuts::default();
    let call = |user: &'static str, method: &'static str| {
        let call =
            Call { cluster: "kcp-a", method, path: "/", verb: "patch", is_watch: false, user, agent: "" };
        cuts.fault(&call)
    };
    cuts.arm("a", Some((2, true)));
    assert_eq!(call("engine", "GET"), Fault::None);
    assert_eq!(call("engine", "PATCH"), Fault::None);
    assert_eq!(call("test", "PATCH"), Fault::None, "only the engine's count");
    assert!(!cuts.is_cut("a"));
    assert_eq!(call("engine", "DELETE"), Fault::Hang, "done, and nobody hears of it");
    assert!(cuts.is_cut("a"));
    assert_eq!(call("engine", "GET"), Fault::Lost);
    cuts.arm("a", None);
    assert_eq!(call("engine", "PATCH"), Fault::None);
    assert_eq!(cuts.writes("a"), 3);
}
