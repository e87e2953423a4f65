//! Plays episodes and prints their counts.

use std::process::ExitCode;

use clap::Parser;
use tidewatch_delivery_sim::{Counts, play};

#[derive(Parser)]
struct Args {
    /// Number of steps.
    #[arg(long, default_value_t = 1_000_000)]
    steps: u64,
    /// Seed of the first episode. Each further episode adds 1.
    #[arg(long, env = "TIDEWATCH_SEED", default_value_t = 1)]
    seed: u64,
}

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line program")]
fn main() -> anyhow::Result<ExitCode> {
    let Args { steps, seed } = Args::parse();
    let (mut counts, mut reported) = (Counts::default(), 0);
    for seed in seed.. {
        match play(seed, None)? {
            Ok(report) => counts.add(&report.counts),
            Err(failure) => {
                eprintln!("{failure}");
                println!("{counts} lost=1 seed={seed}");
                return Ok(ExitCode::FAILURE);
            }
        }
        if counts.steps() >= reported + 100_000 {
            reported = counts.steps();
            eprintln!("{reported} of {steps} steps, seed {seed}");
        }
        if counts.steps() >= steps {
            break;
        }
    }
    println!("{counts} lost=0");
    Ok(ExitCode::SUCCESS)
}
