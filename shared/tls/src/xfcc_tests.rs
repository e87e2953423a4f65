use jiff::{SignedDuration, Timestamp};
use tidewatch_certs::{Ca, ClientRequest};

use super::*;

fn issued(common_name: &str) -> (CertificateDer<'static>, String) {
    let ca = Ca::create("test", SignedDuration::from_hours(1), Timestamp::now()).unwrap();
    let request = ClientRequest {
        runtime_id: common_name.into(),
        dns_names: vec!["a.example".into()],
        organizations: vec![],
        validity: SignedDuration::from_hours(1),
    };
    let pem = ca.issue_client(&request, Timestamp::now()).unwrap().cert_pem;
    (CertificateDer::from_pem_slice(pem.as_bytes()).unwrap(), pem)
}

fn encoded(pem: &str) -> String {
    [("%", "%25"), ("\n", "%0A"), (" ", "%20"), ("+", "%2B"), ("/", "%2F"), ("=", "%3D")]
        .iter()
        .fold(pem.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// Like the Go listener: first `Cert=` up to `;` or `,`, unescaped, trimmed of quotes.
fn as_the_go_listener_reads(header: &str) -> Vec<u8> {
    let token = header.split_once("Cert=").unwrap().1.split([';', ',']).next().unwrap();
    percent_decode(token.trim_matches('"')).unwrap()
}

#[test]
fn a_formatted_certificate_is_parsed_back() {
    for name in ["runtime-1", "Cert=\"x\",a;b\\", "ü\u{7f}"] {
        let (der, _) = issued(name);
        let header = format(&der).unwrap();
        assert!(header.bytes().all(|b| (0x20..0x7f).contains(&b)), "{header}");
        assert_eq!(parse(header.as_bytes()).unwrap(), der, "{header}");
        let pem = as_the_go_listener_reads(&header);
        assert_eq!(CertificateDer::from_pem_slice(&pem).unwrap(), der, "{name}");
    }
    assert_eq!(format(b"not a certificate"), Err(XfccError::BadCert));
}

#[test]
fn valid_headers_of_common_proxies_are_parsed() {
    let (der, pem) = issued("runtime-1");
    let (cert, hash) = (encoded(&pem), hex::encode(Sha256::digest(&der)));
    for header in [
        format!(
            "By=spiffe://x/ns/y;Hash={hash};Cert=\"{cert}\";Subject=\"CN=a,O=b;c\";URI=;DNS=a.example;DNS=b"
        ),
        format!("Cert=\"{cert}\""),
        format!("Cert={cert}"),
        format!("cert=\"{cert}\";hash={}", hash.to_uppercase()),
        format!("Subject=\"CN=\\\"quoted\\\", Cert=x\";Cert=\"{cert}\""),
        format!("  Cert=\"{}\"  ", cert.replace("%0A", "%0a")),
    ] {
        assert_eq!(parse(header.as_bytes()).as_ref(), Ok(&der), "{header}");
    }
}

#[test]
fn invalid_headers_yield_no_certificate() {
    use XfccError::{BadCert, Malformed, NoCert, OtherHash, SeveralElements, TokenTooLong, TooLong};
    let (_, pem) = issued("runtime-1");
    let cert = encoded(&pem);
    let other = encoded(&issued("runtime-2").1);
    let cases: Vec<(String, XfccError)> = vec![
        (String::new(), NoCert),
        ("Hash=ab".into(), NoCert),
        ("Subject=\"Cert=x\"".into(), NoCert),
        ("Cert=".into(), BadCert),
        ("Cert=\"\"".into(), BadCert),
        ("Cert".into(), Malformed),
        (";".into(), Malformed),
        (format!("Cert=\"{cert}"), Malformed),
        (format!("Cert=\"{cert}\\\""), Malformed),
        (format!("Cert=\"{cert}\"x"), Malformed),
        (format!("Cert=\"{cert}\"é"), Malformed),
        (format!("Cert=\"{cert}\"é,Cert=\"{other}\""), Malformed),
        (format!("Cert=\"{cert}\";"), Malformed),
        (format!("Cert={cert}\""), Malformed),
        (format!("Cert=\"{cert}\";Cert=\"{other}\""), Malformed),
        (format!(" ;Cert=\"{cert}\""), Malformed),
        (format!("C ert=\"{cert}\""), Malformed),
        (format!("Cert=\"{cert}\",Cert=\"{other}\""), SeveralElements),
        (format!("By=x,Cert=\"{cert}\""), SeveralElements),
        (format!("Cert=\"{cert}\","), SeveralElements),
        (format!("Cert=\"{cert}{other}\""), BadCert),
        (format!("Cert=\"{}\"", cert.replace("%0A", "%0")), BadCert),
        (format!("Cert=\"{}\"", cert.replace("%0A", "%zz")), BadCert),
        (format!("Cert=\"{}\"", cert.replace("%20", "+")), BadCert),
        (format!("Cert=\"{}\"", cert.replace("%20", " ")), BadCert),
        (format!("Cert=\"{pem}\""), BadCert),
        ("Cert=\"%2D\"".into(), BadCert),
        (format!("Hash={};Cert=\"{cert}\"", "0".repeat(64)), OtherHash),
        (format!("Cert=\"{}\"", "a".repeat(MAX_TOKEN + 1)), TokenTooLong),
        (format!("Cert=\"{cert}\";Subject=\"{}\"", "a".repeat(MAX_HEADER)), TooLong),
        (format!("Cert=\"{}\"", "é"), BadCert),
    ];
    for (header, expected) in cases {
        let shown: String = header.chars().take(60).collect();
        assert_eq!(parse(header.as_bytes()).err(), Some(expected), "{shown}");
    }
    assert_eq!(parse(&[b'C', 0xff]).err(), Some(Malformed));
}
