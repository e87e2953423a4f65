//! Facts of an issued certificate.

use jiff::Timestamp;
use x509_parser::{
    certificate::X509Certificate,
    pem::{Pem, parse_x509_pem},
    prelude::AttributeTypeAndValue,
};

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
    let block = first(pem)?;
    let certificate = parse(&block)?;
    let time = |time: x509_parser::time::ASN1Time| {
        Timestamp::from_second(time.timestamp()).map_err(|e| malformed(e.into()))
    };
    let validity = certificate.validity();
    Ok(Validity { not_before: time(validity.not_before)?, not_after: time(validity.not_after)? })
}

/// Whether the first certificate of a PEM text has exactly this common name, and is signed by a CA of `bundle`.
///
/// Ignores the validity. Unreadable parts of the bundle are skipped.
pub fn is_issued_for(pem: &[u8], common_name: &str, bundle: &[u8]) -> Result<bool, Error> {
    let block = first(pem)?;
    let certificate = parse(&block)?;
    let names: Vec<_> = certificate.subject().iter_common_name().map(AttributeTypeAndValue::as_str).collect();
    let is_named = matches!(names.as_slice(), [Ok(name)] if *name == common_name);
    let is_signed = Pem::iter_from_buffer(bundle).flatten().any(|ca| {
        ca.parse_x509().is_ok_and(|ca| certificate.verify_signature(Some(ca.public_key())).is_ok())
    });
    Ok(is_named && is_signed)
}

fn first(pem: &[u8]) -> Result<Pem, Error> {
    Ok(parse_x509_pem(pem).map_err(|e| malformed(e.into()))?.1)
}

fn parse(block: &Pem) -> Result<X509Certificate<'_>, Error> {
    block.parse_x509().map_err(|e| malformed(e.into()))
}

fn malformed(error: Box<dyn std::error::Error + Send + Sync>) -> Error {
    Error::ParseCertificate(error)
}
