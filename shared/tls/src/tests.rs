use crate::{
    Bundle, BundleError, Files, HandshakeFailure, IdentityError, MAX_SANS, Names, PeerIdentity, Pem,
    RefusedCertificate, ReloadError, Reloaded, Store, client_config, provider, server_config,
};
use jiff::{SignedDuration, Timestamp};
use rcgen::{CertificateParams, DnType, DnValue, KeyPair, PKCS_ECDSA_P256_SHA256, SanType};
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig,
    client::danger::HandshakeSignatureValid,
    internal::msgs::codec::{Codec, Reader},
    server::WebPkiClientVerifier,
    version,
};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject};
use std::{io, net::IpAddr, sync::Arc};
use tidewatch_certs::{Ca, ClientRequest, Issued, ServerRequest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

const DAY: SignedDuration = SignedDuration::from_hours(24);

fn now() -> Timestamp {
    Timestamp::now()
}

fn ca(name: &str) -> Ca {
    Ca::create(name, DAY * 100, now() - DAY * 30).unwrap()
}

fn client_of(ca: &Ca, at: Timestamp) -> Issued {
    let request = ClientRequest {
        runtime_id: "runtime-1".into(),
        dns_names: vec!["one.example".into()],
        organizations: vec![],
        validity: DAY,
    };
    ca.issue_client(&request, at).unwrap()
}

fn server_of(ca: &Ca) -> Issued {
    let request = ServerRequest {
        common_name: "receiver".into(),
        dns_names: vec!["receiver.example".into()],
        ip_addrs: vec![],
        validity: DAY,
    };
    ca.issue_server(&request, now()).unwrap()
}

fn pem(ca: &Ca, issued: &Issued) -> Pem {
    Pem {
        ca: ca.cert_pem().into(),
        cert: issued.cert_pem.clone().into(),
        key: issued.key_pem.as_str().into(),
    }
}

fn server(ca: &Ca) -> Arc<ServerConfig> {
    let pem = pem(ca, &server_of(ca));
    server_config(&pem.ca, &pem.cert, &pem.key).unwrap()
}

fn client(trust: &Ca, own: &Issued) -> Arc<ClientConfig> {
    let pem = pem(trust, own);
    client_config(&pem.ca, &pem.cert, &pem.key).unwrap()
}

/// TLS 1.3 clients see refusals only on reads.
async fn handshake(
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
) -> (io::Result<Result<PeerIdentity, IdentityError>>, io::Result<()>) {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let serve = async {
        let mut stream = TlsAcceptor::from(server).accept(far).await?;
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let identity = PeerIdentity::from_chain(stream.get_ref().1.peer_certificates());
        stream.write_all(b"!").await?;
        stream.flush().await?;
        Ok(identity)
    };
    let connect = async {
        let name = ServerName::try_from("receiver.example").unwrap();
        let mut stream = TlsConnector::from(client).connect(name, near).await?;
        stream.read_u8().await?;
        Ok(())
    };
    tokio::join!(serve, connect)
}

#[tokio::test]
async fn client_and_server_identify_each_other() {
    let ca = ca("one");
    let own = client_of(&ca, now());
    let (identity, seen) = handshake(server(&ca), client(&ca, &own)).await;
    seen.unwrap();
    let identity = identity.unwrap().unwrap();
    assert_eq!(identity.common_name, "runtime-1");
    assert_eq!(identity.dns_names, ["one.example"]);
    assert_eq!(identity.not_after, own.not_after);
}

#[tokio::test]
async fn a_client_of_another_ca_is_refused() {
    let good = ca("one");
    for (name, other) in [("another name", ca("two")), ("the same name", ca("one"))] {
        let (served, seen) = handshake(server(&good), client(&good, &client_of(&other, now()))).await;
        assert_eq!(HandshakeFailure::from_io(&served.unwrap_err()), HandshakeFailure::UnknownCa, "{name}");
        assert_eq!(HandshakeFailure::from_io(&seen.unwrap_err()), HandshakeFailure::UnknownCa, "{name}");
    }
}

#[tokio::test]
async fn a_self_signed_client_is_refused_whatever_its_name_is() {
    let (good, key) = (ca("one"), KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap());
    let mut params = CertificateParams::new(vec!["one.example".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, "runtime-1");
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let own = pem(&good, &client_of(&good, now()));
    let cert = params.self_signed(&key).unwrap().pem();
    let client = client_config(&own.ca, cert.as_bytes(), key.serialize_pem().as_bytes()).unwrap();
    let (served, seen) = handshake(server(&good), client).await;
    assert_eq!(HandshakeFailure::from_io(&served.unwrap_err()), HandshakeFailure::UnknownCa);
    assert_eq!(HandshakeFailure::from_io(&seen.unwrap_err()), HandshakeFailure::UnknownCa);
}

#[tokio::test]
async fn an_expired_client_is_refused() {
    let ca = ca("one");
    let (served, seen) = handshake(server(&ca), client(&ca, &client_of(&ca, now() - DAY * 2))).await;
    assert_eq!(HandshakeFailure::from_io(&served.unwrap_err()), HandshakeFailure::Expired);
    assert_eq!(HandshakeFailure::from_io(&seen.unwrap_err()), HandshakeFailure::Expired);
}

#[tokio::test]
async fn a_refused_certificates_names_stay_with_its_handshake() {
    let (good, other) = (ca("one"), ca("two"));
    let refusals = [client_of(&other, now()), client_of(&good, now() - DAY * 2)].map(|own| {
        let (good, shown) = (&good, RefusedCertificate::default());
        async move {
            let (served, _) = shown.during(handshake(server(good), client(good, &own))).await;
            assert!(served.is_err());
            shown.names().unwrap().clone()
        }
    });
    let welcome = RefusedCertificate::default();
    let accepted = welcome.during(handshake(server(&good), client(&good, &client_of(&good, now()))));
    let [stranger, expired] = refusals;
    let (stranger, expired, (served, _)) = tokio::join!(stranger, expired, accepted);
    assert!(served.is_ok() && welcome.names().is_none());
    for (names, issuer) in [(&stranger, "CN=two"), (&expired, "CN=one")] {
        assert_eq!(names.common_name.as_deref(), Some("runtime-1"));
        assert!(names.subject.contains("CN=runtime-1") && names.issuer.contains(issuer), "{names:?}");
    }
    assert!(expired.not_after < now());
}

#[test]
fn claimed_names_are_short_and_printable() {
    let long = "\u{1b}[31mx\n".repeat(1_000);
    let certificate = leaf(|params| params.distinguished_name.push(DnType::CommonName, long.as_str()));
    let names = Names::of(&certificate).unwrap();
    assert!(
        names.subject.chars().count() <= 160 && !names.subject.chars().any(char::is_control),
        "{names:?}"
    );
    assert_eq!(Names::of(b"no certificate"), None);
}

#[tokio::test]
async fn a_client_without_certificate_is_refused() {
    let ca = ca("one");
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.cert_pem().as_bytes()).unwrap()).unwrap();
    let anonymous = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let (served, seen) = handshake(server(&ca), Arc::new(anonymous)).await;
    assert_eq!(HandshakeFailure::from_io(&served.unwrap_err()), HandshakeFailure::NoCertificate);
    assert_eq!(HandshakeFailure::from_io(&seen.unwrap_err()), HandshakeFailure::NoCertificate);
}

#[tokio::test]
async fn a_client_refuses_a_server_of_another_ca_or_name() {
    let (good, other) = (ca("one"), ca("two"));
    let own = client_of(&good, now());
    let (served, seen) = handshake(server(&other), client(&good, &own)).await;
    assert_eq!(HandshakeFailure::from_io(&seen.unwrap_err()), HandshakeFailure::UnknownCa);
    assert_eq!(HandshakeFailure::from_io(&served.unwrap_err()), HandshakeFailure::UnknownCa);
    // Not valid for a server.
    let posing = pem(&good, &client_of(&good, now()));
    let posing = server_config(&posing.ca, &posing.cert, &posing.key).unwrap();
    let (_, seen) = handshake(posing, client(&good, &own)).await;
    assert_eq!(HandshakeFailure::from_io(&seen.unwrap_err()), HandshakeFailure::BadCertificate);
}

#[tokio::test]
async fn noise_and_silence_have_their_own_labels() {
    let acceptor = TlsAcceptor::from(server(&ca("one")));
    let noise = acceptor.accept(says(b"GET / HTTP/1.1\r\n\r\n")).await.unwrap_err();
    assert_eq!(HandshakeFailure::from_io(&noise), HandshakeFailure::Protocol);
    let silence = acceptor.accept(says(b"")).await.unwrap_err();
    assert_eq!(HandshakeFailure::from_io(&silence), HandshakeFailure::Io);
    let late = io::Error::from(io::ErrorKind::TimedOut);
    assert_eq!(HandshakeFailure::from_io(&late).label(), "timeout");
}

fn says(bytes: &[u8]) -> tokio::io::Join<io::Cursor<Vec<u8>>, tokio::io::Sink> {
    tokio::io::join(io::Cursor::new(bytes.to_vec()), tokio::io::sink())
}

type Check = fn(&BundleError) -> bool;

#[test]
fn invalid_bundles_are_named_and_not_used() {
    let ca = ca("one");
    let good = pem(&ca, &server_of(&ca));
    let store = Store::server(&good, now()).unwrap();
    let (before, not_after) = (store.current(), store.not_after());
    let other = pem(&ca, &server_of(&ca));
    let cases: [(&str, Pem, Timestamp, Check); 7] = [
        ("foreign key", Pem { key: other.key.clone(), ..good.clone() }, now(), |e| {
            matches!(e, BundleError::KeyMismatch)
        }),
        ("no key", Pem { key: b"secret words".into(), ..good.clone() }, now(), |e| {
            matches!(e, BundleError::Key)
        }),
        ("no CA", Pem { ca: vec![], ..good.clone() }, now(), |e| {
            matches!(e, BundleError::NoCertificate("CA bundle"))
        }),
        ("no chain", Pem { cert: vec![], ..good.clone() }, now(), |e| {
            matches!(e, BundleError::NoCertificate("certificate chain"))
        }),
        ("not X.509", Pem { cert: block("bm8gY2VydA=="), ..good.clone() }, now(), |e| {
            matches!(e, BundleError::Malformed { number: 1, .. })
        }),
        ("expired", good.clone(), now() + DAY * 2, |e| matches!(e, BundleError::Expired(_))),
        ("early", good.clone(), now() - DAY, |e| matches!(e, BundleError::NotYetValid(_))),
    ];
    for (name, pem, at, expected) in cases {
        let error = store.publish(&pem, at).unwrap_err();
        assert!(expected(&error), "{name}: {error:?}");
        assert!(!format!("{error:?} {error}").contains("secret"), "{name}");
    }
    assert!(Arc::ptr_eq(&before, &store.current()));
    assert_eq!(store.not_after(), not_after);
    store.publish(&other, now()).unwrap();
    assert!(!Arc::ptr_eq(&before, &store.current()));
    assert!(!format!("{good:?}").contains("key"), "Debug shows no key");
}

fn block(base64: &str) -> Vec<u8> {
    format!("-----BEGIN CERTIFICATE-----\n{base64}\n-----END CERTIFICATE-----\n").into()
}

#[tokio::test]
async fn files_are_reloaded_only_if_changed_and_valid() {
    let dir = tempfile::tempdir().unwrap();
    let files =
        Files { ca: dir.path().join("ca"), cert: dir.path().join("cert"), key: dir.path().join("key") };
    let write = |pem: &Pem| {
        std::fs::write(&files.ca, &pem.ca).unwrap();
        std::fs::write(&files.cert, &pem.cert).unwrap();
        std::fs::write(&files.key, &pem.key).unwrap();
    };
    let ca = ca("one");
    let (first, second) = (pem(&ca, &server_of(&ca)), pem(&ca, &server_of(&ca)));
    let store = Store::server(&first, now()).unwrap();
    assert!(matches!(store.reload(&files, now()).await, Err(ReloadError::Files(_))));
    write(&first);
    let used = store.current();
    assert_eq!(store.reload(&files, now()).await.unwrap(), Reloaded::Unchanged, "it was made with these");
    assert!(Arc::ptr_eq(&used, &store.current()));
    write(&Pem { key: first.key.clone(), ..second.clone() });
    assert!(matches!(store.reload(&files, now()).await, Err(ReloadError::Bundle(BundleError::KeyMismatch))));
    assert!(Arc::ptr_eq(&used, &store.current()));
    assert_eq!(store.reload(&files, now()).await.unwrap(), Reloaded::Unchanged, "reported once");
    write(&second);
    assert_eq!(store.reload(&files, now()).await.unwrap(), Reloaded::Published);
    assert!(!Arc::ptr_eq(&used, &store.current()));

    let early = now() - DAY;
    write(&first);
    let error = store.reload(&files, early).await.unwrap_err();
    assert!(matches!(error, ReloadError::Bundle(BundleError::NotYetValid(_))), "{error}");
    assert_eq!(store.reload(&files, early).await.unwrap(), Reloaded::Unchanged, "reported once");
    assert_eq!(store.reload(&files, now()).await.unwrap(), Reloaded::Published, "valid by now");
    assert_eq!(store.reload(&files, now()).await.unwrap(), Reloaded::Unchanged);
}

fn leaf(change: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    change(&mut params);
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    params.self_signed(&key).unwrap().der().clone()
}

#[test]
fn identities_are_read_or_refused() {
    let named = |p: &mut CertificateParams| p.distinguished_name.push(DnType::CommonName, "r");
    let uri = SanType::URI("spiffe://one".try_into().unwrap());
    let ips = ["10.0.0.1", "fd00::1"].map(|ip| SanType::IpAddress(ip.parse().unwrap()));
    let good = leaf(|p| {
        named(p);
        p.subject_alt_names.push(uri);
        p.subject_alt_names.extend(ips);
    });
    let identity = PeerIdentity::from_leaf(&good).unwrap();
    assert_eq!(identity.uris, ["spiffe://one"]);
    assert_eq!(identity.ip_addrs, ["10.0.0.1", "fd00::1"].map(|ip| ip.parse::<IpAddr>().unwrap()));

    let many = |count: usize| {
        leaf(|p| {
            named(p);
            p.subject_alt_names =
                (0..count).map(|n| SanType::DnsName(format!("n{n}.example").try_into().unwrap())).collect();
        })
    };
    assert_eq!(PeerIdentity::from_leaf(&many(MAX_SANS)).unwrap().dns_names.len(), MAX_SANS);
    let empty = leaf(|p| p.distinguished_name.push(DnType::CommonName, DnValue::Utf8String(String::new())));
    let cases = [
        (many(MAX_SANS + 1), IdentityError::TooManySans(MAX_SANS + 1)),
        (leaf(|_| ()), IdentityError::NoCommonName),
        (empty, IdentityError::EmptyCommonName),
        (CertificateDer::from(b"nonsense".to_vec()), IdentityError::Malformed),
        (CertificateDer::from([good.as_ref(), b"more"].concat()), IdentityError::Malformed),
    ];
    for (leaf, expected) in cases {
        assert_eq!(PeerIdentity::from_leaf(&leaf), Err(expected));
    }
    assert_eq!(PeerIdentity::from_chain(None), Err(IdentityError::NoCertificate));
    assert_eq!(PeerIdentity::from_chain(Some(&[])), Err(IdentityError::NoCertificate));
}

/// Verifies a TLS 1.3 signature (RSA-PSS, SHA-256) of the fixed text `message` as a server does in a handshake.
fn verify_signature(certificate: &[u8], signature: &[u8]) -> Result<HandshakeSignatureValid, rustls::Error> {
    let ca = ca("ca");
    let roots = Bundle::parse(&pem(&ca, &server_of(&ca))).unwrap().roots();
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build().unwrap();
    let length = u16::try_from(signature.len()).unwrap().to_be_bytes();
    let encoded = [&[0x08, 0x04], &length[..], signature].concat();
    let signed = DigitallySignedStruct::read(&mut Reader::init(&encoded)).unwrap();
    verifier.verify_tls13_signature(b"message", &CertificateDer::from(certificate), &signed)
}

/// The libraries here neither make such a key nor sign with it, so both were made once, with their signatures.
#[test]
fn a_clients_weak_key_proves_nothing() {
    verify_signature(include_bytes!("keys/rsa_2048.crt"), include_bytes!("keys/rsa_2048.sig")).unwrap();
    let weak = verify_signature(include_bytes!("keys/rsa_1024.crt"), include_bytes!("keys/rsa_1024.sig"));
    assert!(matches!(weak, Err(rustls::Error::InvalidCertificate(_))), "{weak:?}");
}

#[test]
fn a_peer_is_trusted_while_its_issuer_is() {
    let (old, new) = (ca("one"), ca("two"));
    let own = client_of(&old, now());
    let chain = vec![CertificateDer::from_pem_slice(server_of(&old).cert_pem.as_bytes()).unwrap()];
    let name = ServerName::try_from("receiver.example").unwrap();
    let store = Store::client(&pem(&old, &own), now()).unwrap();
    assert!(store.trusts(&chain, &name, now()));
    assert!(!store.trusts(&chain, &name, now() + DAY * 2), "its certificate has ended");
    assert!(!store.trusts(&chain, &ServerName::try_from("other.example").unwrap(), now()));
    assert!(!store.trusts(&[], &name, now()));

    let both = Pem { ca: format!("{}{}", old.cert_pem(), new.cert_pem()).into(), ..pem(&old, &own) };
    store.publish(&both, now()).unwrap();
    assert!(store.trusts(&chain, &name, now()));
    store.publish(&Pem { ca: new.cert_pem().into(), ..both }, now()).unwrap();
    assert!(!store.trusts(&chain, &name, now()));
}
