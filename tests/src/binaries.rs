//! The programs under test.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

/// Returns the path of `tidewatch-receiver` or `tidewatch-agent` from the same build. Cargo puts test
/// binaries into `deps` below the programs' folder.
pub fn find(name: &str) -> Result<PathBuf> {
    in_folder(name, "cargo build --workspace")
}

/// Returns the path of a listener example from the same build.
pub fn example(name: &str) -> Result<PathBuf> {
    let build = format!("cargo build -p tidewatch-listener --example {name}");
    in_folder(&format!("examples/{name}"), &build)
}

fn in_folder(name: &str, build: &str) -> Result<PathBuf> {
    let here = std::env::current_exe().context("the path of this program is not known")?;
    let folder =
        here.ancestors().skip(1).find(|f| !f.ends_with("deps")).context("this program has no folder")?;
    let program = folder.join(name);
    ensure!(program.is_file(), "{} does not exist; build it first: {build}", program.display());
    Ok(program)
}
