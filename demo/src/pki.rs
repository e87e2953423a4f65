//! An event path's certificate files.

use std::path::{Path, PathBuf};

use anyhow::Result;
use jiff::{SignedDuration, Timestamp};
use tidewatch_certs::{Ca, ClientRequest, Issued, ServerRequest};

use crate::files::write_private;

const CA_VALIDITY: SignedDuration = SignedDuration::from_hours(24 * 365);
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

/// CA and receiver certificate for `localhost` and 127.0.0.1.
pub struct EventPath {
    /// The CA.
    pub ca: Ca,
    /// Its certificate file.
    pub ca_file: PathBuf,
    /// The receiver's.
    pub server: Identity,
}

impl EventPath {
    /// Creates it in `folder`.
    pub fn create(folder: &Path) -> Result<Self> {
        let now = Timestamp::now();
        let ca = Ca::create("tidewatch-event-path", CA_VALIDITY, now)?;
        let request = ServerRequest {
            common_name: "tidewatch-receiver".to_owned(),
            dns_names: vec!["localhost".to_owned()],
            ip_addrs: vec!["127.0.0.1".parse()?],
            validity: VALIDITY,
        };
        let issued = ca.issue_server(&request, now)?;
        let ca_file = folder.join("ca.crt");
        write_private(&ca_file, ca.cert_pem())?;
        let server = write(folder, "server", issued)?;
        Ok(Self { ca, ca_file, server })
    }
}

/// Issues an agent's certificate in `folder`.
pub fn issue(ca: &Ca, folder: &Path, runtime_id: &str, domain: &str) -> Result<Identity> {
    let request = ClientRequest {
        runtime_id: runtime_id.to_owned(),
        dns_names: vec![domain.to_owned()],
        organizations: Vec::new(),
        validity: VALIDITY,
    };
    let issued = ca.issue_client(&request, Timestamp::now())?;
    write(folder, runtime_id, issued)
}

fn write(folder: &Path, name: &str, issued: Issued) -> Result<Identity> {
    let (cert, key) = (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")));
    write_private(&cert, &issued.cert_pem)?;
    write_private(&key, issued.key_pem.as_str())?;
    Ok(Identity { issued, cert, key })
}
