//! Compares the simulated API server with a real one, call by call.
//!
//! `TIDEWATCH_DIFFERENTIAL=N` sets the number of random sequences; `TIDEWATCH_SEED` the first seed.

#![allow(clippy::too_many_lines, reason = "a table of calls is read from top to bottom")]

/// Reports progress; visible with `--nocapture` or on failure.
macro_rules! say {
    ($($words:tt)*) => { println!($($words)*) };
}

mod access;
mod aggregation;
mod cases;
mod compare;
mod expired;
mod facts;
mod fixed;
mod forms;
mod known;
mod kubectl;
mod pair;
mod prepare;
mod protobuf;
mod random;

use std::{env, io::Write};

use anyhow::Result;
use futures::{StreamExt, TryStreamExt, stream};
use pair::Pair;

/// Random sequences of a normal run.
const FEW: u64 = 100;
/// Concurrent sequences: most of their time is waiting for a watch's end.
const AT_ONCE: usize = 48;
/// Random access reviews. Each creates roles, which cost more than its calls.
const REVIEWS: u64 = 200;
/// Sequences per progress report.
const TELL: u64 = 100;
/// A run of this size tries each cell of [`OFTEN`].
const MANY: u64 = 1_000;
const OFTEN: u64 = 100;
/// In smaller runs, each cell is tried once per this many sequences.
const SHARE: u64 = 20;
/// Stops after this many differences.
const ENOUGH: usize = 60;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_servers_answer_alike() -> Result<()> {
    let number =
        |name: &str, otherwise| env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    let (sequences, seed) = (number("TIDEWATCH_DIFFERENTIAL", FEW), number("TIDEWATCH_SEED", 1));
    let mut pair = Pair::start().await?;
    let mut differences = facts::compare(&pair).await?;
    differences.extend(fixed::run(&pair).await?);
    differences.extend(protobuf::run(&pair).await?);
    differences.extend(aggregation::run(&pair).await?);
    differences.extend(kubectl::compare(&pair).await?);
    differences.extend(cases::run(&pair).await?);
    differences.extend(known::run(&pair).await?);
    differences.extend(access::run(&pair, seed, sequences.min(REVIEWS)).await?);
    for line in &differences {
        say!("{line}");
    }
    let mut table = random::Table::default();
    let mut played =
        stream::iter(seed..seed + sequences).map(|seed| random::run(&pair, seed)).buffer_unordered(AT_ONCE);
    let mut done = 0;
    while let Some((lines, tried)) = played.try_next().await? {
        for line in &lines {
            say!("{line}");
        }
        differences.extend(lines);
        table.add(&tried);
        done += 1;
        if done % TELL == 0 {
            say!("random: {done} of {sequences} sequences, {} differences", differences.len());
        }
        if differences.len() > ENOUGH {
            break;
        }
    }
    drop(played);
    differences.extend(expired::run(&mut pair).await?);
    // Bypasses the output capture, to show the counts of successful runs.
    std::io::stdout().lock().write_all(format!("\n{table}").as_bytes())?;
    if differences.len() <= ENOUGH {
        let least = if sequences >= MANY { OFTEN } else { sequences / SHARE };
        differences.extend(table.below(least, random::all_cells()));
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
    Ok(())
}
