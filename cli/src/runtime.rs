//! `tidewatch runtime`: registers runtimes.

mod add;
mod api_server;
mod registration;
mod runtime_objects;
mod wait;

use clap::Subcommand;

pub(crate) use runtime_objects::engine_rights;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Register a runtime: make a kubeconfig for the engine, and write it with the runtime's Kyma to KCP.
    #[command(long_about = add::ABOUT)]
    Add(Box<add::Add>),
}

pub(crate) async fn run(command: Command) -> anyhow::Result<()> {
    let Command::Add(add) = command;
    Box::pin(add::run(*add)).await
}
