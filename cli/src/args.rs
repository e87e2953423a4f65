//! Commands and options.

use std::process::ExitCode;

use anyhow::ensure;
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::{certs, explain, generate, lint, module, output::Format, replay};

/// Tools around Tidewatch: certificates, modules, generated files.
#[derive(Debug, Parser)]
#[command(name = "tidewatch", version, about, long_about = None, arg_required_else_help = true)]
pub struct Args {
    /// How results are printed.
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Text)]
    output: Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make certificates for the event path: a CA, the receiver's, an agent's.
    #[command(subcommand)]
    Certs(certs::Command),
    /// Pack modules and push them to a registry.
    #[command(subcommand)]
    Module(module::Command),
    /// Show what was done for one runtime, and why.
    Explain(explain::Explain),
    /// Check files that operators write.
    #[command(subcommand)]
    Lint(lint::Command),
    /// Show the product at work on simulated clusters, in this one process.
    Demo(tidewatch_demo::command::Demo),
    /// Play a record of a receiver, and show each decision.
    Replay(replay::Replay),
    /// Play a scenario with thousands of simulated runtimes, and report what became of it.
    Simulate(tidewatch_simulate::command::Simulate),
    /// The receiver of a simulation.
    #[command(hide = true, name = tidewatch_simulate::command::RECEIVER_COMMAND)]
    SimulateReceiver(Box<tidewatch_receiver::args::Args>),
    /// The agents of a simulation.
    #[command(hide = true)]
    SimulateAgents(tidewatch_simulate::agents::child::AgentsArgs),
    /// Write the files that are generated from the code.
    #[command(subcommand)]
    Generate(generate::Command),
    /// Print a shell completion script, for example: source <(tidewatch completion bash)
    Completion {
        /// The shell.
        shell: Shell,
    },
}

/// Runs one command, and says with what the program ends.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { output, command } = args;
    let simulates = matches!(command, Command::Simulate(_));
    ensure!(simulates || output != Format::Markdown, "only simulate prints markdown; use text or json");
    let tells = matches!(command, Command::Demo(_));
    ensure!(!tells || output == Format::Text, "demo tells its steps as text only; leave out --output");
    match command {
        Command::Replay(replay) => return replay::run(replay, output).await,
        Command::Certs(command) => certs::run(command, output),
        Command::Module(command) => module::run(command, output).await,
        Command::Explain(explain) => explain::run(explain, output).await,
        Command::Lint(command) => lint::run(command, output),
        Command::Demo(demo) => Box::pin(tidewatch_demo::command::run(demo)).await,
        Command::Simulate(simulate) => {
            let format = match output {
                Format::Text => tidewatch_simulate::command::Format::Table,
                Format::Markdown => tidewatch_simulate::command::Format::Markdown,
                Format::Json => tidewatch_simulate::command::Format::Json,
            };
            Box::pin(tidewatch_simulate::command::run(simulate, format)).await
        }
        Command::SimulateReceiver(args) => {
            tidewatch_telemetry::logging::init(args.log_format, args.log_level.as_deref().unwrap_or("info"))?;
            let grace = args.grace;
            let finished = Box::pin(tidewatch_receiver::app::run((*args).into(), grace)).await?;
            ensure!(finished, "work was still in hand at the end of the grace");
            Ok(())
        }
        Command::SimulateAgents(args) => Box::pin(tidewatch_simulate::agents::child::run(args)).await,
        Command::Generate(command) => generate::run(command, output),
        Command::Completion { shell } => {
            clap_complete::generate(shell, &mut Args::command(), "tidewatch", &mut std::io::stdout());
            Ok(())
        }
    }?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
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
        for command in
            ["certs", "demo", "explain", "lint", "module", "replay", "simulate", "generate", "completion"]
        {
            assert!(script.contains(command), "{command}");
        }
    }
}
