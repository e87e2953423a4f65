//! Whether the simulated API server tells the truth: the same calls to it and to a real one, and both answers compared.
//!
//! `TIDEWATCH_DIFFERENTIAL=N` runs N random sequences instead of a few; `TIDEWATCH_SEED` the first one's number.

mod compare;
mod facts;
mod fixed;
mod pair;
mod random;

use std::env;

use anyhow::{Result, ensure};
use pair::Pair;

/// Sequences that a test run affords.
const FEW: u64 = 60;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_servers_answer_alike() -> Result<()> {
    let number =
        |name: &str, otherwise| env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise);
    let (sequences, seed) = (number("TIDEWATCH_DIFFERENTIAL", FEW), number("TIDEWATCH_SEED", 1));
    let pair = Pair::start().await?;
    let mut differences = facts::compare(&pair).await?;
    differences.extend(fixed::run(&pair).await?);
    let mut table = random::Table::default();
    for seed in seed..seed + sequences {
        differences.extend(random::run(&pair, seed, &mut table).await?);
        if differences.len() > 40 {
            break;
        }
    }
    println!("{table}");
    ensure!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
    Ok(())
}
