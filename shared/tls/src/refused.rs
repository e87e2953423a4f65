//! Refused certificates, for diagnosis.
//!
//! Names are unverified, bounded and printable.

use crate::bundle::timestamp;
use jiff::Timestamp;
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use rustls_pki_types::{CertificateDer, UnixTime};
use std::sync::{Arc, OnceLock};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Longest name, in characters.
const MAX_NAME: usize = 160;

tokio::task_local! {
    static REFUSED: RefusedCertificate;
}

/// Names in a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// Only common name.
    pub common_name: Option<String>,
    /// Subject.
    pub subject: String,
    /// Issuer.
    pub issuer: String,
    /// End.
    pub not_after: Timestamp,
}

impl Names {
    /// Parses a certificate, `None` if invalid.
    pub fn of(der: &[u8]) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(der).ok()?;
        let mut names = parsed.subject().iter_common_name();
        let common_name = names.next().filter(|_| names.next().is_none());
        Some(Self {
            common_name: common_name.and_then(|name| name.as_str().ok()).map(str::to_owned),
            subject: printable(&parsed.subject().to_string()),
            issuer: printable(&parsed.issuer().to_string()),
            not_after: timestamp(parsed.validity().not_after.timestamp()),
        })
    }
}

fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).take(MAX_NAME).collect()
}

/// Certificate refused by a handshake. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct RefusedCertificate(Arc<OnceLock<Names>>);

impl RefusedCertificate {
    /// Records a refusal by this crate's configuration.
    pub async fn during<F: Future>(&self, handshake: F) -> F::Output {
        REFUSED.scope(self.clone(), handshake).await
    }

    /// Names in the certificate.
    pub fn names(&self) -> Option<&Names> {
        self.0.get()
    }
}

#[derive(Debug)]
pub(crate) struct Attributing(pub(crate) Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for Attributing {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.0.verify_client_cert(end_entity, intermediates, now).inspect_err(|_| {
            // Fails outside of `during`.
            let _ = REFUSED.try_with(|refused| Names::of(end_entity).map(|names| refused.0.set(names)));
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
