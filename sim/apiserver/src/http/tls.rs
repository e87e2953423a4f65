//! Server certificate and client CA.

use std::{net::Ipv4Addr, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use sha2::{Digest, Sha256};
use tidewatch_certs::{Ca, ClientRequest, Issued, ServerRequest};
use tidewatch_tls::PeerIdentity;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::error::StartError;

/// Longer than a simulation runs.
const VALIDITY: SignedDuration = SignedDuration::from_hours(30 * 24);

#[derive(Debug)]
pub(crate) struct Trust {
    ca: Ca,
    pub(crate) config: Arc<ServerConfig>,
}

impl Trust {
    pub(crate) fn create(now: Timestamp) -> Result<Self, StartError> {
        let ca = Ca::create("simulated API servers", VALIDITY, now).map_err(StartError::Certificates)?;
        let request = ServerRequest {
            common_name: "kube-apiserver".to_owned(),
            dns_names: vec!["localhost".to_owned()],
            ip_addrs: vec![Ipv4Addr::LOCALHOST.into()],
            validity: VALIDITY,
        };
        let issued = ca.issue_server(&request, now).map_err(StartError::Certificates)?;
        let config = config(&ca, &issued).map_err(StartError::Tls)?;
        Ok(Self { ca, config: Arc::new(config) })
    }

    pub(crate) fn ca_pem(&self) -> &str {
        self.ca.cert_pem()
    }

    pub(crate) fn issue(
        &self,
        common_name: &str,
        organizations: &[&str],
        now: Timestamp,
    ) -> Result<Issued, tidewatch_certs::Error> {
        let request = ClientRequest {
            runtime_id: common_name.to_owned(),
            dns_names: Vec::new(),
            organizations: organizations.iter().map(|name| (*name).to_owned()).collect(),
            validity: VALIDITY,
        };
        self.ca.issue_client(&request, now)
    }
}

/// Subject of a verified certificate.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) common_name: String,
    pub(crate) organizations: Vec<String>,
    /// Hexadecimal SHA-256 of the certificate.
    pub(crate) fingerprint: String,
}

pub(crate) fn subject(chain: Option<&[CertificateDer<'_>]>) -> Option<Subject> {
    let identity = PeerIdentity::from_chain(chain).ok()?;
    let (_, parsed) = X509Certificate::from_der(&identity.certificate).ok()?;
    let names = parsed.subject().iter_organization().filter_map(|name| name.as_str().ok());
    Some(Subject {
        organizations: names.map(str::to_owned).collect(),
        fingerprint: hex::encode(Sha256::digest(&identity.certificate)),
        common_name: identity.common_name,
    })
}

fn config(ca: &Ca, issued: &Issued) -> Result<ServerConfig, rustls::Error> {
    let general = |error: rustls::pki_types::pem::Error| rustls::Error::General(error.to_string());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.cert_pem().as_bytes()).map_err(general)?)?;
    let provider = tidewatch_tls::provider();
    // Other clients send tokens.
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .allow_unauthenticated()
        .build()
        .map_err(|error| rustls::Error::General(error.to_string()))?;
    let cert = CertificateDer::from_pem_slice(issued.cert_pem.as_bytes()).map_err(general)?;
    let key = PrivateKeyDer::from_pem_slice(issued.key_pem.as_str().as_bytes()).map_err(general)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![cert], key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // Connections are long-lived; tickets would waste memory.
    config.send_tls13_tickets = 0;
    Ok(config)
}
