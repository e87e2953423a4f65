//! The source of the agent's TLS material.

use std::{fmt, path::PathBuf};
use tidewatch_tls::{Files, FilesError, Pem, read_file};
use tokio::sync::watch;

/// An agent's certificate and key (PEM). `Debug` hides the key.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// Certificate, then intermediates.
    pub cert: Vec<u8>,
    /// Private key.
    pub key: Vec<u8>,
}

/// The source of TLS material. It may change while in use.
#[derive(Clone, Debug)]
pub enum Source {
    /// Files, such as a mounted Secret.
    Files(Files),
    /// CAs in a file; certificate and key by enrolment, `None` before the first certificate.
    Enrolment {
        /// File of the receiver's CAs.
        ca: PathBuf,
        /// The newest certificate.
        identity: watch::Receiver<Option<Identity>>,
        /// The last certificate that the receiver refuses in favour of another one.
        refused: watch::Sender<Option<Identity>>,
    },
}

impl Source {
    /// Reads the material; `None` before the first certificate.
    pub async fn read(&self) -> Result<Option<Pem>, FilesError> {
        match self {
            Self::Files(files) => Ok(Some(files.read().await?)),
            Self::Enrolment { ca, identity, .. } => {
                let Some(Identity { cert, key }) = identity.borrow().clone() else { return Ok(None) };
                Ok(Some(Pem { ca: read_file(ca).await?, cert, key }))
            }
        }
    }

    /// Has the certificate in use replaced.
    pub(super) fn replace(&self) {
        if let Self::Enrolment { identity, refused, .. } = self {
            refused.send_replace(identity.borrow().clone());
        }
    }

    /// Waits for a new certificate. Files are to be read from time to time instead.
    pub(super) async fn changed(&mut self) {
        let is_open = match self {
            Self::Files(_) => false,
            Self::Enrolment { identity, .. } => identity.changed().await.is_ok(),
        };
        if !is_open {
            std::future::pending::<()>().await;
        }
    }
}

impl From<Files> for Source {
    fn from(files: Files) -> Self {
        Self::Files(files)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity([hidden])")
    }
}
