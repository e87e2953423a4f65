//! The command line.

use clap::Parser;
use std::path::PathBuf;
use tidewatch_telemetry::logging::Format;

/// Watches Kubernetes kinds in a runtime cluster and posts their changes to the receiver.
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub struct Args {
    /// Configuration file (YAML).
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Format of log lines: json or text.
    #[arg(long, value_name = "FORMAT", default_value_t)]
    pub log_format: Format,
    /// Log levels, such as `info` or `info,kube=warn`. The default omits messages of libraries that the agent
    /// logs itself.
    #[arg(long, value_name = "LEVEL", default_value = "info,kube_runtime=error,kube_client=off")]
    pub log_level: String,
    /// Check the configuration and the files that it names, and exit. Exit code 0: valid; 2: invalid
    /// configuration; 1: invalid file.
    #[arg(long)]
    pub check: bool,
}
