//! `make idle`: counts API requests while nothing changes.

use std::{process::ExitCode, time::Duration};

use clap::Parser;
use tidewatch_tests::{
    idle::{self, SETTLING},
    report::Terminal,
};

/// Changes nothing for a while, and counts each program's requests by the API servers' audit logs.
///
/// Exit code 2: the engine wrote an object, or read more than once from a runtime.
#[derive(Parser)]
#[command(name = "tidewatch-idle")]
struct Args {
    /// Duration, in seconds.
    #[arg(long = "for", default_value_t = 3600, value_name = "SECONDS")]
    time: u64,
    /// Print JSON.
    #[arg(short, long, value_name = "FORMAT", value_parser = ["json"])]
    output: Option<String>,
}

#[allow(clippy::print_stdout, reason = "the result")]
fn main() -> ExitCode {
    let Args { time, output } = Args::parse();
    let terminal = if output.is_some() { Terminal::beside_json() } else { Terminal::default() };
    let result = idle::main(SETTLING, Duration::from_secs(time), &terminal);
    terminal.finish();
    let idle = match result {
        Ok(idle) => idle,
        Err(error) => {
            terminal.say(&format!("\nIt could not be measured: {error:#}"));
            return ExitCode::FAILURE;
        }
    };
    match (output, serde_json::to_string_pretty(&idle)) {
        (Some(_), Ok(json)) => println!("{json}"),
        _ => println!("\n{}", idle.table()),
    }
    if idle.is_met() { ExitCode::SUCCESS } else { ExitCode::from(2) }
}
