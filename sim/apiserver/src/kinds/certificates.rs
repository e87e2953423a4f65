//! Certificates and certificate requests in PEM.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::Value;
use x509_parser::{
    error::X509Error,
    oid_registry::{OID_KEY_TYPE_EC_PUBLIC_KEY, OID_PKCS1_RSAENCRYPTION},
    prelude::{FromDer, X509Certificate, X509CertificationRequest},
};

const BEGIN: &str = "-----BEGIN ";
const END: &str = "-----END ";
const DASHES: &str = "-----";

/// A PEM block.
#[derive(Debug)]
struct Block {
    label: String,
    has_headers: bool,
    der: Vec<u8>,
}

/// Returns the organizations in the subject of a certificate request, base64 of PEM. Checks its signature.
pub(crate) fn organizations(request: &Value) -> Result<Vec<String>, String> {
    let first = blocks(&decoded(request)).into_iter().next();
    let Some(Block { der, .. }) = first.filter(|block| block.label == "CERTIFICATE REQUEST") else {
        return Err("PEM block type must be CERTIFICATE REQUEST".to_owned());
    };
    let (rest, request) = X509CertificationRequest::from_der(&der)
        .map_err(|error| format!("asn1: structure error: {error}"))?;
    if !rest.is_empty() {
        return Err("asn1: syntax error: trailing data".to_owned());
    }
    // Algorithms that the library lacks count as verified.
    if request.verify_signature() == Err(X509Error::SignatureVerificationError) {
        return Err(wrong_signature(&request).to_owned());
    }
    let subject = &request.certification_request_info.subject;
    let names = subject.iter_organization().filter_map(|name| name.as_str().ok());
    Ok(names.map(str::to_owned).collect())
}

/// Go's words.
fn wrong_signature(request: &X509CertificationRequest<'_>) -> &'static str {
    let key = &request.certification_request_info.subject_pki.algorithm.algorithm;
    if *key == OID_PKCS1_RSAENCRYPTION {
        "crypto/rsa: verification error"
    } else if *key == OID_KEY_TYPE_EC_PUBLIC_KEY {
        "x509: ECDSA verification failure"
    } else {
        "x509: Ed25519 verification failure"
    }
}

/// Checks certificates, base64 of PEM.
pub(crate) fn check(certificates: &Value) -> Result<(), String> {
    let bytes = decoded(certificates);
    if bytes.is_empty() {
        return Ok(());
    }
    let blocks = blocks(&bytes);
    for Block { label, has_headers, der } in &blocks {
        if label != "CERTIFICATE" {
            return Err(format!("only CERTIFICATE PEM blocks are allowed, found {label:?}"));
        }
        if *has_headers {
            return Err("no PEM block headers are permitted".to_owned());
        }
        if der.is_empty() {
            return Err("found CERTIFICATE PEM block containing 0 certificates".to_owned());
        }
        let mut rest = der.as_slice();
        while !rest.is_empty() {
            (rest, _) =
                X509Certificate::from_der(rest).map_err(|_| "x509: malformed certificate".to_owned())?;
        }
    }
    if blocks.is_empty() {
        return Err("must contain at least one CERTIFICATE PEM block".to_owned());
    }
    Ok(())
}

/// Go ignores line ends in base64.
fn decoded(base64: &Value) -> Vec<u8> {
    let text = base64.as_str().unwrap_or_default().replace(['\r', '\n'], "");
    BASE64_STANDARD.decode(text).unwrap_or_default()
}

/// Like Go, skips damaged blocks and text between blocks.
fn blocks(pem: &[u8]) -> Vec<Block> {
    let text = String::from_utf8_lossy(pem);
    let mut lines = text.lines().map(str::trim_end).peekable();
    let mut blocks = Vec::new();
    while let Some(line) = lines.next() {
        let Some(label) = line.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(DASHES)) else {
            continue;
        };
        let mut inside = Vec::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with(DASHES)) {
            inside.push(line);
        }
        let ends = |line: &&str| {
            line.strip_prefix(END).and_then(|rest| rest.strip_suffix(DASHES)).is_some_and(|end| end == label)
        };
        if lines.next_if(ends).is_none() {
            continue;
        }
        let headers = inside.iter().take_while(|line| line.contains(':')).count();
        let body: String = inside.into_iter().skip(headers).flat_map(str::split_whitespace).collect();
        if let Ok(der) = BASE64_STANDARD.decode(body) {
            blocks.push(Block { label: label.to_owned(), has_headers: headers > 0, der });
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: &str = "\
-----BEGIN CERTIFICATE REQUEST-----
MIHeMIGGAgEAMCQxEDAOBgNVBAoMB2V4YW1wbGUxEDAOBgNVBAMMB3NvbWVvbmUw
WTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAATdj78anZTvRe2zqDNj+U/MbSKf+qmR
g05GUGiSzUFgyjhtHXx5RL4Q2Iz+EwUsjgQz7f2RC6MlDcKxpNKSFM6+oAAwCgYI
KoZIzj0EAwIDRwAwRAIgJcnfGzqyJ4F0l9uVvbyqY3cKruWrebnBV8RYGqFSJ6cC
IFko1ZzgfvE3SQWeoWzqGqmkVL4ia8COrMailUp30vtE
-----END CERTIFICATE REQUEST-----
";
    const CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----
MIIBfDCCASGgAwIBAgIUcVmp9zee8fmueeoiuSn/3FZ7WoYwCgYIKoZIzj0EAwIw
EjEQMA4GA1UEAwwHc29tZW9uZTAgFw0yNjExMjkxNTIxMTBaGA8yMTI2MTEwNTE1
MjExMFowEjEQMA4GA1UEAwwHc29tZW9uZTBZMBMGByqGSM49AgEGCCqGSM49AwEH
A0IABN2PvxqdlO9F7bOoM2P5T8xtIp/6qZGDTkZQaJLNQWDKOG0dfHlEvhDYjP4T
BSyOBDPt/ZELoyUNwrGk0pIUzr6jUzBRMB0GA1UdDgQWBBRkG8FzUxk1U8DSzuTz
z/xKuNZW0zAfBgNVHSMEGDAWgBRkG8FzUxk1U8DSzuTzz/xKuNZW0zAPBgNVHRMB
Af8EBTADAQH/MAoGCCqGSM49BAMCA0kAMEYCIQCXYf+cjgVEAnVXAAMQyFXwhk9R
/fXKyFzvyeoJHKTlqwIhAICJBfJLHHGFsDPBQgw1BRA4/cGw5ixj1MHlmWiVfcEA
-----END CERTIFICATE-----
";

    fn base64(text: &str) -> Value {
        BASE64_STANDARD.encode(text).into()
    }

    #[test]
    fn a_certificate_request_has_a_subject_and_a_valid_signature() {
        assert_eq!(organizations(&base64(REQUEST)).unwrap(), ["example"]);
        assert_eq!(organizations(&base64(&format!("text\n{REQUEST}more"))).unwrap(), ["example"]);
        let other_subject = REQUEST.replace("2V4YW1wbGUx", "2V4YW1wbGUy");
        for (wrong, why) in [
            ("", "PEM block type"),
            (CERTIFICATE, "PEM block type"),
            (&*REQUEST.replace("\nMIH", "\nMAH"), "asn1: "),
            (&*other_subject, "x509: ECDSA verification failure"),
            (&*REQUEST.replace("\nMIH", "\n*IH"), "PEM block type"),
        ] {
            let found = organizations(&base64(wrong)).unwrap_err();
            assert!(found.starts_with(why), "{found}: {wrong}");
        }
    }

    #[test]
    fn certificates_are_pem_without_headers() {
        let twice = format!("text\n{CERTIFICATE}more\n{CERTIFICATE}");
        for good in ["", CERTIFICATE, &*twice] {
            assert_eq!(check(&base64(good)), Ok(()), "{good}");
        }
        let with_header = CERTIFICATE.replace("CERTIFICATE-----\nMII", "CERTIFICATE-----\nA: b\n\nMII");
        for (wrong, why) in [
            ("text", "must contain at least one CERTIFICATE PEM block"),
            (
                &*format!("{CERTIFICATE}{REQUEST}"),
                "only CERTIFICATE PEM blocks are allowed, found \"CERTIFICATE REQUEST\"",
            ),
            (&*with_header, "no PEM block headers are permitted"),
            (&*CERTIFICATE.replace("\nMII", "\nMIA"), "x509: malformed certificate"),
            (
                "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----",
                "found CERTIFICATE PEM block containing 0 certificates",
            ),
        ] {
            assert_eq!(check(&base64(wrong)).unwrap_err(), why, "{wrong}");
        }
    }

    #[test]
    fn many_marks_without_blocks_are_read_in_one_pass() {
        let marks = "-----BEGIN CERTIFICATE-----\n".repeat(100_000);
        assert!(blocks(marks.as_bytes()).is_empty());
    }
}
