//! The agent's binary.

use clap::Parser;
use std::process::ExitCode;
use tidewatch_agent::{EXIT_USAGE, app, args::Args};

fn main() -> ExitCode {
    match Args::try_parse() {
        Ok(args) => app::run(&args),
        Err(error) => {
            let _ = error.print();
            if error.use_stderr() { ExitCode::from(EXIT_USAGE) } else { ExitCode::SUCCESS }
        }
    }
}
