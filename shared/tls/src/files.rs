//! A bundle in three files, as a mounted Secret has it.

use crate::Pem;
use sha2::{Digest, Sha256};
use std::{io, path::PathBuf};
use tokio::{fs::File, io::AsyncReadExt};

/// Largest accepted file; a bundle of dozens of certificates is far below.
const MAX_FILE: u64 = 1024 * 1024;

/// Where the parts of a bundle are. Contents are compared by hash: a mounted Secret changes by a swap of symbolic
/// links, which file times and inotify see in different ways on different systems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The CAs that may have issued the peer's certificate.
    pub ca: PathBuf,
    /// The own certificate and its intermediates.
    pub cert: PathBuf,
    /// The own private key.
    pub key: PathBuf,
}

/// A file of the bundle could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// It is not there or may not be read.
    #[error("{path:?} cannot be read; check that it exists and its permissions")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is larger than any certificate bundle.
    #[error("{0:?} is larger than {MAX_FILE} bytes; is it the right file?")]
    TooLarge(PathBuf),
}

impl Files {
    /// Reads all three files, and a hash over them that changes when any of them does.
    pub async fn read(&self) -> Result<(Pem, [u8; 32]), FilesError> {
        let pem =
            Pem { ca: read(&self.ca).await?, cert: read(&self.cert).await?, key: read(&self.key).await? };
        let hash = hash(&pem);
        Ok((pem, hash))
    }
}

/// Changes when any of the three parts does.
pub(crate) fn hash(pem: &Pem) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in [&pem.ca, &pem.cert, &pem.key] {
        // Hashed one by one first, so that bytes moved from one file to the next are a change.
        hash.update(Sha256::digest(part));
    }
    hash.finalize().into()
}

pub(crate) async fn read(path: &PathBuf) -> Result<Vec<u8>, FilesError> {
    let failed = |source| FilesError::Read { path: path.clone(), source };
    let file = File::open(path).await.map_err(failed)?;
    let mut content = Vec::new();
    let read = file.take(MAX_FILE + 1).read_to_end(&mut content).await.map_err(failed)?;
    if read as u64 > MAX_FILE { Err(FilesError::TooLarge(path.clone())) } else { Ok(content) }
}
