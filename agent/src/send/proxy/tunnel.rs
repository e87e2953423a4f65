//! Opens tunnels (RFC 9110, CONNECT).

use super::{Proxy, TunnelError};
use base64::{Engine, engine::general_purpose::STANDARD};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// In bytes.
pub(super) const MAX_ANSWER: usize = 16 * 1024;
const END: &[u8] = b"\r\n\r\n";

/// Opens a tunnel to `host`: a name resolved by the proxy, or an address without brackets.
pub(in crate::send) async fn open<S>(
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
    if let Some(credentials) = &proxy.credentials {
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
        let room = MAX_ANSWER - answer.len();
        if room == 0 {
            return Err(TunnelError::TooLarge);
        }
        let read = (&mut *stream).take(room as u64).read_buf(&mut answer).await.map_err(TunnelError::Io)?;
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
