//! A raw client of the event port: optional certificate, HTTP/1.1 or HTTP/2, arbitrary bodies, one kept
//! connection.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt, Full, Limited, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Request, Response,
    body::{Frame, Incoming},
    client::conn::{http1, http2},
    header::HOST,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tidewatch_certs::Issued;
use tokio::{net::TcpStream, task::JoinSet, time::timeout};
use tokio_rustls::TlsConnector;

use crate::fleet::Receiver;

/// Timeout. Operations take milliseconds.
const LIMIT: Duration = Duration::from_secs(20);
/// Limit on an answer's bytes.
const MAX_ANSWER: usize = 1024 * 1024;
/// Piece size of a body without length.
const PIECE: usize = 8 * 1024;

/// A body with or without a length.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The HTTP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http {
    /// HTTP/1.1
    H1,
    /// HTTP/2
    H2,
}

/// Returns a body with a length.
pub fn sized(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

/// Returns `length` bytes without a length header: chunked in HTTP/1.1, no `content-length` in HTTP/2.
pub fn unsized_of(byte: u8, length: usize) -> Body {
    counted(byte, length, Arc::default())
}

/// Like [`unsized_of`]; `sent` counts the bytes that the connection has taken.
pub fn counted(byte: u8, length: usize, sent: Arc<AtomicUsize>) -> Body {
    let pieces = (0..length).step_by(PIECE).map(move |at| {
        let piece = vec![byte; PIECE.min(length - at)];
        sent.fetch_add(piece.len(), Ordering::Relaxed);
        Ok(Frame::data(Bytes::from(piece)))
    });
    StreamBody::new(stream::iter(pieces)).boxed_unsync()
}

enum Sender {
    H1(http1::SendRequest<Body>),
    H2(http2::SendRequest<Body>),
}

/// An open connection to a receiver. Dropping it closes it.
pub struct Connection {
    sender: Sender,
    host: String,
    // Runs the connection.
    _driver: JoinSet<()>,
}

/// A fully read answer.
pub type Answer = Response<Bytes>;

impl Connection {
    /// Opens a connection, with or without a certificate. With TLS 1.3, a rejected certificate can fail only
    /// the first request.
    pub async fn open(receiver: &Receiver, identity: Option<&Issued>, http: Http) -> Result<Self> {
        let host = receiver.url.strip_prefix("https://").context("the receiver's URL is not https")?;
        let mut config = client_config(receiver.ca.cert_pem(), identity)?;
        config.alpn_protocols = vec![match http {
            Http::H1 => b"http/1.1".to_vec(),
            Http::H2 => b"h2".to_vec(),
        }];
        let work = async {
            let tcp = TcpStream::connect(host).await?;
            tcp.set_nodelay(true)?;
            let name = ServerName::try_from("localhost")?;
            let tls = TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
            let io = TokioIo::new(tls);
            let mut driver = JoinSet::new();
            // The pending request reports a connection error.
            let sender = match http {
                Http::H1 => {
                    let (sender, connection) = http1::handshake(io).await?;
                    driver.spawn(async move { drop(connection.await) });
                    Sender::H1(sender)
                }
                Http::H2 => {
                    let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
                    driver.spawn(async move { drop(connection.await) });
                    Sender::H2(sender)
                }
            };
            Ok(Self { sender, host: host.to_owned(), _driver: driver })
        };
        match timeout(LIMIT, work).await {
            Ok(opened) => opened,
            Err(_) => bail!("no connection to {host} within {LIMIT:?}"),
        }
    }

    /// Sends a request and reads the answer.
    pub async fn send(&mut self, method: &str, path: &str, body: Body) -> Result<Answer> {
        self.send_with(method, path, &[], body).await
    }

    /// Sends a request with headers and reads the answer.
    pub async fn send_with(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Body,
    ) -> Result<Answer> {
        let what = format!("{method} {path}");
        let request = headers
            .iter()
            .fold(Request::builder().method(method), |request, (name, value)| request.header(*name, *value));
        let exchange = async {
            let answer = match &mut self.sender {
                Sender::H1(sender) => {
                    sender.ready().await?;
                    let request = request.uri(path).header(HOST, &self.host);
                    sender.send_request(request.body(body)?).await?
                }
                Sender::H2(sender) => {
                    sender.ready().await?;
                    let uri = format!("https://{}{path}", self.host);
                    sender.send_request(request.uri(uri).body(body)?).await?
                }
            };
            read(answer).await
        };
        match timeout(LIMIT, exchange).await {
            Ok(answer) => answer.with_context(|| format!("{what} was not answered")),
            Err(_) => bail!("{what}: no answer within {LIMIT:?}"),
        }
    }

    /// Returns whether the connection accepts another request.
    pub fn is_usable(&self) -> bool {
        match &self.sender {
            Sender::H1(sender) => !sender.is_closed(),
            Sender::H2(sender) => !sender.is_closed(),
        }
    }
}

/// Returns the certificate that a receiver shows in a new handshake.
pub async fn served_certificate(receiver: &Receiver) -> Result<CertificateDer<'static>> {
    let address = receiver.url.strip_prefix("https://").context("the receiver's URL is not https")?;
    let (host, _) = address.rsplit_once(':').context("the receiver's URL has no port")?;
    let config = client_config(receiver.ca.cert_pem(), None)?;
    let tcp = TcpStream::connect(address).await?;
    let connecting =
        TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(host.to_owned())?, tcp);
    let stream = timeout(LIMIT, connecting).await??;
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    Ok(chain.first().context("the receiver shows no certificate")?.clone().into_owned())
}

#[allow(clippy::disallowed_methods, reason = "the body is limited here")]
async fn read(answer: Response<Incoming>) -> Result<Answer> {
    let (parts, body) = answer.into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await.map_err(|e| anyhow::anyhow!(e))?.to_bytes();
    Ok(Response::from_parts(parts, body))
}

/// A TLS client that trusts one CA and, unlike the agent, can omit a certificate.
fn client_config(ca_pem: &str, identity: Option<&Issued>) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca_pem.as_bytes())?)?;
    let config = ClientConfig::builder_with_provider(tidewatch_tls::provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let Some(Issued { cert_pem, key_pem, .. }) = identity else { return Ok(config.with_no_client_auth()) };
    let chain: Vec<_> = CertificateDer::pem_slice_iter(cert_pem.as_bytes()).collect::<Result<_, _>>()?;
    ensure!(!chain.is_empty(), "the identity has no certificate");
    let key = PrivateKeyDer::from_pem_slice(key_pem.as_str().as_bytes())?;
    Ok(config.with_client_auth_cert(chain, key)?)
}
