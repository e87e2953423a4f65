//! The receiver's process.

use std::process::ExitCode;

use tidewatch_receiver::{
    app,
    args::{Args, DryRunArgs, Program},
    dry_run,
};
use tidewatch_telemetry::{chain, logging, stdio};

/// The C library's allocator takes a third of a rollout's CPU time (`docs/concepts/scale.md`).
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Exit code for unusable arguments, as clap's.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let Program { args, dry } = Program::read();
    let level = args.log_level.as_deref().unwrap_or(if dry.dry_run { "warn" } else { "info" });
    let end_telemetry = match start_telemetry(&args, level) {
        Ok(end) => end,
        Err(error) => return fail(USAGE, error.as_ref()),
    };
    let code = run(args, &dry);
    end_telemetry();
    code
}

fn run(args: Args, dry: &DryRunArgs) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(70, &error),
    };
    let grace = args.grace;
    if dry.dry_run {
        return match runtime.block_on(dry_run::print(args.into(), dry)) {
            Ok(code) => ExitCode::from(code),
            Err(error) => fail(USAGE, &error),
        };
    }
    match runtime.block_on(app::run(args.into(), grace)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(75),
        Err(error) => fail(USAGE, error.as_ref()),
    }
}

/// Starts log lines and, with the feature `otlp`, the export of spans. Returns the function that ends them.
#[cfg(not(feature = "otlp"))]
fn start_telemetry(args: &Args, level: &str) -> anyhow::Result<impl FnOnce() + use<>> {
    logging::init(args.log_format, level)?;
    Ok(|| {})
}

#[cfg(feature = "otlp")]
fn start_telemetry(args: &Args, level: &str) -> anyhow::Result<impl FnOnce() + use<>> {
    use tidewatch_receiver::otlp::Export;
    let export = args.otlp_endpoint.as_deref().map(Export::start).transpose();
    let export =
        match export.map_err(|error| anyhow::Error::new(error).context("--otlp-endpoint cannot be used"))? {
            Some((export, layer)) => {
                logging::init_with(layer, args.log_format, level)?;
                Some(export)
            }
            None => {
                logging::init(args.log_format, level)?;
                None
            }
        };
    Ok(move || export.into_iter().for_each(Export::finish))
}

fn fail(code: u8, error: &(dyn std::error::Error + 'static)) -> ExitCode {
    stdio::note(&format!("tidewatch-receiver: {}", chain(error)));
    ExitCode::from(code)
}
