use rustls_pki_types::{CertificateDer, pem::PemObject};
use tidewatch_listener::{Refusal, RuntimeLookup, identity::identify};
use tidewatch_tls::{MAX_SANS, Names, PeerIdentity};

use crate::assert_message;

/// A registered domain.
const DOMAIN: &str = "one.runtimes.example";

/// The first certificate of a PEM text.
pub(crate) fn certificate_of_pem(pem: &[u8]) -> Option<CertificateDer<'static>> {
    CertificateDer::from_pem_slice(pem).ok()
}

/// A client's certificate, DER or PEM, after the handshake: who it is, and which registration it belongs to.
///
/// # Panics
/// If a promise is broken.
pub fn client_certificate(data: &[u8]) {
    let der = certificate_of_pem(data).unwrap_or_else(|| CertificateDer::from(data));
    if let Some(names) = Names::of(&der) {
        for shown in [&names.subject, &names.issuer] {
            assert!(shown.chars().count() <= 160 && !shown.contains(char::is_control), "{shown:?}");
        }
    }
    let peer = match PeerIdentity::from_leaf(&der) {
        Ok(peer) => peer,
        Err(error) => {
            assert!(!error.label().is_empty());
            return assert_message(&error.to_string());
        }
    };
    assert!(!peer.common_name.is_empty());
    assert!(peer.dns_names.len() + peer.uris.len() + peer.ip_addrs.len() <= MAX_SANS);
    assert_eq!(peer.certificate.as_ref(), der.as_ref());

    let registered = |domain: &str| RuntimeLookup::One {
        kyma: "kyma".to_owned(),
        domain: Some(domain.to_owned()),
        registered: None,
    };
    let is_named = peer.dns_names.iter().any(|name| name.eq_ignore_ascii_case(DOMAIN))
        || peer.uris.iter().any(|uri| uri == DOMAIN);
    match identify(&peer, registered(DOMAIN)) {
        Ok(runtime) => {
            assert!(is_named, "the registered domain is in the certificate");
            assert_eq!(runtime.id, peer.common_name);
            // The handshake refuses a certificate that ends before it begins.
            assert!(peer.not_before > peer.not_after || runtime.renewed_by <= runtime.not_after);
        }
        Err(refusal) => {
            assert!(!is_named);
            assert_eq!(refusal, Refusal::OtherDomain(peer.common_name.clone()));
        }
    }
    // Each of its own names is a name that it may be registered with, and nothing makes up for a missing registration.
    assert!(peer.dns_names.iter().all(|name| identify(&peer, registered(name)).is_ok()));
    let others = [RuntimeLookup::Unknown, RuntimeLookup::Starting, RuntimeLookup::Ambiguous(2)];
    assert!(others.into_iter().all(|lookup| identify(&peer, lookup).is_err()));
}
