//! File access with errors that name the file.

use std::{
    fs,
    io::{ErrorKind, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use anyhow::Context;

pub(crate) fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Creates the folder too.
pub(crate) fn write(path: &Path, content: &str) -> anyhow::Result<PathBuf> {
    write_with(fs::OpenOptions::new().create(true).truncate(true), path, content)?;
    Ok(path.to_owned())
}

/// Creates a file with `mode`; only `force` replaces one.
pub(crate) fn write_new(path: &Path, content: &str, mode: u32, force: bool) -> anyhow::Result<()> {
    match force.then(|| fs::remove_file(path)) {
        Some(Err(error)) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot replace {}", path.display()))
        }
        _ => write_with(fs::OpenOptions::new().create_new(true).mode(mode), path, content),
    }
}

fn write_with(how: &mut fs::OpenOptions, path: &Path, content: &str) -> anyhow::Result<()> {
    let mut write = || {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        how.write(true).open(path)?.write_all(content.as_bytes())
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}
