//! What a certificate says of itself, for those who have to find out why it was refused.
//!
//! Nothing of it is verified: whoever connects can claim any name. It is bounded and printable.

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

/// Longest name that is kept, in characters.
const MAX_NAME: usize = 160;

tokio::task_local! {
    /// Where the handshake at work leaves a certificate that it refuses.
    static REFUSED: RefusedCertificate;
}

/// The names in a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The subject's only common name.
    pub common_name: Option<String>,
    /// The subject.
    pub subject: String,
    /// The issuer.
    pub issuer: String,
    /// When the certificate ends.
    pub not_after: Timestamp,
}

impl Names {
    /// Reads them. `None` of what is no certificate.
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

/// Without control characters, and cut.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).take(MAX_NAME).collect()
}

/// The certificate that a handshake has refused, if one was shown. Cheap to clone; all clones are the same.
#[derive(Clone, Debug, Default)]
pub struct RefusedCertificate(Arc<OnceLock<Names>>);

impl RefusedCertificate {
    /// Remembers what `handshake` refuses, if it is one of a configuration of this crate.
    pub async fn during<F: Future>(&self, handshake: F) -> F::Output {
        REFUSED.scope(self.clone(), handshake).await
    }

    /// The names in it.
    pub fn names(&self) -> Option<&Names> {
        self.0.get()
    }
}

/// Verifies as another one does, and remembers what was refused.
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
            // Outside of `during`, nobody wants to know.
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
