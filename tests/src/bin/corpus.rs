//! `make corpus DIR=…`: compares YAML files installed as modules with kubectl.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::Parser;
use serde_json::json;
use tidewatch_tests::{
    corpus::{
        self, ALONE, AT_ONCE,
        report::{Row, table},
    },
    report::Terminal,
};

/// Makes a module of each YAML file of a folder, installs it on real control planes, and checks: it is Ready, or rightly not;
/// each object is what `kubectl apply --server-side` makes of it in another cluster; a receiver that is started again writes nothing;
/// nothing changes within two minutes; nothing is left after the removal.
///
/// Takes about three minutes, and half a minute for each file on two cores. Ends with 0 if all checks hold, with 1 if one does not, with 2 if
/// they cannot be made.
#[derive(Parser)]
#[command(name = "tidewatch-corpus")]
struct Args {
    /// The folder of the files `*.yaml` and `*.yml`.
    folder: PathBuf,
    /// For so many seconds nothing is changed.
    #[arg(long, default_value_t = ALONE.as_secs(), value_name = "SECONDS")]
    alone: u64,
    /// So many files at the same time; the runtime of each takes half a gigabyte of memory.
    #[arg(long, default_value_t = AT_ONCE, value_name = "N")]
    at_once: usize,
    /// Print JSON.
    #[arg(short, long, value_name = "FORMAT", value_parser = ["json"])]
    output: Option<String>,
}

#[allow(clippy::print_stdout, reason = "the result")]
fn main() -> ExitCode {
    let Args { folder, alone, at_once, output } = Args::parse();
    let terminal = if output.is_some() { Terminal::beside_json() } else { Terminal::default() };
    let result = corpus::main(&folder, Duration::from_secs(alone), at_once, &terminal);
    terminal.finish();
    let rows = match result {
        Ok(rows) => rows,
        Err(error) => {
            terminal.say(&format!("The checks could not be made: {error:#}"));
            return ExitCode::from(2);
        }
    };
    let passed = rows.iter().all(Row::passes);
    match output {
        Some(_) => println!("{:#}", json!({"modules": rows, "passed": passed})),
        None => println!("\n{}", table(&rows)),
    }
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
