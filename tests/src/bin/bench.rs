//! `make bench`: costs and latencies on real control planes.

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;
use tidewatch_tests::{
    bench::{self, Part, Size},
    report::Terminal,
};

/// Measures on real control planes and writes a report. Figures that miss their goal are figures: the exit
/// code tells only whether the environment started.
#[derive(Parser)]
#[command(name = "tidewatch-bench")]
struct Args {
    /// Few repetitions and short waits: shows that it works, not how fast.
    #[arg(long)]
    quick: bool,
    /// Only this part.
    #[arg(long)]
    only: Option<Part>,
    /// The report; by default `bench/report.json` in cargo's target folder.
    #[arg(long)]
    out: Option<PathBuf>,
}

fn main() -> ExitCode {
    let Args { quick, only, out } = Args::parse();
    let terminal = Terminal::default();
    let size = if quick { Size::quick() } else { Size::full() };
    let result = bench::main(&size, only, out, &terminal);
    terminal.finish();
    if let Err(error) = result {
        terminal.say(&format!("\nThe benchmark failed: {error:#}"));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
