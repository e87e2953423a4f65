//! The certificate authority: made, read back, and what it signs with.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::{
    Error, PrivateKeyPem,
    issue::{base_params, new_key},
};

/// A certificate authority: its certificate and the key that signs.
pub struct Ca {
    cert_pem: String,
    key_pem: PrivateKeyPem,
    not_after: Timestamp,
    pub(crate) issuer: Issuer<'static, KeyPair>,
}

impl Ca {
    /// Makes a self-signed CA with a fresh key, valid from `now` (less the allowance for
    /// clock skew, 5 minutes) for `validity`. It may sign end certificates only.
    pub fn create(common_name: &str, validity: SignedDuration, now: Timestamp) -> Result<Self, Error> {
        let mut params: CertificateParams = base_params(common_name, &[], validity, now, Timestamp::MAX)?.0;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        let key = new_key()?;
        let cert = params.self_signed(&key).map_err(|e| Error::Crypto("sign the CA certificate", e))?;
        Self::assemble(cert.pem(), cert.der(), key)
    }

    /// Reads a CA back from its PEM certificate and PEM key (PKCS#8) and checks that the
    /// certificate may sign and that the key is its own.
    pub fn from_pem(cert_pem: &str, key_pem: &str) -> Result<Self, Error> {
        let der = CertificateDer::from_pem_slice(cert_pem.as_bytes())
            .map_err(|e| Error::ParseCertificate(Box::new(e)))?;
        let key = KeyPair::from_pem(key_pem).map_err(|_| Error::ParseKey)?;
        Self::assemble(cert_pem.to_owned(), &der, key)
    }

    fn assemble(cert_pem: String, der: &CertificateDer<'_>, key: KeyPair) -> Result<Self, Error> {
        let (_, parsed) = X509Certificate::from_der(der).map_err(|e| Error::ParseCertificate(Box::new(e)))?;
        let may_sign = parsed.is_ca()
            && parsed.key_usage().ok().flatten().is_none_or(|usage| usage.value.key_cert_sign());
        if !may_sign {
            return Err(Error::NotACa);
        }
        if parsed.public_key().raw != key.subject_public_key_info() {
            return Err(Error::KeyMismatch);
        }
        let not_after = Timestamp::from_second(parsed.validity().not_after.timestamp())
            .map_err(|e| Error::ParseCertificate(Box::new(e)))?;
        let key_pem = PrivateKeyPem::new(key.serialize_pem());
        let issuer = Issuer::from_ca_cert_der(der, key).map_err(|e| Error::ParseCertificate(Box::new(e)))?;
        Ok(Self { cert_pem, key_pem, not_after, issuer })
    }

    /// The CA's certificate as PEM: what peers put into their trust bundle.
    pub fn cert_pem(&self) -> &str {
        &self.cert_pem
    }

    /// The CA's private key as PEM (PKCS#8), to be kept in a Secret.
    pub fn key_pem(&self) -> &PrivateKeyPem {
        &self.key_pem
    }

    /// When the CA ends. Nothing it issues is valid for longer.
    pub fn not_after(&self) -> Timestamp {
        self.not_after
    }
}

impl fmt::Debug for Ca {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ca").field("not_after", &self.not_after).finish_non_exhaustive()
    }
}
