use tidewatch_tls::xfcc::{self, MAX_HEADER, MAX_TOKEN};

use crate::assert_message;

/// The header `X-Forwarded-Client-Cert`.
///
/// # Panics
/// If a promise is broken.
pub fn xfcc(data: &[u8]) {
    let certificate = match xfcc::parse(data) {
        Ok(certificate) => certificate,
        Err(error) => {
            assert!(error.label().starts_with("xfcc_"));
            return assert_message(&error.to_string());
        }
    };
    assert!(data.len() <= MAX_HEADER && certificate.len() <= MAX_TOKEN);
    assert_eq!(certificates_of_one_element(data), Some(1), "one element with one certificate");
    // What is no X.509 certificate is found out by whoever looks at it.
    if let Ok(header) = xfcc::format(&certificate) {
        assert!(header.len() <= MAX_HEADER);
        assert!(header.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
        assert_eq!(xfcc::parse(header.as_bytes()), Ok(certificate));
    }
}

/// How often `Cert` is in a header of exactly one element; `None` if it does not have that form. Another reader than
/// the one that is tested, byte by byte.
fn certificates_of_one_element(header: &[u8]) -> Option<usize> {
    enum At {
        Key(Vec<u8>),
        Start,
        Plain,
        Quoted { escaped: bool },
        End,
    }
    let mut at = At::Key(Vec::new());
    let mut found = 0;
    for &byte in header.trim_ascii() {
        at = match (at, byte) {
            (At::Key(key), b'=') => {
                found += usize::from(key.eq_ignore_ascii_case(b"cert"));
                At::Start
            }
            (At::Key(mut key), byte) if byte.is_ascii_alphanumeric() => {
                key.push(byte);
                At::Key(key)
            }
            (At::Start, b'"') => At::Quoted { escaped: false },
            (At::Start | At::Plain | At::End, b';') => At::Key(Vec::new()),
            (At::Key(_) | At::End, _) | (At::Start | At::Plain, b',' | b'"') => return None,
            (At::Start | At::Plain, _) => At::Plain,
            (At::Quoted { escaped: false }, b'\\') => At::Quoted { escaped: true },
            (At::Quoted { escaped: false }, b'"') => At::End,
            (At::Quoted { .. }, _) => At::Quoted { escaped: false },
        };
    }
    match at {
        At::Key(_) | At::Quoted { .. } => None,
        At::Start | At::Plain | At::End => Some(found),
    }
}
