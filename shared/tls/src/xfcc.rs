//! Envoy's `X-Forwarded-Client-Cert`: a proxy's verified client.
//!
//! Comma-separated elements, one per proxy, of `key=value` pairs with semicolons. [`parse`] verifies neither sender nor
//! certificate.

use rustls_pki_types::{CertificateDer, pem::PemObject};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

use base64::{Engine, engine::general_purpose::STANDARD};

/// Header name.
pub const HEADER: &str = "x-forwarded-client-cert";
/// Longest header, in bytes.
pub const MAX_HEADER: usize = 32 * 1024;
/// Longest encoded `Cert`, in bytes.
pub const MAX_TOKEN: usize = 16 * 1024;
/// Longest subject, in characters.
const MAX_SUBJECT: usize = 1024;

/// Error of a header, with a metric [`label`](Self::label).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum XfccError {
    /// Over [`MAX_HEADER`].
    #[error("the header {HEADER} is longer than {MAX_HEADER} bytes")]
    TooLong,
    /// Over [`MAX_TOKEN`].
    #[error("the certificate in the header {HEADER} is longer than {MAX_TOKEN} bytes")]
    TokenTooLong,
    /// Several elements: further proxies, or a forging client.
    #[error("the header {HEADER} has several elements; the proxy must replace it, not append to it")]
    SeveralElements,
    /// Not Envoy's format.
    #[error("the header {HEADER} is malformed")]
    Malformed,
    /// No certificate.
    #[error("the header {HEADER} carries no certificate; the proxy must forward Cert")]
    NoCert,
    /// Invalid or several certificates.
    #[error("the header {HEADER} must carry exactly one certificate as PEM")]
    BadCert,
    /// Hash of another certificate.
    #[error("hash and certificate in the header {HEADER} do not belong together")]
    OtherHash,
}

impl XfccError {
    /// Metric label.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::TooLong => "xfcc_too_long",
            Self::TokenTooLong => "xfcc_token_too_long",
            Self::SeveralElements => "xfcc_several_elements",
            Self::Malformed => "xfcc_malformed",
            Self::NoCert => "xfcc_no_cert",
            Self::BadCert => "xfcc_bad_cert",
            Self::OtherHash => "xfcc_other_hash",
        }
    }
}

/// Returns the certificate in a header, unverified.
pub fn parse(header: &[u8]) -> Result<CertificateDer<'static>, XfccError> {
    if header.len() > MAX_HEADER {
        return Err(XfccError::TooLong);
    }
    let text = std::str::from_utf8(header).map_err(|_| XfccError::Malformed)?;
    let (mut cert, mut hash) = (None, None);
    let mut rest = text.trim_matches([' ', '\t']);
    if rest.is_empty() {
        return Err(XfccError::NoCert);
    }
    loop {
        let (key, value, after) = pair(rest)?;
        let slot = match key {
            _ if key.eq_ignore_ascii_case("Cert") => Some(&mut cert),
            _ if key.eq_ignore_ascii_case("Hash") => Some(&mut hash),
            _ => None,
        };
        // Duplicates allow attacks, since readers differ in first or last.
        if slot.is_some_and(|slot| slot.replace(value).is_some()) {
            return Err(XfccError::Malformed);
        }
        // As bytes: a multi-byte character may follow.
        match after.as_bytes().first() {
            None => break,
            Some(b';') => rest = &after[1..],
            Some(b',') => return Err(XfccError::SeveralElements),
            Some(_) => return Err(XfccError::Malformed),
        }
    }
    let token = cert.ok_or(XfccError::NoCert)?;
    if token.len() > MAX_TOKEN {
        return Err(XfccError::TokenTooLong);
    }
    let pem = percent_decode(token).ok_or(XfccError::BadCert)?;
    let mut found = CertificateDer::pem_slice_iter(&pem);
    let der = found.next().and_then(Result::ok).ok_or(XfccError::BadCert)?;
    if found.next().is_some() {
        return Err(XfccError::BadCert);
    }
    if hash.is_some_and(|hash| !hash.eq_ignore_ascii_case(&hex::encode(Sha256::digest(&der)))) {
        return Err(XfccError::OtherHash);
    }
    Ok(der)
}

/// Splits off a pair: key, unquoted value and rest.
fn pair(text: &str) -> Result<(&str, &str, &str), XfccError> {
    let (key, value) = text.split_once('=').ok_or(XfccError::Malformed)?;
    if key.is_empty() || !key.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return Err(XfccError::Malformed);
    }
    let Some(quoted) = value.strip_prefix('"') else {
        let end = value.find([';', ',']).unwrap_or(value.len());
        let (value, after) = value.split_at(end);
        return if value.contains('"') { Err(XfccError::Malformed) } else { Ok((key, value, after)) };
    };
    let mut escaped = false;
    for (at, byte) in quoted.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Ok((key, &quoted[..at], &quoted[at + 1..])),
            _ => {}
        }
    }
    Err(XfccError::Malformed)
}

fn percent_decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    let digit = |bytes: &mut std::str::Bytes<'_>| char::from(bytes.next()?).to_digit(16);
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => u8::try_from(digit(&mut bytes)? * 16 + digit(&mut bytes)?).ok()?,
            0x21..=0x7e => byte,
            _ => return None,
        });
    }
    Some(decoded)
}

fn hex_digit(nibble: u8) -> char {
    char::from_digit(nibble.into(), 16).map_or('0', |c| c.to_ascii_uppercase())
}

/// Formats a verified certificate's header. The subject is last, so that it cannot precede the certificate.
pub fn format(leaf: &[u8]) -> Result<String, XfccError> {
    let (_, parsed) = X509Certificate::from_der(leaf).map_err(|_| XfccError::BadCert)?;
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    let text = STANDARD.encode(leaf);
    let mut text = text.as_str();
    while let Some((line, rest)) = text.split_at_checked(64) {
        pem.extend([line, "\n"]);
        text = rest;
    }
    if !text.is_empty() {
        pem.extend([text, "\n"]);
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    let mut cert = String::with_capacity(pem.len() + pem.len() / 8);
    for byte in pem.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' => cert.push(byte.into()),
            _ => cert.extend(['%', hex_digit(byte >> 4), hex_digit(byte & 15)]),
        }
    }
    if cert.len() > MAX_TOKEN {
        return Err(XfccError::TokenTooLong);
    }
    let mut subject = String::new();
    for character in parsed.subject().to_string().chars().take(MAX_SUBJECT) {
        match character {
            '"' | '\\' => subject.extend(['\\', character]),
            ' '..='~' => subject.push(character),
            _ => subject.push('?'),
        }
    }
    Ok(format!("Hash={};Cert=\"{cert}\";Subject=\"{subject}\"", hex::encode(Sha256::digest(leaf))))
}

#[cfg(test)]
#[path = "xfcc_tests.rs"]
mod tests;
