//! Commands and options.

use std::process::ExitCode;

use anyhow::ensure;
use clap::{CommandFactory, Parser, Subcommand, error::ErrorKind};
use clap_complete::Shell;
use tidewatch_telemetry::BuildInfo;

use crate::{
    certs, doctor, explain, generate, lint, module,
    output::{self, Output},
    runtime,
};

const BUILD: BuildInfo = BuildInfo::new("tidewatch", env!("CARGO_PKG_VERSION"));

/// Tools for operators and module teams.
#[derive(Debug, Parser)]
#[command(name = "tidewatch", version, about, long_about = None, arg_required_else_help = true)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the certificates of the event path, rotate the CA, revoke and admit runtimes; make certificates in files.
    Certs(Group<certs::Command>),
    /// Pack modules and push them to a registry.
    Module(Group<module::Command>),
    /// Register runtimes.
    #[command(subcommand)]
    Runtime(runtime::Command),
    /// Check a control plane and its runtimes, and say how to repair what fails. Exit code 1 if a check fails, or cannot be made.
    ///
    /// A check fails as "not checked" if your user lacks a right that it needs. Warnings and skipped checks do not change the exit code.
    Doctor(With<doctor::Doctor>),
    /// Show a runtime's event path and its last reconciles with their triggers.
    Explain(With<explain::Explain>),
    /// Check an operator's files.
    Lint(Group<lint::Command>),
    /// Show the life of a module on simulated clusters, in one process.
    Demo(tidewatch_demo::command::Demo),
    /// Play a scenario with thousands of simulated runtimes, and report the result.
    Simulate(tidewatch_fleet_sim::command::Simulate),
    /// The receiver of a simulation.
    #[command(hide = true, name = tidewatch_fleet_sim::command::RECEIVER_COMMAND)]
    SimulateReceiver(Box<tidewatch_receiver::args::Args>),
    /// The agents of a simulation.
    #[command(hide = true)]
    SimulateAgents(tidewatch_fleet_sim::agents::child::AgentsArgs),
    /// Write the files that are generated from the code.
    Generate(Group<generate::Command>),
    /// Print a shell completion script, for example: source <(tidewatch completion bash)
    Completion {
        /// The shell.
        shell: Shell,
    },
    /// Print the version, and the commit if the build sets it.
    Version(Output),
}

/// Commands that all print their result in the same formats.
#[derive(Debug, clap::Args)]
struct Group<C: Subcommand> {
    #[command(subcommand)]
    command: C,
    #[command(flatten)]
    output: Output,
}

/// A command that prints its result in these formats.
#[derive(Debug, clap::Args)]
struct With<A: clap::Args> {
    #[command(flatten)]
    args: A,
    #[command(flatten)]
    output: Output,
}

/// Returns a usage error: exit code 2.
pub(crate) fn usage(why: &str) -> anyhow::Error {
    Args::command().error(ErrorKind::ValueValidation, why).into()
}

/// Runs a command and returns the exit code.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Certs(Group { command, output }) => certs::run(command, output.format).await,
        Command::Module(Group { command, output }) => module::run(command, output.format).await,
        Command::Runtime(command) => runtime::run(command).await,
        Command::Doctor(With { args, output }) => {
            let healthy = Box::pin(doctor::run(args, output.format)).await?;
            return Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Explain(With { args, output }) => explain::run(args, output.format).await,
        Command::Lint(Group { command, output }) => lint::run(command, output.format),
        Command::Demo(demo) => Box::pin(tidewatch_demo::command::run(demo)).await,
        Command::Simulate(simulate) => {
            let passed = Box::pin(tidewatch_fleet_sim::command::run(simulate)).await?;
            return Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::SimulateReceiver(args) => {
            tidewatch_telemetry::logging::init(args.log_format, args.log_level.as_deref().unwrap_or("info"))?;
            let grace = args.grace;
            let finished = Box::pin(tidewatch_receiver::app::run((*args).into(), grace)).await?;
            ensure!(finished, "work was still in hand at the end of the grace");
            Ok(())
        }
        Command::SimulateAgents(args) => Box::pin(tidewatch_fleet_sim::agents::child::run(args)).await,
        Command::Generate(Group { command, output }) => generate::run(command, output.format),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Args::command(), "tidewatch", &mut script);
            output::print(&String::from_utf8(script)?)
        }
        Command::Version(output) => output.format.print(&BUILD.to_json()),
    }?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn completion_knows_every_command() {
        let mut script = Vec::new();
        clap_complete::generate(Shell::Bash, &mut Args::command(), "tidewatch", &mut script);
        let script = String::from_utf8(script).unwrap();
        for command in [
            "certs",
            "demo",
            "doctor",
            "explain",
            "lint",
            "module",
            "runtime",
            "simulate",
            "generate",
            "completion",
            "version",
        ] {
            assert!(script.contains(command), "{command}");
        }
    }

    #[test]
    fn commands_of_the_operators_pages_parse() {
        let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operate");
        let mut parsed = 0;
        for page in std::fs::read_dir(pages).unwrap() {
            let page = page.unwrap().path();
            let text = std::fs::read_to_string(&page).unwrap().replace("\\\n", " ");
            for line in text.split("```").skip(1).step_by(2).flat_map(str::lines) {
                let command = line.split(" #").next().unwrap_or_default();
                if command.starts_with("tidewatch ") {
                    let result = Args::try_parse_from(command.split_whitespace());
                    assert!(result.is_ok(), "{}: {command}: {}", page.display(), result.unwrap_err());
                    parsed += 1;
                }
            }
        }
        assert!(parsed > 15, "{parsed}");
    }

    #[test]
    fn a_format_is_accepted_only_where_supported() {
        let parsed =
            |line: &str| Args::try_parse_from(line.split(' ')).map(drop).map_err(|error| error.exit_code());
        for line in [
            "tidewatch certs ca -o json",
            "tidewatch certs -o text ca",
            "tidewatch explain -o json",
            "tidewatch doctor -o json --kcp-kubeconfig f --runtimes 5",
            "tidewatch runtime add a --kubeconfig f --wait -o yaml",
            "tidewatch runtime add a --runtime-kubeconfig f --dry-run=client --wait=ready --label a=b --label c-",
            "tidewatch simulate -o markdown",
            "tidewatch simulate --list -o json",
            "tidewatch version -o json",
        ] {
            assert_eq!(parsed(line), Ok(()), "{line}");
        }
        for line in [
            "tidewatch certs ca -o markdown",
            "tidewatch explain -o markdown",
            "tidewatch doctor -o yaml",
            "tidewatch doctor --runtime a --runtimes 5",
            "tidewatch runtime add a",
            "tidewatch runtime add a --kubeconfig f --label b",
            "tidewatch demo -o json",
            "tidewatch completion bash -o json",
        ] {
            assert_eq!(parsed(line), Err(2), "{line}");
        }
    }
}
