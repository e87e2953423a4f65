//! The CA.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::{
    Error, PrivateKeyPem,
    issue::{base_params, new_key},
};

/// A certificate authority.
pub struct Ca {
    cert_pem: String,
    key_pem: PrivateKeyPem,
    not_after: Timestamp,
    pub(crate) issuer: Issuer<'static, KeyPair>,
}

impl Ca {
    /// Creates a self-signed CA for end certificates. It is valid from 5 minutes before `now` (clock skew).
    pub fn create(common_name: &str, validity: SignedDuration, now: Timestamp) -> Result<Self, Error> {
        let mut params: CertificateParams = base_params(common_name, &[], validity, now, Timestamp::MAX)?.0;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        let key = new_key()?;
        let cert = params.self_signed(&key).map_err(|e| Error::Crypto("sign the CA certificate", e))?;
        Self::assemble(cert.pem(), cert.der(), key)
    }

    /// Parses a CA (PKCS#8 key). Checks that it may sign and matches the key.
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

    /// Certificate (PEM).
    pub fn cert_pem(&self) -> &str {
        &self.cert_pem
    }

    /// Private key (PKCS#8 PEM).
    pub fn key_pem(&self) -> &PrivateKeyPem {
        &self.key_pem
    }

    /// End of the CA, and the latest end of its certificates.
    pub fn not_after(&self) -> Timestamp {
        self.not_after
    }
}

impl fmt::Debug for Ca {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ca").field("not_after", &self.not_after).finish_non_exhaustive()
    }
}
