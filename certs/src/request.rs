//! Certificate signing requests of agents (PKCS#10).

use jiff::Timestamp;
use rcgen::{
    CertificateParams, CertificateSigningRequestParams, DistinguishedName, ExtendedKeyUsagePurpose, KeyPair,
    PublicKey,
};
use x509_parser::{
    certification_request::X509CertificationRequest,
    oid_registry::{OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY},
    prelude::FromDer,
};

use crate::{
    Ca, ClientRequest, Error, PrivateKeyPem,
    issue::{dns_sans, new_key, to_date_time},
};

/// Longest accepted request, in bytes of PEM. A P-256 request without extensions has about 400.
const MAX_REQUEST: usize = 8 * 1024;

/// A request whose signature proves that its sender has the private key.
///
/// Only the public key is kept: the CA decides about names, usages and validity.
#[derive(Debug)]
pub struct AgentRequest(PublicKey);

/// Reason to refuse a request.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Longer than the limit.
    #[error("the request has {0} bytes: at most {MAX_REQUEST} are accepted")]
    TooLong(usize),
    /// Not one PKCS#10 request.
    #[error("the request cannot be parsed: give one PEM block CERTIFICATE REQUEST")]
    Malformed,
    /// Not signed by the key in it.
    #[error("the request is not signed by its own key: sign it with the private key of its public key")]
    Signature,
    /// A weak or unsupported key.
    #[error("the request's key is not accepted: use ECDSA with the curve P-256")]
    Key,
}

/// A signed certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// Certificate (PEM), without the CA.
    pub cert_pem: String,
    /// End.
    pub not_after: Timestamp,
}

impl AgentRequest {
    /// Parses a PEM request of at most 8 KiB, and verifies its signature and key.
    ///
    /// Only ECDSA P-256 is accepted, the one kind of key that agents create.
    pub fn parse(pem: &[u8]) -> Result<Self, RequestError> {
        if pem.len() > MAX_REQUEST {
            return Err(RequestError::TooLong(pem.len()));
        }
        let (rest, block) = x509_parser::pem::parse_x509_pem(pem).map_err(|_| RequestError::Malformed)?;
        let is_alone = rest.iter().all(u8::is_ascii_whitespace);
        if block.label != "CERTIFICATE REQUEST" || !is_alone {
            return Err(RequestError::Malformed);
        }
        let (rest, request) =
            X509CertificationRequest::from_der(&block.contents).map_err(|_| RequestError::Malformed)?;
        let key = &request.certification_request_info.subject_pki.algorithm;
        let curve = key.parameters.as_ref().and_then(|parameters| parameters.as_oid().ok());
        if key.algorithm != OID_KEY_TYPE_EC_PUBLIC_KEY || curve != Some(OID_EC_P256) {
            return Err(RequestError::Key);
        }
        if !rest.is_empty() {
            return Err(RequestError::Malformed);
        }
        let parsed = CertificateSigningRequestParams::from_der(&block.contents.into());
        let parsed = parsed.map_err(|error| match error {
            rcgen::Error::InvalidCertificationRequestSignature => RequestError::Signature,
            _ => RequestError::Malformed,
        })?;
        Ok(Self(parsed.public_key))
    }
}

/// Creates a key for an agent.
pub fn create_key() -> Result<PrivateKeyPem, Error> {
    Ok(PrivateKeyPem::new(new_key()?.serialize_pem()))
}

/// Creates a request (PEM) for a key. It names nothing, because the signer ignores names.
pub fn create_request(key: &PrivateKeyPem) -> Result<String, Error> {
    let key = KeyPair::from_pem(key.as_str()).map_err(|_| Error::ParseKey)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(&key).and_then(|request| request.pem());
    request.map_err(|e| Error::Crypto("create the certificate signing request", e))
}

impl Ca {
    /// Signs a client certificate for the key of `request`, with the names of `client`. Its validity does not begin before `earliest`.
    pub fn sign_client(
        &self,
        request: &AgentRequest,
        client: &ClientRequest,
        earliest: Timestamp,
        now: Timestamp,
    ) -> Result<Signed, Error> {
        let ClientRequest { runtime_id, dns_names, organizations, validity } = client;
        let names = dns_sans(dns_names)?;
        let usage = ExtendedKeyUsagePurpose::ClientAuth;
        let (mut params, not_after) =
            self.end_entity(runtime_id, organizations, names, usage, *validity, now)?;
        params.not_before =
            to_date_time(earliest).map_or(params.not_before, |time| time.max(params.not_before));
        let cert = params
            .signed_by(&request.0, &self.issuer)
            .map_err(|e| Error::Crypto("sign the certificate", e))?;
        Ok(Signed { cert_pem: cert.pem(), not_after })
    }
}

#[cfg(test)]
mod tests;
