//! The header `X-Forwarded-Client-Cert`, in which a proxy that terminates TLS names the client it has verified.
//!
//! The format is Envoy's: elements separated by commas, one per proxy on the way, each of `key=value` pairs separated
//! by semicolons, values in double quotes where they need it. Both functions are pure. What [`parse`] returns is what
//! the header *says*: whether its sender may say so, and whether the certificate is any good, is for the caller.

use rustls_pki_types::{CertificateDer, pem::PemObject};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

use base64::{Engine, engine::general_purpose::STANDARD};

/// The header's name.
pub const HEADER: &str = "x-forwarded-client-cert";
/// Longest header, in bytes.
pub const MAX_HEADER: usize = 32 * 1024;
/// Longest value of `Cert`, in bytes as it stands in the header.
pub const MAX_TOKEN: usize = 16 * 1024;
/// Longest subject that is written.
const MAX_SUBJECT: usize = 1024;

/// Why a header names nobody. The variants are few: their [`label`](Self::label) is a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum XfccError {
    /// It is longer than [`MAX_HEADER`].
    #[error("the header {HEADER} is longer than {MAX_HEADER} bytes")]
    TooLong,
    /// The certificate in it is longer than [`MAX_TOKEN`].
    #[error("the certificate in the header {HEADER} is longer than {MAX_TOKEN} bytes")]
    TokenTooLong,
    /// Several proxies have written to it, or somebody before the proxy.
    #[error("the header {HEADER} has several elements; the proxy must replace it, not append to it")]
    SeveralElements,
    /// It does not have Envoy's form.
    #[error("the header {HEADER} is malformed")]
    Malformed,
    /// There is no certificate in it.
    #[error("the header {HEADER} carries no certificate; the proxy must forward Cert")]
    NoCert,
    /// What should be a certificate is not one, or is several.
    #[error("the header {HEADER} must carry exactly one certificate as PEM")]
    BadCert,
    /// Its hash is another certificate's.
    #[error("hash and certificate in the header {HEADER} do not belong together")]
    OtherHash,
}

impl XfccError {
    /// A stable word for metrics.
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

/// The certificate that a header carries. Nothing about it was verified.
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
        // Who of two readers believes the first and who the last of two values is what attacks are made of.
        if slot.is_some_and(|slot| slot.replace(value).is_some()) {
            return Err(XfccError::Malformed);
        }
        // By bytes: a character of several is not an end.
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

/// One `key=value`: the key, the value without its quotes, and what comes after it.
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

/// The header for a client's verified certificate: hash, certificate and subject, in this order, so that no subject
/// can stand in front of the certificate.
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
