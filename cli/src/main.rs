//! The command line's process.

use std::process::ExitCode;

use clap::Parser;
use tidewatch_cli::{Args, run};
use tidewatch_telemetry::stdio;

/// The C library's allocator takes two fifths of simulated API servers' CPU time.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let args = Args::parse();
    let result = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(run(args)));
    match result {
        Ok(code) => code,
        Err(error) => fail(&error),
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    if let Some(usage) = error.downcast_ref::<clap::Error>() {
        // The reader may be gone.
        let _ = usage.print();
        return ExitCode::from(u8::try_from(usage.exit_code()).unwrap_or(2));
    }
    stdio::note(&format!("tidewatch: {error:#}"));
    ExitCode::FAILURE
}
