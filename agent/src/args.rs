//! The command line.

use clap::Parser;
use std::path::PathBuf;
use tidewatch_telemetry::logging::Format;

/// Watches a runtime cluster and notifies the receiver.
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub struct Args {
    /// The configuration file (YAML).
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// How log lines look: json or text.
    #[arg(long, value_name = "FORMAT", default_value_t)]
    pub log_format: Format,
    /// What is logged, as `info` or `info,kube=warn`. The default leaves out what the agent itself logs too.
    #[arg(long, value_name = "LEVEL", default_value = "info,kube_runtime=error,kube_client=off")]
    pub log_level: String,
    /// Check the configuration and the files that it names, and exit: 0 when they are good, 2 when the configuration is not, 1 when a
    /// file is not.
    #[arg(long)]
    pub check: bool,
}
