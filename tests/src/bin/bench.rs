//! `make bench`: costs and latencies on real control planes.

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;
use tidewatch_tests::{
    bench::{self, Part, Size},
    report::Terminal,
};

/// Measures on real control planes and writes a report. The exit code is 0 even if figures miss their goal;
/// it is 1 if the environment does not start.
#[derive(Parser)]
#[command(name = "tidewatch-bench")]
struct Args {
    /// Few repetitions and short waits, as a smoke test without usable figures.
    #[arg(long)]
    quick: bool,
    /// Measure this part only.
    #[arg(long)]
    only: Option<Part>,
    /// File of the report [default: `bench/report.json` in cargo's target folder].
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
