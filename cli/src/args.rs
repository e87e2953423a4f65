//! Commands and options.

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::{certs, explain, generate, lint, module, output::Format};

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
    /// Write the files that are generated from the code.
    #[command(subcommand)]
    Generate(generate::Command),
    /// Print a shell completion script, for example: source <(tidewatch completion bash)
    Completion {
        /// The shell.
        shell: Shell,
    },
}

/// Runs one command.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let Args { output, command } = args;
    match command {
        Command::Certs(command) => certs::run(command, output),
        Command::Module(command) => module::run(command, output).await,
        Command::Explain(explain) => explain::run(explain, output).await,
        Command::Lint(command) => lint::run(command, output),
        Command::Demo(demo) => Box::pin(tidewatch_demo::command::run(demo)).await,
        Command::Generate(command) => generate::run(command, output),
        Command::Completion { shell } => {
            clap_complete::generate(shell, &mut Args::command(), "tidewatch", &mut std::io::stdout());
            Ok(())
        }
    }
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
        for command in ["certs", "demo", "explain", "lint", "module", "generate", "completion"] {
            assert!(script.contains(command), "{command}");
        }
    }
}
