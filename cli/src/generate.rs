//! `tidewatch generate`: checked-in generated files.

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::json;
use tidewatch_api::crds;

use crate::{files, output::Format};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Write the `CustomResourceDefinitions`.
    Crds {
        /// Folder for the files.
        #[arg(long, default_value = "deploy/charts/tidewatch/files/crds", value_name = "FOLDER")]
        out: PathBuf,
    },
}

pub(crate) fn run(command: Command, output: Format) -> anyhow::Result<()> {
    let Command::Crds { out } = command;
    let mut written = Vec::new();
    for crd in crds::all() {
        written.push(files::write(&out.join(crds::file_name(&crd)), &crds::yaml(&crd))?);
    }
    output.print(&json!({"files": written}))?;
    Ok(())
}
