//! Validity of a certificate.

use jiff::Timestamp;

use crate::Error;

/// Validity of a certificate, in whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Start.
    pub not_before: Timestamp,
    /// End.
    pub not_after: Timestamp,
}

/// Reads the validity of the first certificate of a PEM text.
pub fn validity(pem: &[u8]) -> Result<Validity, Error> {
    let malformed = |error: Box<dyn std::error::Error + Send + Sync>| Error::ParseCertificate(error);
    let (_, block) = x509_parser::pem::parse_x509_pem(pem).map_err(|e| malformed(e.into()))?;
    let certificate = block.parse_x509().map_err(|e| malformed(e.into()))?;
    let time = |time: x509_parser::time::ASN1Time| {
        Timestamp::from_second(time.timestamp()).map_err(|e| malformed(e.into()))
    };
    let validity = certificate.validity();
    Ok(Validity { not_before: time(validity.not_before)?, not_after: time(validity.not_after)? })
}
