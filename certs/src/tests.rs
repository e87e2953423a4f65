//! Chains are verified independently, by rustls.

use std::{net::IpAddr, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use rustls::{
    CertificateError, RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::{CryptoProvider, aws_lc_rs},
    server::WebPkiClientVerifier,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject};
use x509_parser::prelude::{FromDer, ParsedExtension, X509Certificate};

use crate::{Ca, ClientRequest, Error, Issued, ServerRequest, secret, secret::SecretError};

pub(crate) const DAY: SignedDuration = SignedDuration::from_hours(24);

pub(crate) fn now() -> Timestamp {
    "2026-11-21T10:00:00Z".parse().unwrap()
}

pub(crate) fn ca() -> Ca {
    Ca::create("tidewatch test CA", DAY * 90, now()).unwrap()
}

pub(crate) fn client_request() -> ClientRequest {
    ClientRequest {
        runtime_id: "11111111-2222-4333-8444-555555555555".into(),
        dns_names: vec!["runtime.example.com".into(), "skr-webhook.kyma-system.svc".into()],
        organizations: vec![],
        validity: DAY * 60,
    }
}

fn server_request() -> ServerRequest {
    ServerRequest {
        common_name: "receiver".into(),
        dns_names: vec!["receiver.example.com".into()],
        ip_addrs: vec![IpAddr::from([127, 0, 0, 1])],
        validity: DAY,
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn roots(ca: &Ca) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add(der(ca.cert_pem())).unwrap();
    Arc::new(roots)
}

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

fn unix(time: Timestamp) -> UnixTime {
    UnixTime::since_unix_epoch(std::time::Duration::from_secs(time.as_second().try_into().unwrap()))
}

fn verify_client(ca: &Ca, issued: &Issued, at: Timestamp) -> Result<(), rustls::Error> {
    verify_client_pem(ca, &issued.cert_pem, at)
}

pub(crate) fn verify_client_pem(ca: &Ca, cert_pem: &str, at: Timestamp) -> Result<(), rustls::Error> {
    WebPkiClientVerifier::builder_with_provider(roots(ca), provider())
        .build()
        .unwrap()
        .verify_client_cert(&der(cert_pem), &[], unix(at))
        .map(|_| ())
}

fn verify_server(ca: &Ca, issued: &Issued, name: &str) -> Result<(), rustls::Error> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    WebPkiServerVerifier::builder_with_provider(roots(ca), provider())
        .build()
        .unwrap()
        .verify_server_cert(&der(&issued.cert_pem), &[], &name, &[], unix(now()))
        .map(|_| ())
}

fn certificate_error(result: Result<(), rustls::Error>) -> CertificateError {
    match result {
        Err(rustls::Error::InvalidCertificate(error)) => error,
        other => panic!("expected a certificate error, got {other:?}"),
    }
}

#[test]
fn a_client_certificate_verifies_for_clients_only() {
    let ca = ca();
    let issued = ca.issue_client(&client_request(), now()).unwrap();
    verify_client(&ca, &issued, now()).unwrap();
    verify_client(&ca, &issued, now() - SignedDuration::from_mins(4)).unwrap();
    let error = certificate_error(verify_server(&ca, &issued, "runtime.example.com"));
    assert!(
        matches!(error, CertificateError::InvalidPurposeContext { .. } | CertificateError::InvalidPurpose),
        "{error:?}"
    );
}

#[test]
fn a_server_certificate_verifies_for_its_names_only() {
    let ca = ca();
    let issued = ca.issue_server(&server_request(), now()).unwrap();
    verify_server(&ca, &issued, "receiver.example.com").unwrap();
    verify_server(&ca, &issued, "127.0.0.1").unwrap();
    let error = certificate_error(verify_server(&ca, &issued, "other.example.com"));
    assert!(
        matches!(error, CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }),
        "{error:?}"
    );
    verify_client(&ca, &issued, now()).unwrap_err();
}

#[test]
fn the_wrong_ca_of_the_same_name_does_not_verify() {
    let issued = ca().issue_client(&client_request(), now()).unwrap();
    let error = certificate_error(verify_client(&ca(), &issued, now()));
    assert!(matches!(error, CertificateError::BadSignature | CertificateError::UnknownIssuer), "{error:?}");
}

#[test]
fn an_expired_and_a_future_certificate_do_not_verify() {
    let ca = ca();
    let issued = ca.issue_client(&client_request(), now()).unwrap();
    assert_eq!(issued.not_after, now() + DAY * 60);
    verify_client(&ca, &issued, issued.not_after).unwrap();
    let late = certificate_error(verify_client(&ca, &issued, issued.not_after + DAY));
    assert!(matches!(late, CertificateError::Expired | CertificateError::ExpiredContext { .. }), "{late:?}");
    let early = certificate_error(verify_client(&ca, &issued, now() - SignedDuration::from_mins(6)));
    assert!(
        matches!(early, CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }),
        "{early:?}"
    );
}

#[test]
fn subject_usages_and_identifiers_are_as_asked() {
    let ca = ca();
    let request = ClientRequest { organizations: vec!["system:masters".into()], ..client_request() };
    let issued = ca.issue_client(&request, now()).unwrap();
    let (ca_der, cert_der) = (der(ca.cert_pem()), der(&issued.cert_pem));
    let (_, ca_cert) = X509Certificate::from_der(&ca_der).unwrap();
    let (_, cert) = X509Certificate::from_der(&cert_der).unwrap();

    let common_names: Vec<_> = cert.subject().iter_common_name().map(|name| name.as_str().unwrap()).collect();
    assert_eq!(common_names, [request.runtime_id.as_str()]);
    let organizations: Vec<_> =
        cert.subject().iter_organization().map(|name| name.as_str().unwrap()).collect();
    assert_eq!(organizations, ["system:masters"]);
    let names: Vec<_> = cert
        .subject_alternative_name()
        .unwrap()
        .unwrap()
        .value
        .general_names
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(names, ["DNSName(runtime.example.com)", "DNSName(skr-webhook.kyma-system.svc)"]);

    let usage = cert.key_usage().unwrap().unwrap().value;
    assert!(usage.digital_signature() && usage.key_encipherment() && !usage.key_cert_sign());
    let extended = cert.extended_key_usage().unwrap().unwrap().value;
    assert!(extended.client_auth && !extended.server_auth);
    assert!(ca_cert.is_ca() && !cert.is_ca());

    let subject_id = |cert: &X509Certificate<'_>| {
        cert.extensions().iter().find_map(|ext| match ext.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
            _ => None,
        })
    };
    let authority_id = cert.extensions().iter().find_map(|ext| match ext.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(id) => id.key_identifier.as_ref().map(|id| id.0.to_vec()),
        _ => None,
    });
    assert!(authority_id.is_some());
    assert_eq!(authority_id, subject_id(&ca_cert));
    assert!(subject_id(&cert).is_some(), "no subject key identifier");
    assert_ne!(subject_id(&cert), subject_id(&ca_cert));
}

#[test]
fn serials_and_keys_differ() {
    let ca = ca();
    let one = ca.issue_client(&client_request(), now()).unwrap();
    let two = ca.issue_client(&client_request(), now()).unwrap();
    let serial = |issued: &Issued| {
        let der = der(&issued.cert_pem);
        X509Certificate::from_der(&der).unwrap().1.serial.to_bytes_be()
    };
    assert_ne!(serial(&one), serial(&two));
    assert_ne!(one.key_pem, two.key_pem);
    PrivateKeyDer::from_pem_slice(one.key_pem.as_str().as_bytes()).unwrap();
}

#[test]
fn a_restored_ca_issues_certificates_of_the_same_ca() {
    let first = ca();
    let again = Ca::from_pem(first.cert_pem(), first.key_pem().as_str()).unwrap();
    assert_eq!(again.cert_pem(), first.cert_pem());
    assert_eq!(again.not_after(), first.not_after());
    let issued = again.issue_client(&client_request(), now()).unwrap();
    verify_client(&first, &issued, now()).unwrap();
}

#[test]
fn an_invalid_ca_is_refused() {
    let ca = ca();
    let other = self::ca();
    let leaf = ca.issue_client(&client_request(), now()).unwrap();
    let read = |cert: &str, key: &str| Ca::from_pem(cert, key).unwrap_err();
    assert!(matches!(read(&leaf.cert_pem, leaf.key_pem.as_str()), Error::NotACa));
    assert!(matches!(read(ca.cert_pem(), other.key_pem().as_str()), Error::KeyMismatch));
    assert!(matches!(read("nonsense", ca.key_pem().as_str()), Error::ParseCertificate(_)));
    assert!(matches!(read(ca.cert_pem(), "nonsense"), Error::ParseKey));
}

#[test]
fn no_certificate_outlives_its_ca() {
    let ca = ca();
    let long = ClientRequest { validity: DAY * 400, ..client_request() };
    assert_eq!(ca.issue_client(&long, now()).unwrap().not_after, ca.not_after());
    assert!(matches!(
        ca.issue_client(&client_request(), ca.not_after()),
        Err(Error::CaExpired(end)) if end == ca.not_after()
    ));
}

#[test]
fn unusable_requests_are_refused() {
    let ca = ca();
    let refused = |change: fn(&mut ClientRequest)| {
        let mut request = client_request();
        change(&mut request);
        ca.issue_client(&request, now()).unwrap_err()
    };
    assert!(matches!(refused(|r| r.runtime_id.clear()), Error::CommonName(0)));
    assert!(matches!(refused(|r| r.runtime_id = "x".repeat(65)), Error::CommonName(65)));
    assert!(matches!(refused(|r| r.validity = SignedDuration::ZERO), Error::Validity(_)));
    assert!(matches!(refused(|r| r.validity = SignedDuration::MAX), Error::Validity(_)));
    assert!(matches!(refused(|r| r.dns_names.push("bücher.example".into())), Error::Name { .. }));
    assert!(matches!(refused(|r| r.dns_names.push(String::new())), Error::Name { .. }));
    assert!(matches!(refused(|r| r.organizations.push("a\nb".into())), Error::Name { .. }));
}

#[test]
fn debug_shows_no_key() {
    let ca = ca();
    let issued = ca.issue_client(&client_request(), now()).unwrap();
    let secret = secret::to_secret("agent", "kyma-system", &secret::TlsFiles::of(&issued, ca.cert_pem()));
    let files = secret::from_secret(&secret).unwrap();
    for text in [format!("{ca:?} {:?}", ca.key_pem()), format!("{issued:?}"), format!("{files:?}")] {
        assert!(!text.contains("PRIVATE KEY"), "{text}");
    }
}

#[test]
fn a_secret_round_trips_and_missing_keys_are_named() {
    let ca = ca();
    let issued = ca.issue_client(&client_request(), now()).unwrap();
    let whole = secret::to_secret("agent", "kyma-system", &secret::TlsFiles::of(&issued, ca.cert_pem()));
    assert_eq!(whole.type_.as_deref(), Some("kubernetes.io/tls"));
    let files = secret::from_secret(&whole).unwrap();
    assert_eq!(files.cert_pem, issued.cert_pem);
    assert_eq!(files.key_pem, issued.key_pem);
    assert_eq!(files.ca_bundle_pem, ca.cert_pem());

    for key in [secret::TLS_CRT, secret::TLS_KEY, secret::CA_CRT] {
        let missing = SecretError::Missing { secret: "kyma-system/agent".into(), key };
        let mut absent = whole.clone();
        absent.data.as_mut().unwrap().remove(key);
        assert_eq!(secret::from_secret(&absent).unwrap_err(), missing);
        let mut empty = whole.clone();
        empty.data.as_mut().unwrap().get_mut(key).unwrap().0.clear();
        assert_eq!(secret::from_secret(&empty).unwrap_err(), missing);
        let mut binary = whole.clone();
        binary.data.as_mut().unwrap().get_mut(key).unwrap().0 = vec![0xff, 0xfe];
        let not_text = SecretError::NotText { secret: "kyma-system/agent".into(), key };
        assert_eq!(secret::from_secret(&binary).unwrap_err(), not_text);
    }
}

#[test]
fn a_certificate_is_issued_for_its_name_by_a_ca_of_the_bundle() {
    let (ca, other) = (ca(), Ca::create("tidewatch test CA", DAY * 90, now()).unwrap());
    let issued = ca.issue_client(&client_request(), now()).unwrap();
    let name = client_request().runtime_id;
    let is = |name: &str, bundle: &str| {
        crate::is_issued_for(issued.cert_pem.as_bytes(), name, bundle.as_bytes()).unwrap()
    };
    assert!(is(&name, ca.cert_pem()));
    assert!(is(&name, &format!("{}{}", other.cert_pem(), ca.cert_pem())), "during a rotation");
    assert!(!is(&name, other.cert_pem()), "a CA of the same name");
    assert!(!is("another-runtime", ca.cert_pem()));
    assert!(!is(&name, "no PEM"));
    assert!(crate::is_issued_for(b"no PEM", &name, ca.cert_pem().as_bytes()).is_err());
}
