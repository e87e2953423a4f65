//! Whether the simulated API server tells the truth: the same calls to it and to a real one, and both answers compared.
//!
//! `TIDEWATCH_DIFFERENTIAL=N` runs N random sequences instead of a few; `TIDEWATCH_SEED` the first one's number.

/// Says how far the comparison is; shown with `--nocapture`, or when it fails.
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

/// Sequences that a test run affords.
const FEW: u64 = 100;
/// Most of a sequence is waiting for its watch to end.
const AT_ONCE: usize = 48;
/// Random reviews of access: each sequence's number makes new roles, which costs more than its calls.
const REVIEWS: u64 = 200;
/// How often it says how far it is, in sequences.
const TELL: u64 = 100;
/// A run of so many sequences has tried each cell of the table [`OFTEN`].
const MANY: u64 = 1_000;
const OFTEN: u64 = 100;
/// Of fewer sequences, one of so many has tried each.
const SHARE: u64 = 20;
/// With so many lines there is something to be mended first.
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
    // Past the capture of the test's output: the counts are shown when all is well, too.
    std::io::stdout().lock().write_all(format!("\n{table}").as_bytes())?;
    if differences.len() <= ENOUGH {
        let least = if sequences >= MANY { OFTEN } else { sequences / SHARE };
        differences.extend(table.below(least, random::all_cells()));
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
    Ok(())
}
