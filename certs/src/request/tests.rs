use rcgen::{PKCS_ECDSA_P384_SHA384, PKCS_ED25519, SanType};

use jiff::SignedDuration;

use super::*;
use crate::{
    tests::{DAY, ca, client_request, now, verify_client_pem},
    validity,
};

fn request(key: &KeyPair, change: impl FnOnce(&mut CertificateParams)) -> String {
    let mut params = CertificateParams::default();
    change(&mut params);
    params.serialize_request(key).unwrap().pem().unwrap()
}

#[test]
fn a_request_becomes_a_certificate_with_the_registered_names_only() {
    let (key, ca) = (new_key().unwrap(), ca());
    let greedy = request(&key, |params| {
        params.distinguished_name.push(rcgen::DnType::CommonName, "another-runtime");
        params.subject_alt_names = vec![SanType::DnsName("another.example.com".try_into().unwrap())];
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    });
    let request = AgentRequest::parse(greedy.as_bytes()).unwrap();
    let signed = ca.sign_client(&request, &client_request(), Timestamp::MIN, now()).unwrap();
    verify_client_pem(&ca, &signed.cert_pem, now()).unwrap();
    let (_, block) = x509_parser::pem::parse_x509_pem(signed.cert_pem.as_bytes()).unwrap();
    let cert = block.parse_x509().unwrap();
    assert_eq!(cert.subject().to_string(), "CN=11111111-2222-4333-8444-555555555555");
    let names = &cert.subject_alternative_name().unwrap().unwrap().value.general_names;
    assert_eq!(format!("{names:?}").matches("another").count(), 0, "{names:?}");
    assert!(!cert.is_ca());
    let usage = cert.extended_key_usage().unwrap().unwrap().value;
    assert!(usage.client_auth && !usage.server_auth);
    assert_eq!(signed.not_after, now() + DAY * 60);
}

#[test]
fn an_agents_own_request_is_accepted_for_its_key() {
    let key = create_key().unwrap();
    let request = AgentRequest::parse(create_request(&key).unwrap().as_bytes()).unwrap();
    let signed = ca().sign_client(&request, &client_request(), Timestamp::MIN, now()).unwrap();
    let (_, block) = x509_parser::pem::parse_x509_pem(signed.cert_pem.as_bytes()).unwrap();
    let public = KeyPair::from_pem(key.as_str()).unwrap();
    let certified = block.parse_x509().unwrap();
    assert_eq!(certified.public_key().raw, rcgen::PublicKeyData::subject_public_key_info(&public));
}

#[test]
fn requests_with_other_keys_are_refused() {
    for algorithm in [&PKCS_ED25519, &PKCS_ECDSA_P384_SHA384] {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let refused = AgentRequest::parse(request(&key, |_| {}).as_bytes()).unwrap_err();
        assert_eq!(refused, RequestError::Key);
    }
    // RSA with 1,024 bits, made once: no library here creates such a key.
    let weak = include_bytes!("weak_rsa.csr");
    assert_eq!(AgentRequest::parse(weak).unwrap_err(), RequestError::Key);
}

#[test]
fn a_request_that_is_signed_by_another_key_is_refused() {
    let (key, other) = (new_key().unwrap(), new_key().unwrap());
    let block = |key| x509_parser::pem::parse_x509_pem(request(key, |_| {}).as_bytes()).unwrap().1.contents;
    let (mut forged, own) = (block(&key), block(&other));
    // Replaces the public key and keeps the signature.
    let public = rcgen::PublicKeyData::der_bytes(&other);
    let at = forged.windows(4).position(|bytes| bytes == [0x42, 0, 4, forged_byte(&key)]).unwrap() + 2;
    assert!(own.len() >= public.len());
    forged[at..at + public.len()].copy_from_slice(public);
    let pem = rcgen_pem(&forged);
    assert_eq!(AgentRequest::parse(pem.as_bytes()).unwrap_err(), RequestError::Signature);
}

fn forged_byte(key: &KeyPair) -> u8 {
    rcgen::PublicKeyData::der_bytes(key)[1]
}

fn rcgen_pem(der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN CERTIFICATE REQUEST-----\n{text}\n-----END CERTIFICATE REQUEST-----\n")
}

#[test]
fn texts_that_are_not_one_request_are_refused() {
    let good = create_request(&create_key().unwrap()).unwrap();
    let ca = ca();
    for bad in ["", "no PEM", ca.cert_pem(), &format!("{good}{good}"), &good[..good.len() / 2]] {
        assert_eq!(AgentRequest::parse(bad.as_bytes()).unwrap_err(), RequestError::Malformed, "{bad}");
    }
    let long = format!("{good}{}", "\n".repeat(MAX_REQUEST));
    assert!(matches!(AgentRequest::parse(long.as_bytes()), Err(RequestError::TooLong(_))));
}

#[test]
fn a_certificate_is_not_backdated_before_the_earliest_time() {
    let request = AgentRequest::parse(create_request(&create_key().unwrap()).unwrap().as_bytes()).unwrap();
    let begin = |earliest| {
        let signed = ca().sign_client(&request, &client_request(), earliest, now()).unwrap();
        validity(signed.cert_pem.as_bytes()).unwrap().not_before
    };
    let minutes = |minutes| now() - SignedDuration::from_mins(minutes);
    assert_eq!(begin(minutes(60)), minutes(5));
    assert_eq!((begin(minutes(2)), begin(now())), (minutes(2), now()));
}
