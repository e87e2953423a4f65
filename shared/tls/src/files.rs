//! A bundle in files.

use crate::Pem;
use sha2::{Digest, Sha256};
use std::{io, path::PathBuf};
use tokio::{fs::File, io::AsyncReadExt};

const MAX_FILE: u64 = 1024 * 1024;

/// Paths of a bundle. Compared by hash: Secrets change by symlink swaps, and systems differ in times and inotify.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// CAs of the peer.
    pub ca: PathBuf,
    /// Own certificate and intermediates.
    pub cert: PathBuf,
    /// Own key.
    pub key: PathBuf,
}

/// File error.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// Unreadable.
    #[error("{path:?} cannot be read; check that it exists and its permissions")]
    Read {
        /// Path.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// Too large.
    #[error("{0:?} is larger than {MAX_FILE} bytes; is it the right file?")]
    TooLarge(PathBuf),
}

impl Files {
    /// Reads the files, at most 1 MiB each.
    pub async fn read(&self) -> Result<Pem, FilesError> {
        Ok(Pem {
            ca: read_file(&self.ca).await?,
            cert: read_file(&self.cert).await?,
            key: read_file(&self.key).await?,
        })
    }
}

pub(crate) fn hash(pem: &Pem) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in [&pem.ca, &pem.cert, &pem.key] {
        // Hashed separately, so that bytes moved between files are a change.
        hash.update(Sha256::digest(part));
    }
    hash.finalize().into()
}

/// Reads a file of at most 1 MiB.
pub async fn read_file(path: &PathBuf) -> Result<Vec<u8>, FilesError> {
    let failed = |source| FilesError::Read { path: path.clone(), source };
    let file = File::open(path).await.map_err(failed)?;
    let mut content = Vec::new();
    let read = file.take(MAX_FILE + 1).read_to_end(&mut content).await.map_err(failed)?;
    if read as u64 > MAX_FILE { Err(FilesError::TooLarge(path.clone())) } else { Ok(content) }
}
