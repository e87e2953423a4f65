//! Making the connection, and one request on it.

use super::{
    SendError,
    proxy::{self, Proxy},
};
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use jiff::Timestamp;
use rustls::{ClientConfig, pki_types::ServerName};
use std::{fmt, io, sync::Arc, time::Duration};
use tidewatch_telemetry::chain;
use tidewatch_tls::{Files, HandshakeFailure, Reloaded, Store};
use tidewatch_wire::{ErrorBody, limits, v3};
use tokio::{net::TcpStream, task::JoinHandle};
use tokio_rustls::TlsConnector;

/// Largest answer: a full set of ranges in decimal for each of several routes stays below.
const MAX_ANSWER: usize = 4 * limits::V3_BODY_BYTES;
/// Largest error answer that is read.
const MAX_ERROR: usize = 16 * 1024;
/// How much of the receiver's words goes into an error.
const MAX_MESSAGE: usize = 300;
/// Longest wait a receiver may ask for; a wrong value must not silence an agent for good.
pub(super) const MAX_RETRY_AFTER: Duration = Duration::from_mins(5);
/// Pings go out also while nothing is sent: a dead path is noticed within this and the timeout.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the receiver is and how to prove oneself to it.
#[derive(Debug)]
pub struct Target {
    /// Host name or address; the receiver's certificate must be for it.
    pub host: String,
    /// Port.
    pub port: u16,
    /// The proxy on the way there, if there is one.
    pub proxy: Option<Proxy>,
    /// The TLS configuration in use.
    pub tls: Store<ClientConfig>,
    /// Where it comes from; looked at before each connection.
    pub files: Files,
}

/// Makes connections to one receiver.
#[derive(Clone, Debug)]
pub struct Connector {
    target: Arc<Target>,
    timeout: Duration,
    clock: fn() -> Timestamp,
}

/// The one connection. Dropping it closes it.
pub(super) struct Connection {
    requests: http2::SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
    uri: http::Uri,
}

impl Connector {
    /// `timeout` is for TCP, TLS and HTTP/2 together.
    pub fn new(target: Target, timeout: Duration, clock: fn() -> Timestamp) -> Self {
        Self { target: Arc::new(target), timeout, clock }
    }

    pub(super) async fn connect(self) -> Result<Connection, SendError> {
        tokio::time::timeout(self.timeout, self.connect_now()).await.unwrap_or(Err(SendError::Timeout))
    }

    async fn connect_now(&self) -> Result<Connection, SendError> {
        let Target { host, port, proxy: _, tls, files } = &*self.target;
        match tls.reload(files, (self.clock)()).await {
            Ok(Reloaded::Published) => tracing::debug!(not_after = %tls.not_after(), "TLS files read"),
            Ok(Reloaded::Unchanged) => {}
            Err(error) => tracing::warn!(error = %chain(&error), "keeping the last good certificate"),
        }
        let name = ServerName::try_from(host.clone())
            .map_err(|e| SendError::Connect(io::Error::new(io::ErrorKind::InvalidInput, e)))?;
        let uri = if host.contains(':') {
            format!("https://[{host}]:{port}{}", v3::PATH)
        } else {
            format!("https://{host}:{port}{}", v3::PATH)
        };
        let uri = uri.parse().map_err(|e| SendError::Request(Box::new(e)))?;

        let stream = self.stream().await?;
        let stream = TlsConnector::from(tls.current())
            .connect(name, stream)
            .await
            .map_err(|source| SendError::Handshake { failure: HandshakeFailure::from_io(&source), source })?;
        let (requests, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(SendError::Broken)?;
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                // In TLS 1.3 a refused client certificate shows only here.
                tracing::info!(error = %chain(&error), "the connection to the receiver ended");
            }
        });
        Ok(Connection { requests, driver, uri })
    }

    /// A stream to the receiver, directly or through the proxy.
    async fn stream(&self) -> Result<TcpStream, SendError> {
        let Target { host, port, proxy, .. } = &*self.target;
        let stream = match proxy {
            None => TcpStream::connect((host.as_str(), *port)).await.map_err(SendError::Connect)?,
            Some(proxy) => {
                let mut stream = TcpStream::connect(proxy.address()).await.map_err(SendError::Proxy)?;
                // Half of the time, so that it is said who did not answer.
                proxy::open(&mut stream, proxy, host, *port, self.timeout / 2).await?;
                stream
            }
        };
        // Batches are small and somebody waits for them.
        stream.set_nodelay(true).map_err(SendError::Connect)?;
        Ok(stream)
    }
}

impl Connection {
    /// Resolves when the connection has ended. Cancel-safe; not to be called again after it has resolved.
    pub(super) async fn closed(&mut self) {
        let _ = (&mut self.driver).await;
    }

    /// Sends a request and reads its answer, within `deadline`.
    pub(super) fn post(
        &self,
        request: &v3::Request,
        deadline: Duration,
    ) -> impl Future<Output = Result<v3::Response, SendError>> + Send + use<> {
        let made = self.make(request);
        let mut requests = self.requests.clone();
        async move {
            let request = made?;
            let exchange = async {
                requests.ready().await.map_err(SendError::Broken)?;
                read(requests.send_request(request).await.map_err(SendError::Broken)?).await
            };
            tokio::time::timeout(deadline, exchange).await.unwrap_or(Err(SendError::Timeout))
        }
    }

    fn make(&self, request: &v3::Request) -> Result<Request<Full<Bytes>>, SendError> {
        let body = serde_json::to_vec(request).map_err(|e| SendError::Request(Box::new(e)))?;
        Request::builder()
            .method(Method::POST)
            .uri(self.uri.clone())
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body.into()))
            .map_err(|e| SendError::Request(Box::new(e)))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("uri", &self.uri).finish_non_exhaustive()
    }
}

async fn read(response: http::Response<Incoming>) -> Result<v3::Response, SendError> {
    let (parts, body) = response.into_parts();
    if parts.status != StatusCode::OK {
        let retry_after = parts.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after = retry_after.and_then(|text| text.parse().ok()).map(Duration::from_secs);
        // An error without a readable body is an error all the same.
        let body = collect(body, MAX_ERROR).await.unwrap_or_default();
        return Err(SendError::Status {
            status: parts.status.as_u16(),
            message: words(&body),
            retry_after: retry_after.map(|wait| wait.min(MAX_RETRY_AFTER)),
        });
    }
    let body = collect(body, MAX_ANSWER).await?;
    serde_json::from_slice(&body).map_err(|e| SendError::Malformed(Box::new(e)))
}

async fn collect(body: Incoming, limit: usize) -> Result<Bytes, SendError> {
    #[expect(clippy::disallowed_methods, reason = "the body is limited")]
    let collected = Limited::new(body, limit).collect().await;
    match collected {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) => Err(match error.downcast::<hyper::Error>() {
            Ok(error) => SendError::Broken(*error),
            Err(error) => SendError::Malformed(error),
        }),
    }
}

fn words(body: &[u8]) -> String {
    let text = match serde_json::from_slice::<ErrorBody>(body) {
        Ok(ErrorBody { error, message }) => format!("{error}: {message}"),
        Err(_) => String::from_utf8_lossy(body).into_owned(),
    };
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_MESSAGE).collect()
}
