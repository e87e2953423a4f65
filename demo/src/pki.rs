//! Certificate files of agents that the engine has not enrolled.

use std::path::{Path, PathBuf};

use anyhow::Result;
use jiff::{SignedDuration, Timestamp};
use tidewatch_certs::{Ca, ClientRequest, Issued};

use crate::files::write_private;

const VALIDITY: SignedDuration = SignedDuration::from_hours(24 * 60);

/// A certificate and its files.
pub struct Identity {
    /// Certificate and key.
    pub issued: Issued,
    /// Certificate file.
    pub cert: PathBuf,
    /// Key file.
    pub key: PathBuf,
}

/// Issues an agent's certificate in `folder`.
pub fn issue(ca: &Ca, folder: &Path, runtime_id: &str, domain: &str) -> Result<Identity> {
    let request = ClientRequest {
        runtime_id: runtime_id.to_owned(),
        dns_names: vec![domain.to_owned()],
        organizations: Vec::new(),
        validity: VALIDITY,
    };
    // Backdated until now, and no further: a receiver that enrols agents refuses certificates that are older than the Kyma.
    let issued = ca.issue_client(&request, Timestamp::now() + SignedDuration::from_mins(5))?;
    write(folder, runtime_id, issued)
}

/// Writes a certificate and its key into `folder`.
pub fn write(folder: &Path, name: &str, issued: Issued) -> Result<Identity> {
    let (cert, key) = (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")));
    write_private(&cert, &issued.cert_pem)?;
    write_private(&key, issued.key_pem.as_str())?;
    Ok(Identity { issued, cert, key })
}
