//! The programs under test.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

/// `tidewatch-receiver` or `tidewatch-agent`, of the same build as this program: cargo puts test binaries
/// into `deps` below the folder of the programs.
pub fn find(name: &str) -> Result<PathBuf> {
    let here = std::env::current_exe().context("the path of this program is not known")?;
    let folder =
        here.ancestors().skip(1).find(|f| !f.ends_with("deps")).context("this program has no folder")?;
    let program = folder.join(name);
    ensure!(
        program.is_file(),
        "{} does not exist; build it first: cargo build --workspace",
        program.display()
    );
    Ok(program)
}
