//! Reading and writing files with errors that name them.

use std::{
    fs,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use anyhow::Context;

/// Reads a text file.
pub(crate) fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Writes a file, creating its folder.
pub(crate) fn write(path: &Path, content: &str) -> anyhow::Result<PathBuf> {
    write_with_mode(path, content, 0o644)
}

/// Writes a file that only its owner may read.
pub(crate) fn write_private(path: &Path, content: &str) -> anyhow::Result<PathBuf> {
    write_with_mode(path, content, 0o600)
}

fn write_with_mode(path: &Path, content: &str, mode: u32) -> anyhow::Result<PathBuf> {
    let cannot = || format!("cannot write {}", path.display());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(cannot)?;
    }
    let mut options = fs::OpenOptions::new();
    let mut file =
        options.write(true).create(true).truncate(true).mode(mode).open(path).with_context(cannot)?;
    file.write_all(content.as_bytes()).with_context(cannot)?;
    Ok(path.to_owned())
}
