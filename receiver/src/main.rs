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
    let telemetry = match Telemetry::start(&args, level) {
        Ok(telemetry) => telemetry,
        Err(error) => return fail(USAGE, error.as_ref()),
    };
    let code = run(args, &dry);
    telemetry.finish();
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

/// Log lines and, with the feature `otlp`, the export of spans.
struct Telemetry {
    #[cfg(feature = "otlp")]
    export: Option<tidewatch_receiver::otlp::Export>,
}

impl Telemetry {
    #[cfg(not(feature = "otlp"))]
    fn start(args: &Args, level: &str) -> anyhow::Result<Self> {
        logging::init(args.log_format, level)?;
        Ok(Self {})
    }

    #[cfg(feature = "otlp")]
    fn start(args: &Args, level: &str) -> anyhow::Result<Self> {
        let Some(endpoint) = &args.otlp_endpoint else {
            logging::init(args.log_format, level)?;
            return Ok(Self { export: None });
        };
        let (export, layer) = tidewatch_receiver::otlp::Export::start(endpoint)
            .map_err(|error| anyhow::Error::new(error).context("--otlp-endpoint cannot be used"))?;
        logging::init_with(layer, args.log_format, level)?;
        Ok(Self { export: Some(export) })
    }

    fn finish(self) {
        #[cfg(feature = "otlp")]
        if let Some(export) = self.export {
            export.finish();
        }
    }
}

fn fail(code: u8, error: &(dyn std::error::Error + 'static)) -> ExitCode {
    stdio::note(&format!("tidewatch-receiver: {}", chain(error)));
    ExitCode::from(code)
}
