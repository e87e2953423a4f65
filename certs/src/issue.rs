//! Issues certificates.

use std::net::IpAddr;

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, SanType, SerialNumber, string::Ia5String,
};

use crate::{Ca, Error, PrivateKeyPem};

/// Backdating for slow clocks, at most a tenth of the lifetime.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(5);
/// X.520.
const COMMON_NAME_LIMIT: usize = 64;
const ORGANIZATION_LIMIT: usize = 64;
const DNS_NAME_LIMIT: usize = 253;

/// Request for a server certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRequest {
    /// Common name, 1 to 64 characters. Clients ignore it.
    pub common_name: String,
    /// DNS names to dial.
    pub dns_names: Vec<String>,
    /// Addresses to dial.
    pub ip_addrs: Vec<IpAddr>,
    /// From `now`, at most until the CA's end.
    pub validity: SignedDuration,
}

/// Request for an agent's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRequest {
    /// Runtime id and common name, 1 to 64 characters.
    pub runtime_id: String,
    /// The domain and other names.
    pub dns_names: Vec<String>,
    /// Groups, for API servers. Usually empty.
    pub organizations: Vec<String>,
    /// From `now`, at most until the CA's end.
    pub validity: SignedDuration,
}

/// A certificate and its new key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issued {
    /// Certificate (PEM), without the CA.
    pub cert_pem: String,
    /// Private key (PKCS#8 PEM).
    pub key_pem: PrivateKeyPem,
    /// End.
    pub not_after: Timestamp,
}

impl Ca {
    /// Issues a server certificate (serverAuth).
    pub fn issue_server(&self, request: &ServerRequest, now: Timestamp) -> Result<Issued, Error> {
        let ServerRequest { common_name, dns_names, ip_addrs, validity } = request;
        let mut names = dns_sans(dns_names)?;
        names.extend(ip_addrs.iter().copied().map(SanType::IpAddress));
        self.issue(common_name, &[], names, ExtendedKeyUsagePurpose::ServerAuth, *validity, now)
    }

    /// Issues a client certificate (clientAuth).
    pub fn issue_client(&self, request: &ClientRequest, now: Timestamp) -> Result<Issued, Error> {
        let ClientRequest { runtime_id, dns_names, organizations, validity } = request;
        let names = dns_sans(dns_names)?;
        let usage = ExtendedKeyUsagePurpose::ClientAuth;
        self.issue(runtime_id, organizations, names, usage, *validity, now)
    }

    fn issue(
        &self,
        common_name: &str,
        organizations: &[String],
        names: Vec<SanType>,
        usage: ExtendedKeyUsagePurpose,
        validity: SignedDuration,
        now: Timestamp,
    ) -> Result<Issued, Error> {
        let (params, not_after) = self.end_entity(common_name, organizations, names, usage, validity, now)?;
        let key = new_key()?;
        let cert =
            params.signed_by(&key, &self.issuer).map_err(|e| Error::Crypto("sign the certificate", e))?;
        Ok(Issued { cert_pem: cert.pem(), key_pem: PrivateKeyPem::new(key.serialize_pem()), not_after })
    }

    /// Builds the content of a certificate that is no CA. Returns its end too.
    pub(crate) fn end_entity(
        &self,
        common_name: &str,
        organizations: &[String],
        names: Vec<SanType>,
        usage: ExtendedKeyUsagePurpose,
        validity: SignedDuration,
        now: Timestamp,
    ) -> Result<(CertificateParams, Timestamp), Error> {
        if self.not_after() <= now {
            return Err(Error::CaExpired(self.not_after()));
        }
        let (mut params, not_after) =
            base_params(common_name, organizations, validity, now, self.not_after())?;
        params.subject_alt_names = names;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        Ok((params, not_after))
    }
}

pub(crate) fn new_key() -> Result<KeyPair, Error> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|e| Error::Crypto("make a private key", e))
}

/// Builds subject, serial and validity. Returns the end too, in whole seconds.
pub(crate) fn base_params(
    common_name: &str,
    organizations: &[String],
    validity: SignedDuration,
    now: Timestamp,
    latest: Timestamp,
) -> Result<(CertificateParams, Timestamp), Error> {
    let length = common_name.chars().count();
    if length == 0 || length > COMMON_NAME_LIMIT {
        return Err(Error::CommonName(length));
    }
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, common_name);
    for organization in organizations {
        check("an organization", organization, ORGANIZATION_LIMIT)?;
        subject.push(DnType::OrganizationName, organization.as_str());
    }

    if !validity.is_positive() {
        return Err(Error::Validity(validity));
    }
    let end = now.checked_add(validity).map_err(|_| Error::Validity(validity))?.min(latest);
    let start = now.checked_sub(CLOCK_SKEW.min(validity / 10)).map_err(|_| Error::Validity(validity))?;

    let mut params = CertificateParams::default();
    params.distinguished_name = subject;
    params.serial_number = Some(SerialNumber::from_slice(&random_serial()));
    params.not_before = to_date_time(start).ok_or(Error::Validity(validity))?;
    params.not_after = to_date_time(end).ok_or(Error::Validity(validity))?;
    let end = Timestamp::from_second(end.as_second()).map_err(|_| Error::Validity(validity))?;
    Ok((params, end))
}

/// 122 random bits, never zero and positive in DER.
fn random_serial() -> [u8; 16] {
    let mut serial = uuid::Uuid::new_v4().into_bytes();
    serial[0] &= 0x7f;
    serial
}

pub(crate) fn to_date_time(time: Timestamp) -> Option<time::OffsetDateTime> {
    time::OffsetDateTime::from_unix_timestamp(time.as_second()).ok()
}

pub(crate) fn dns_sans(names: &[String]) -> Result<Vec<SanType>, Error> {
    names
        .iter()
        .map(|name| {
            check("a DNS name", name, DNS_NAME_LIMIT)?;
            Ia5String::try_from(name.as_str())
                .map(SanType::DnsName)
                .map_err(|_| unusable("a DNS name", name, DNS_NAME_LIMIT))
        })
        .collect()
}

fn check(kind: &'static str, value: &str, limit: usize) -> Result<(), Error> {
    let usable =
        !value.is_empty() && value.len() <= limit && value.bytes().all(|b| (0x20..0x7f).contains(&b));
    if usable { Ok(()) } else { Err(unusable(kind, value, limit)) }
}

fn unusable(kind: &'static str, value: &str, limit: usize) -> Error {
    Error::Name { kind, value: value.chars().take(64).collect(), limit }
}
