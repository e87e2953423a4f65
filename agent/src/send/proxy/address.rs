//! A proxy's URL.

use std::{fmt, net::Ipv6Addr};

/// In bytes.
const MAX_URL: usize = 2048;

/// A proxy. `Debug` and `Display` hide credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    host: String,
    port: u16,
    /// Decoded `user:password`.
    credentials: Option<String>,
}

/// Errors of proxy settings, without the URL: it may hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// TLS and SOCKS proxies are unsupported.
    #[error("the proxy must be http://host:port; proxies over TLS or SOCKS are not supported")]
    Scheme,
    /// No proxy URL.
    #[error("the proxy must be http://[user:password@]host:port, with special characters percent-encoded")]
    Malformed,
}

impl Proxy {
    /// Parses `[http://][user:password@]host[:port]`; default port 80.
    pub fn parse(url: &str) -> Result<Self, SettingsError> {
        let url = url.trim();
        let rest = match url.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some(_) => return Err(SettingsError::Scheme),
            None => url,
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let printable = rest.bytes().all(|byte| byte.is_ascii_graphic());
        if !printable || url.len() > MAX_URL || rest.contains(['/', '?', '#']) {
            return Err(SettingsError::Malformed);
        }
        let (credentials, authority) = match rest.rsplit_once('@') {
            Some((credentials, authority)) => (Some(decode(credentials)?), authority),
            None => (None, rest),
        };
        let (host, port) = split_port(authority).ok_or(SettingsError::Malformed)?;
        let credentials = credentials.filter(|text| !text.is_empty());
        let credentials = credentials.map(|text| if text.contains(':') { text } else { text + ":" });
        Ok(Self { host: host.to_owned(), port: port.unwrap_or(80), credentials })
    }

    /// Host (without brackets) and port.
    pub(crate) fn address(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    /// Decoded `user:password`.
    pub(super) fn credentials(&self) -> Option<&str> {
        self.credentials.as_deref()
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, credentials: _ } = self;
        if host.contains(':') {
            write!(f, "http://[{host}]:{port}")
        } else {
            write!(f, "http://{host}:{port}")
        }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({self})")
    }
}

/// Parses `host`, `host:port`, `[v6]` or `[v6]:port`.
pub(super) fn split_port(authority: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            host.parse::<Ipv6Addr>().ok()?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        }
        None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() {
        return None;
    }
    match port {
        None => Some((host, None)),
        // Rejects `+80`, which would parse.
        Some(port) if port.bytes().all(|b| b.is_ascii_digit()) => Some((host, Some(port.parse().ok()?))),
        Some(_) => None,
    }
}

fn decode(text: &str) -> Result<String, SettingsError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let [high, low, tail @ ..] = rest else { return Err(SettingsError::Malformed) };
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let (high, low) = digit(*high).zip(digit(*low)).ok_or(SettingsError::Malformed)?;
        bytes.push(high * 16 + low);
        rest = tail;
    }
    let text = String::from_utf8(bytes).map_err(|_| SettingsError::Malformed)?;
    // They could end the header.
    if text.chars().any(char::is_control) { Err(SettingsError::Malformed) } else { Ok(text) }
}
