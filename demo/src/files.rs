//! Private files and folder locks.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::Path,
    process,
};

use anyhow::{Context, Result, bail, ensure};

const LOCK: &str = "in-use";

/// Creates a folder and locks it while the returned file is open. Fails if another process holds it. `flag` is for the error.
pub fn take(folder: &Path, flag: &str) -> Result<File> {
    make(folder)?;
    let path = folder.join(LOCK);
    let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let mut file = open().with_context(|| format!("cannot open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let by = fs::read_to_string(&path).unwrap_or_default();
            bail!(
                "{} is in use by process {}: end that one first, or choose another folder with {flag}",
                folder.display(),
                by.trim()
            );
        }
        Err(TryLockError::Error(error)) => {
            return Err(error).with_context(|| format!("cannot lock {}", path.display()));
        }
    }
    file.set_len(0)?;
    writeln!(file, "{}", process::id())?;
    Ok(file)
}

/// Creates a folder.
pub fn make(folder: &Path) -> Result<()> {
    ensure!(!folder.exists() || folder.is_dir(), "{} is no folder; name another one", folder.display());
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}

/// Replaces a file if its content differs. Readers see the former or the new content.
pub fn replace(path: &Path, content: &str) -> Result<()> {
    if fs::read_to_string(path).is_ok_and(|former| former == content) {
        return Ok(());
    }
    let next = path.with_extension("next");
    write_private(&next, content)?;
    fs::rename(&next, path).with_context(|| format!("cannot replace {}", path.display()))
}

/// Writes a file with mode 0600, replacing any other. Creates its folder.
pub fn write_private(path: &Path, content: &str) -> Result<()> {
    let write = || {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(content.as_bytes())
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_folder_in_use_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let taken = take(folder.path(), "--folder").unwrap();
        // Counts like another process.
        let refused = take(folder.path(), "--folder").unwrap_err().to_string();
        assert!(refused.contains(&format!("in use by process {}", process::id())), "{refused}");
        assert!(refused.ends_with("with --folder"), "{refused}");
        drop(taken);
        take(folder.path(), "--folder").unwrap();
    }

    #[test]
    fn a_file_cannot_be_used_as_folder() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(take(&file, "--folder").unwrap_err().to_string().contains("is no folder"));
        drop(take(&folder.path().join("new/one"), "--folder").unwrap());
    }

    #[test]
    fn written_files_are_readable_only_by_their_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.key");
        fs::write(&path, "open").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        for content in ["secret", "another"] {
            write_private(&path, content).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }
}
