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

/// Installs each YAML file of a folder as a module on real control planes, and checks the result.
///
/// The module is Ready or has a good reason not to be. Each object equals the result of
/// `kubectl apply --server-side` in another cluster. A restarted receiver writes nothing, and nothing changes
/// within two minutes. The removal leaves nothing.
///
/// It takes about three minutes, and half a minute for each file on two cores. Exit code 0: all checks hold;
/// 1: a check fails; 2: the checks cannot run.
#[derive(Parser)]
#[command(name = "tidewatch-corpus")]
struct Args {
    /// Folder with the files `*.yaml` and `*.yml`.
    folder: PathBuf,
    /// Observation time without changes, in seconds.
    #[arg(long, default_value_t = ALONE.as_secs(), value_name = "SECONDS")]
    alone: u64,
    /// Files that are checked concurrently. The runtime of each takes half a gigabyte of memory.
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
