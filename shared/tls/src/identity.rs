//! Who the peer is, by its verified leaf certificate.

use crate::bundle::timestamp;
use jiff::Timestamp;
use rustls_pki_types::CertificateDer;
use std::{net::IpAddr, sync::Arc};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Most subject alternative names a certificate may have; comparing more is work without a use.
pub const MAX_SANS: usize = 100;

/// What the peer's leaf certificate says. It is as good as the verification before it: take it only from a
/// connection whose handshake required and verified the certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The subject's only common name; for an agent, the runtime id.
    pub common_name: String,
    /// Subject alternative names: DNS names, as written.
    pub dns_names: Vec<String>,
    /// Subject alternative names: addresses.
    pub ip_addrs: Vec<IpAddr>,
    /// Subject alternative names: URIs, as written.
    pub uris: Vec<String>,
    /// When the certificate begins.
    pub not_before: Timestamp,
    /// When the certificate ends.
    pub not_after: Timestamp,
    /// The certificate itself (DER).
    pub certificate: Arc<[u8]>,
}

/// Why a certificate gives no identity. The variants are few: their [`label`](Self::label) is a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// The peer showed none.
    #[error("the peer showed no certificate; clients must authenticate with one")]
    NoCertificate,
    /// It is not a well-formed certificate, or a name in it is not.
    #[error("the peer's certificate is malformed; issue a new one")]
    Malformed,
    /// Its subject has no common name.
    #[error("the peer's certificate has no common name; issue one with the runtime id as common name")]
    NoCommonName,
    /// Its subject's common name is empty.
    #[error("the peer's certificate has an empty common name; issue one with the runtime id as common name")]
    EmptyCommonName,
    /// Its subject has more than one, and who reads which differs between programs.
    #[error("the peer's certificate has several common names; issue one with the runtime id only")]
    SeveralCommonNames,
    /// It has more than [`MAX_SANS`] subject alternative names.
    #[error("the peer's certificate has {0} alternative names; at most {MAX_SANS} are accepted")]
    TooManySans(usize),
}

impl IdentityError {
    /// A stable word for metrics.
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
    /// The identity in what rustls calls the peer's certificates (the leaf comes first).
    pub fn from_chain(chain: Option<&[CertificateDer<'_>]>) -> Result<Self, IdentityError> {
        Self::from_leaf(chain.and_then(<[_]>::first).ok_or(IdentityError::NoCertificate)?)
    }

    /// The identity in one certificate.
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
        // An error here is an extension that does not parse or is there twice.
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
