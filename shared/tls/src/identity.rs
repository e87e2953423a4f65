//! Identities of peers.

use crate::bundle::timestamp;
use jiff::Timestamp;
use rustls_pki_types::CertificateDer;
use std::{net::IpAddr, sync::Arc};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Most alternative names, to bound comparisons.
pub const MAX_SANS: usize = 100;

/// Identity in a leaf certificate. Trust it only after a verifying handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// Only common name; an agent's runtime id.
    pub common_name: String,
    /// DNS names.
    pub dns_names: Vec<String>,
    /// Addresses.
    pub ip_addrs: Vec<IpAddr>,
    /// URIs.
    pub uris: Vec<String>,
    /// Start.
    pub not_before: Timestamp,
    /// End.
    pub not_after: Timestamp,
    /// Certificate (DER).
    pub certificate: Arc<[u8]>,
}

/// Error of an identity, with a metric [`label`](Self::label).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// No certificate.
    #[error("the peer showed no certificate; clients must authenticate with one")]
    NoCertificate,
    /// Malformed.
    #[error("the peer's certificate is malformed; issue a new one")]
    Malformed,
    /// No common name.
    #[error("the peer's certificate has no common name; issue one with the runtime id as common name")]
    NoCommonName,
    /// Empty common name.
    #[error("the peer's certificate has an empty common name; issue one with the runtime id as common name")]
    EmptyCommonName,
    /// Several common names: programs differ in their choice.
    #[error("the peer's certificate has several common names; issue one with the runtime id only")]
    SeveralCommonNames,
    /// More than [`MAX_SANS`] names.
    #[error("the peer's certificate has {0} alternative names; at most {MAX_SANS} are accepted")]
    TooManySans(usize),
}

impl IdentityError {
    /// Metric label.
    pub fn label(self) -> &'static str {
        match self {
            Self::NoCertificate => "no_certificate",
            Self::Malformed => "malformed",
            Self::NoCommonName => "no_common_name",
            Self::EmptyCommonName => "empty_common_name",
            Self::SeveralCommonNames => "several_common_names",
            Self::TooManySans(_) => "too_many_sans",
        }
    }
}

impl PeerIdentity {
    /// Identity of rustls' peer certificates, leaf first.
    pub fn from_chain(chain: Option<&[CertificateDer<'_>]>) -> Result<Self, IdentityError> {
        Self::from_leaf(chain.and_then(<[_]>::first).ok_or(IdentityError::NoCertificate)?)
    }

    /// Identity of one certificate.
    pub fn from_leaf(leaf: &CertificateDer<'_>) -> Result<Self, IdentityError> {
        let (rest, parsed) = X509Certificate::from_der(leaf).map_err(|_| IdentityError::Malformed)?;
        if !rest.is_empty() {
            return Err(IdentityError::Malformed);
        }
        let mut identity = Self {
            common_name: common_name(&parsed)?,
            dns_names: Vec::new(),
            ip_addrs: Vec::new(),
            uris: Vec::new(),
            not_before: timestamp(parsed.validity().not_before.timestamp()),
            not_after: timestamp(parsed.validity().not_after.timestamp()),
            certificate: Arc::from(leaf.as_ref()),
        };
        // Malformed or repeated extension.
        let sans = parsed.subject_alternative_name().map_err(|_| IdentityError::Malformed)?;
        let names = sans.map_or(&[][..], |sans| &sans.value.general_names);
        if names.len() > MAX_SANS {
            return Err(IdentityError::TooManySans(names.len()));
        }
        for name in names {
            match name {
                GeneralName::DNSName(name) => identity.dns_names.push((*name).to_owned()),
                GeneralName::URI(uri) => identity.uris.push((*uri).to_owned()),
                GeneralName::IPAddress(bytes) => identity.ip_addrs.push(address(bytes)?),
                GeneralName::Invalid(..) => return Err(IdentityError::Malformed),
                _ => {}
            }
        }
        Ok(identity)
    }
}

fn common_name(certificate: &X509Certificate<'_>) -> Result<String, IdentityError> {
    let mut names = certificate.subject().iter_common_name();
    let name = names.next().ok_or(IdentityError::NoCommonName)?;
    if names.next().is_some() {
        return Err(IdentityError::SeveralCommonNames);
    }
    let name = name.as_str().map_err(|_| IdentityError::Malformed)?;
    if name.is_empty() { Err(IdentityError::EmptyCommonName) } else { Ok(name.to_owned()) }
}

fn address(bytes: &[u8]) -> Result<IpAddr, IdentityError> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Ok(v4.into());
    }
    <[u8; 16]>::try_from(bytes).map(Into::into).map_err(|_| IdentityError::Malformed)
}
