//! Certificates, keys and their TLS configurations.

use crate::refused::Attributing;
use jiff::Timestamp;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::Resumption,
    crypto::CryptoProvider,
    server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier},
    sign::CertifiedKey,
    version::TLS13,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem, pem::PemObject};
use std::{fmt, sync::Arc};
use x509_parser::prelude::{FromDer, X509Certificate};

/// A rotation needs two or three.
const MAX_CERTIFICATES: usize = 32;

/// PEM texts of one side. `Debug` hides the key.
#[derive(Clone, PartialEq, Eq)]
pub struct Pem {
    /// CAs of the peer.
    pub ca: Vec<u8>,
    /// Own certificate, then intermediates.
    pub cert: Vec<u8>,
    /// Own key.
    pub key: Vec<u8>,
}

/// Parsed texts with matching key.
pub struct Bundle {
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    not_before: Timestamp,
    not_after: Timestamp,
}

/// Error of a bundle, without key text.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// Invalid PEM.
    #[error("the {part} is not valid PEM; give one or more CERTIFICATE blocks")]
    Certificates {
        /// `CA bundle` or `certificate chain`.
        part: &'static str,
        /// Cause.
        #[source]
        source: pem::Error,
    },
    /// No certificate.
    #[error("the {0} has no certificate; give one or more CERTIFICATE blocks")]
    NoCertificate(&'static str),
    /// Too many certificates.
    #[error("the {0} has more than {MAX_CERTIFICATES} certificates; remove the unused ones")]
    TooMany(&'static str),
    /// Invalid X.509.
    #[error("certificate {number} of the {part} is not a valid X.509 certificate; issue it again")]
    Malformed {
        /// `CA bundle` or `certificate chain`.
        part: &'static str,
        /// From 1.
        number: usize,
    },
    /// Unreadable key. The parser's error could quote it.
    #[error("the private key cannot be read; give one PRIVATE KEY block (PKCS#8, SEC1 or PKCS#1)")]
    Key,
    /// Key of another certificate.
    #[error("the private key does not belong to the certificate; give the two that were issued together")]
    KeyMismatch,
    /// Expired.
    #[error("the certificate expired at {0}; issue a new one")]
    Expired(Timestamp),
    /// Not valid yet.
    #[error("the certificate is not valid before {0}; check the clocks")]
    NotYetValid(Timestamp),
    /// No client verifier.
    #[error("the CA bundle cannot be used to verify clients; check its certificates")]
    Verifier(#[source] VerifierBuilderError),
    /// Refused by rustls.
    #[error("the TLS library refused the configuration; check the certificate and its key")]
    Tls(#[source] rustls::Error),
}

/// Crypto provider of all programs.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// Returns a server configuration that requires client certificates of a CA in `ca_pem`. Does not check validity; see
/// [`Store`](crate::Store).
pub fn server_config(
    ca_pem: &[u8],
    cert_pem: &[u8],
    key_pem: &[u8],
) -> Result<Arc<ServerConfig>, BundleError> {
    Bundle::parse(&Pem { ca: ca_pem.into(), cert: cert_pem.into(), key: key_pem.into() })?.server()
}

/// Returns a client configuration that trusts CAs in `ca_pem` for the dialled name.
pub fn client_config(
    ca_pem: &[u8],
    cert_pem: &[u8],
    key_pem: &[u8],
) -> Result<Arc<ClientConfig>, BundleError> {
    Bundle::parse(&Pem { ca: ca_pem.into(), cert: cert_pem.into(), key: key_pem.into() })?.client()
}

impl Bundle {
    /// Parses and checks the parts.
    pub fn parse(pem: &Pem) -> Result<Self, BundleError> {
        let mut roots = RootCertStore::empty();
        for (index, ca) in certificates("CA bundle", &pem.ca)?.into_iter().enumerate() {
            let malformed = |_| BundleError::Malformed { part: "CA bundle", number: index + 1 };
            roots.add(ca).map_err(malformed)?;
        }
        let chain = certificates("certificate chain", &pem.cert)?;
        let mut validity = None;
        for (index, der) in chain.iter().enumerate() {
            let malformed = || BundleError::Malformed { part: "certificate chain", number: index + 1 };
            let (_, parsed) = X509Certificate::from_der(der).map_err(|_| malformed())?;
            validity.get_or_insert_with(|| parsed.validity().clone());
        }
        let validity = validity.ok_or(BundleError::NoCertificate("certificate chain"))?;
        let key = PrivateKeyDer::from_pem_slice(&pem.key).map_err(|_| BundleError::Key)?;
        CertifiedKey::from_der(chain.clone(), key.clone_key(), &provider()).map_err(key_error)?;
        Ok(Self {
            roots: Arc::new(roots),
            chain,
            key,
            not_before: timestamp(validity.not_before.timestamp()),
            not_after: timestamp(validity.not_after.timestamp()),
        })
    }

    /// End of the own certificate.
    pub fn not_after(&self) -> Timestamp {
        self.not_after
    }

    pub(crate) fn roots(&self) -> Arc<RootCertStore> {
        Arc::clone(&self.roots)
    }

    /// Checks that the own certificate is valid at `now`.
    pub fn check(&self, now: Timestamp) -> Result<(), BundleError> {
        if now < self.not_before {
            return Err(BundleError::NotYetValid(self.not_before));
        }
        if now >= self.not_after {
            return Err(BundleError::Expired(self.not_after));
        }
        Ok(())
    }

    /// Returns the [`server_config`].
    pub fn server(&self) -> Result<Arc<ServerConfig>, BundleError> {
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&self.roots), provider())
            .build()
            .map_err(BundleError::Verifier)?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(BundleError::Tls)?
            .with_client_cert_verifier(Arc::new(Attributing(verifier)))
            .with_single_cert(self.chain.clone(), self.key.clone_key())
            .map_err(key_error)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Arc::new(config))
    }

    /// Returns the [`client_config`].
    pub fn client(&self) -> Result<Arc<ClientConfig>, BundleError> {
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(BundleError::Tls)?
            .with_root_certificates(Arc::clone(&self.roots))
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())
            .map_err(key_error)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }
}

impl fmt::Debug for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bundle").field("not_after", &self.not_after).finish_non_exhaustive()
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pem").finish_non_exhaustive()
    }
}

pub(crate) fn certificates(
    part: &'static str,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, BundleError> {
    let mut found = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        if found.len() == MAX_CERTIFICATES {
            return Err(BundleError::TooMany(part));
        }
        found.push(certificate.map_err(|source| BundleError::Certificates { part, source })?);
    }
    if found.is_empty() { Err(BundleError::NoCertificate(part)) } else { Ok(found) }
}

fn key_error(error: rustls::Error) -> BundleError {
    match error {
        rustls::Error::InconsistentKeys(_) => BundleError::KeyMismatch,
        rustls::Error::General(_) => BundleError::Key,
        other => BundleError::Tls(other),
    }
}

/// Clamps: year 9999 is out of range.
pub(crate) fn timestamp(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap_or(if seconds < 0 { Timestamp::MIN } else { Timestamp::MAX })
}
