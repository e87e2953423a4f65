//! `tidewatch doctor`: checks a control plane and its runtimes.
//!
//! `collect` asks, `findings` judges the facts (pure), `report` prints.

mod collect;
mod definitions;
mod facts;
mod findings;
mod report;
mod runtimes;

use std::io::IsTerminal as _;

use clap::Args;

use crate::{
    clusters::ControlPlane,
    output::{Format, print},
};

/// Arguments of `tidewatch doctor`.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    #[command(flatten)]
    kcp: ControlPlane,
    /// Check this runtime only: a Kyma's name or a runtime id.
    #[arg(long, value_name = "RUNTIME", conflicts_with = "runtimes")]
    runtime: Option<String>,
    /// Largest number of checked runtimes; unproven ones come first.
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    runtimes: usize,
    /// Registry of the modules [default: --modules of the Deployment tidewatch-receiver].
    #[arg(long, value_name = "HOST[:PORT][/PATH]")]
    registry: Option<String>,
    /// User whose rights in KCP are checked [default: the service account of the Deployment tidewatch-receiver].
    #[arg(long, value_name = "USER")]
    receiver_user: Option<String>,
}

/// Returns whether no check has failed.
pub(crate) async fn run(doctor: Doctor, output: Format) -> anyhow::Result<bool> {
    let facts = collect::collect(&doctor).await?;
    let findings = findings::findings(&facts);
    match output {
        Format::Json => output.print(&report::json(&findings))?,
        Format::Text => print(&report::text(&findings, std::io::stdout().is_terminal()))?,
    }
    Ok(!findings.iter().any(findings::Finding::has_failed))
}
