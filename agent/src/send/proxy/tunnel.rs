//! Opens tunnels (RFC 9110, CONNECT).

use super::address::Proxy;
use base64::{Engine, engine::general_purpose::STANDARD};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// In bytes.
const MAX_ANSWER: usize = 16 * 1024;
const END: &[u8] = b"\r\n\r\n";

/// Tunnel errors.
#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    /// Refused.
    #[error("the proxy answered {0}; does it allow connections to the receiver's host and port?")]
    Status(u16),
    /// Missing or wrong credentials.
    #[error("the proxy wants credentials (407); put user and password into the proxy's URL")]
    Credentials,
    /// The answer is not HTTP, or has extra data.
    #[error("the proxy's answer is not HTTP; is it an HTTP proxy?")]
    Malformed,
    /// The answer exceeds the limit.
    #[error("the proxy's answer is larger than {} bytes; is it an HTTP proxy?", MAX_ANSWER)]
    TooLarge,
    /// No answer in time.
    #[error("the proxy did not answer in time")]
    Timeout,
    /// The connection broke.
    #[error("the connection to the proxy broke")]
    Io(#[source] std::io::Error),
}

impl TunnelError {
    /// Returns a stable word for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Status(_) => "proxy_status",
            Self::Credentials => "proxy_credentials",
            Self::Malformed | Self::TooLarge => "proxy_malformed",
            Self::Timeout => "proxy_timeout",
            Self::Io(_) => "proxy_io",
        }
    }
}

/// Opens a tunnel to `host`: a name resolved by the proxy, or an address without brackets.
pub(crate) async fn open<S>(
    stream: &mut S,
    proxy: &Proxy,
    host: &str,
    port: u16,
    deadline: Duration,
) -> Result<(), TunnelError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let exchange = async {
        stream.write_all(request(proxy, host, port).as_bytes()).await.map_err(TunnelError::Io)?;
        stream.flush().await.map_err(TunnelError::Io)?;
        read(stream).await
    };
    tokio::time::timeout(deadline, exchange).await.unwrap_or(Err(TunnelError::Timeout))
}

fn request(proxy: &Proxy, host: &str, port: u16) -> String {
    let authority = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let mut request = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n");
    if let Some(credentials) = proxy.credentials() {
        request.push_str("Proxy-Authorization: Basic ");
        STANDARD.encode_string(credentials, &mut request);
        request.push_str("\r\n");
    }
    request.push_str("\r\n");
    request
}

async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<(), TunnelError> {
    let mut answer = Vec::with_capacity(512);
    let end = loop {
        // The end may span two reads.
        let from = answer.len().saturating_sub(END.len() - 1);
        let left = MAX_ANSWER - answer.len();
        if left == 0 {
            return Err(TunnelError::TooLarge);
        }
        let read = (&mut *stream).take(left as u64).read_buf(&mut answer).await.map_err(TunnelError::Io)?;
        if read == 0 {
            return Err(TunnelError::Io(std::io::ErrorKind::UnexpectedEof.into()));
        }
        if let Some(at) = answer[from..].windows(END.len()).position(|window| window == END) {
            break from + at + END.len();
        }
    };
    let status = status(&answer).ok_or(TunnelError::Malformed)?;
    match status {
        // TLS servers never speak first: extra data is the proxy's.
        200..300 if end == answer.len() => Ok(()),
        200..300 => Err(TunnelError::Malformed),
        407 => Err(TunnelError::Credentials),
        _ => Err(TunnelError::Status(status)),
    }
}

fn status(answer: &[u8]) -> Option<u16> {
    let rest = answer.strip_prefix(b"HTTP/1.")?;
    let [b'0' | b'1', b' ', code @ ..] = rest else { return None };
    let (code, after) = code.split_at_checked(3)?;
    let code: u16 =
        std::str::from_utf8(code).ok().filter(|c| c.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()?;
    (matches!(after.first(), Some(b' ' | b'\r')) && code >= 100).then_some(code)
}
