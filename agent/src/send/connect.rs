//! Connections to the receiver.

use super::{
    alert::{self, Alert, AlertObserver},
    error::SendError,
    material::{Material, Session},
    pieces::Pieces,
    proxy::{Proxy, tunnel},
    source::Source,
    transport::{Channel, Fate, Transport},
    v2::{Post, Translator},
};
use crate::metrics::Metrics;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use jiff::Timestamp;
use rustls::{ClientConfig, pki_types::ServerName};
use std::{
    collections::BTreeMap,
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tidewatch_drain::ShutdownSignal;
use tidewatch_tls::{HandshakeFailure, Store};
use tidewatch_wire::{
    Epoch, ErrorBody, Route,
    header_fields::{self, HeaderFields},
    limits, v3,
};
use tokio::{
    net::TcpStream,
    sync::{oneshot, watch},
    task::AbortHandle,
};
use tokio_rustls::TlsConnector;

/// Limit of an answer; fits decimal ranges of several routes.
const MAX_ANSWER: usize = 4 * limits::V3_BODY_BYTES;
/// Initial capacity of a body, and per event.
const MIN_BODY: usize = 512;
const EVENT: usize = 256;
const MAX_ERROR: usize = 16 * 1024;
/// In characters.
const MAX_MESSAGE: usize = 300;
/// A wrong `Retry-After` must not silence an agent.
pub(super) const MAX_RETRY_AFTER: Duration = Duration::from_mins(5);
/// Above the canary's interval: the canary already checks healthy connections. This halves idle traffic.
const PING_INTERVAL: Duration = Duration::from_secs(70);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Address of the receiver, and credentials.
#[derive(Debug)]
pub struct Target {
    /// Name or address in the receiver's certificate.
    pub host: String,
    /// Port.
    pub port: u16,
    /// The proxy, if any.
    pub proxy: Option<Proxy>,
    /// TLS configuration in use; `None` before the first certificate.
    pub tls: Option<Store<ClientConfig>>,
    /// Source of TLS material, checked regularly and before each connection.
    pub source: Source,
}

/// Connects to one receiver.
#[derive(Clone, Debug)]
pub struct Connector {
    pub(super) to: Arc<Receiver>,
    timeout: Duration,
    v2: Option<Arc<Translator>>,
}

#[derive(Debug)]
pub(super) struct Receiver {
    host: String,
    port: u16,
    proxy: Option<Proxy>,
    name: ServerName<'static>,
    uri: http::Uri,
    pub(super) material: Material,
}

/// A connection; after a drop, it closes when its requests end.
pub struct Connection {
    shared: Arc<Shared>,
    ended: oneshot::Receiver<SendError>,
    session: Session,
}

struct Shared {
    requests: http2::SendRequest<Pieces>,
    driver: AbortHandle,
    uri: http::Uri,
    v2: Option<Arc<Translator>>,
    /// Constant fields may be headers. Another receiver behind a load balancer may refuse that once; the next request
    /// is complete.
    brief: AtomicBool,
    /// Some proxy removes headers, so send complete requests.
    plain: AtomicBool,
    /// TLS 1.3 reports a refused certificate after the handshake.
    alert: Alert,
}

impl Connector {
    /// Creates a connector. `timeout` covers proxy, TCP, TLS and HTTP/2 together. Fails for invalid hosts.
    pub fn new(
        target: Target,
        timeout: Duration,
        clock: fn() -> Timestamp,
        metrics: Metrics,
    ) -> Result<Self, SendError> {
        let Target { host, port, proxy, tls, source } = target;
        let name = ServerName::try_from(host.clone()).map_err(|e| SendError::Request(Box::new(e)))?;
        let bracketed = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let uri = format!("https://{bracketed}:{port}{}", v3::PATH);
        let uri = uri.parse().map_err(|e| SendError::Request(Box::new(e)))?;
        let material = Material::new(tls, source, clock, metrics);
        Ok(Self { to: Arc::new(Receiver { host, port, proxy, name, uri, material }), timeout, v2: None })
    }

    /// Makes the connector speak v2.
    #[must_use]
    pub fn speaking_v2(mut self, translator: Translator) -> Self {
        self.v2 = Some(Arc::new(translator));
        self
    }

    /// [`Health::trust`](tidewatch_wire::v3::Health::trust) of the CAs in use.
    #[must_use]
    pub fn trust(&self) -> String {
        self.to.material.trust()
    }

    /// Follows the TLS material until shutdown, for later connections.
    pub async fn watch_certificates(self, shutdown: ShutdownSignal) {
        tokio::select! {
            () = shutdown.signaled() => {}
            () = self.to.material.watch() => {}
        }
    }

    async fn connect_now(&self) -> Result<Connection, SendError> {
        self.to.material.reload().await;
        let (config, not_after) = self.to.material.current()?;
        let stream = self.stream().await?;
        let stream = TlsConnector::from(Arc::clone(&config))
            .connect(self.to.name.clone(), stream)
            .await
            .map_err(handshake)?;
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let chain = chain.iter().map(|certificate| certificate.clone().into_owned()).collect();
        let session = Session { config, not_after, chain };
        let alert = Alert::default();
        let (requests, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(AlertObserver::new(stream, alert.clone())))
            .await
            .map_err(|error| alert.explain(error))?;
        let (ends, ended) = oneshot::channel();
        let driver_alert = alert.clone();
        let driver = tokio::spawn(async move {
            let error =
                connection.await.map_or_else(|error| driver_alert.explain(error), |()| SendError::Closed);
            let _ = ends.send(error);
        });
        let (driver, uri, v2) = (driver.abort_handle(), self.to.uri.clone(), self.v2.clone());
        let shared = Arc::new(Shared {
            requests,
            driver,
            uri,
            v2,
            brief: AtomicBool::new(false),
            plain: AtomicBool::new(false),
            alert,
        });
        Ok(Connection { shared, ended, session })
    }

    async fn stream(&self) -> Result<TcpStream, SendError> {
        let Receiver { host, port, proxy, .. } = &*self.to;
        let stream = match proxy {
            None => TcpStream::connect((host.as_str(), *port)).await.map_err(SendError::Connect)?,
            Some(proxy) => {
                let mut stream = TcpStream::connect(proxy.address()).await.map_err(SendError::Proxy)?;
                // Half, so that the error names the proxy.
                tunnel::open(&mut stream, proxy, host, *port, self.timeout / 2).await?;
                stream
            }
        };
        // Small batches must not wait.
        stream.set_nodelay(true).map_err(SendError::Connect)?;
        Ok(stream)
    }
}

impl Transport for Connector {
    type Connection = Connection;

    async fn connect(self) -> Result<Connection, SendError> {
        tokio::time::timeout(self.timeout, self.connect_now()).await.unwrap_or(Err(SendError::Timeout))
    }

    fn renewals(&self) -> watch::Receiver<()> {
        self.to.material.changes()
    }

    fn replace_certificate(&self) {
        self.to.material.replace_source();
    }

    fn fate(&self, connection: &Connection) -> Fate {
        self.to.material.fate(&connection.session, &self.to.name)
    }

    fn set_routes(&self, routes: &BTreeMap<String, Vec<Route>>) {
        if let Some(v2) = &self.v2 {
            v2.set_routes(routes.clone());
        }
    }
}

impl Channel for Connection {
    fn not_after(&self) -> Timestamp {
        self.session.not_after
    }

    async fn closed(&mut self) -> SendError {
        (&mut self.ended).await.unwrap_or(SendError::Closed)
    }

    fn post(
        &self,
        request: &v3::Request<'static>,
        deadline: Duration,
    ) -> impl Future<Output = Result<v3::Response, SendError>> + Send + use<> {
        let v2 = self.shared.v2.clone().map(|v2| (v2, request.clone()));
        let made = self.make(request);
        // Keeps the connection open.
        let shared = Arc::clone(&self.shared);
        async move {
            if let Some((v2, batch)) = v2 {
                let send = |post, limit| single(&shared, post, limit);
                return v2.deliver(batch, deadline, send).await;
            }
            let (request, epoch) = made?;
            let mut requests = shared.requests.clone();
            let exchange = async {
                let broken = |error| shared.alert.explain(error);
                requests.ready().await.map_err(broken)?;
                let answer = requests.send_request(request).await.map_err(broken)?;
                let session = answer.headers().get(header_fields::SESSION).map(HeaderValue::as_bytes);
                let session = header_fields::session(session);
                shared.brief.store(session.is_some(), Ordering::Relaxed);
                if epoch.is_some() && answer.status() == StatusCode::BAD_REQUEST {
                    shared.plain.store(true, Ordering::Relaxed);
                }
                let answer = header_fields::complete(read(answer).await?, epoch, session);
                answer.ok_or_else(|| SendError::Malformed("it names no session".into()))
            };
            tokio::time::timeout(deadline, exchange).await.unwrap_or(Err(SendError::Timeout))
        }
    }
}

impl Connection {
    /// The epoch is `Some` if it is in a header.
    fn make(&self, request: &v3::Request<'static>) -> Result<(Request<Pieces>, Option<Epoch>), SendError> {
        let mut made = Request::builder()
            .method(Method::POST)
            .uri(self.shared.uri.clone())
            .header(header::CONTENT_TYPE, "application/json");
        // Irrelevant in large requests.
        let allowed = self.shared.brief.load(Ordering::Relaxed) && !self.shared.plain.load(Ordering::Relaxed);
        let brief = request.events.len() <= 1 && allowed;
        let body = if brief {
            let mut rest = request.clone();
            for (name, value) in HeaderFields::take(&mut rest).headers() {
                made = made.header(name, value);
            }
            json(&rest)
        } else {
            json(request)
        };
        let body = body.map_err(|e| SendError::Request(Box::new(e)))?;
        let made = made.body(body.into()).map_err(|e| SendError::Request(Box::new(e)))?;
        Ok((made, brief.then_some(request.epoch)))
    }
}

/// Preallocates: growing bodies fragment half a MiB of memory.
fn json(request: &v3::Request<'static>) -> Result<Vec<u8>, serde_json::Error> {
    let mut body = Vec::with_capacity(MIN_BODY + request.events.len() * EVENT);
    serde_json::to_writer(&mut body, request)?;
    Ok(body)
}

/// Sends a v2 request; returns the HTTP status.
fn single(
    shared: &Shared,
    post: Post,
    limit: Duration,
) -> impl Future<Output = Result<u16, SendError>> + Send + use<> {
    let (mut requests, alert) = (shared.requests.clone(), shared.alert.clone());
    let made = shared.uri.authority().cloned().map(|authority| {
        let uri = http::Uri::builder().scheme("https").authority(authority).path_and_query(post.path).build();
        Request::post(uri.unwrap_or_default())
            .header(header::CONTENT_TYPE, "application/json")
            .body(post.body.into())
            .map_err(|e| SendError::Request(Box::new(e)))
    });
    async move {
        let request = made.ok_or(SendError::Closed)??;
        let exchange = async {
            let broken = |error| alert.explain(error);
            requests.ready().await.map_err(broken)?;
            // Dropping the body resets the stream.
            Ok(requests.send_request(request).await.map_err(broken)?.status().as_u16())
        };
        tokio::time::timeout(limit, exchange).await.unwrap_or(Err(SendError::Timeout))
    }
}

fn handshake(source: io::Error) -> SendError {
    match alert::received(&source) {
        Some(failure) => SendError::Refused(failure),
        None => SendError::Handshake { failure: HandshakeFailure::from_io(&source), source },
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("uri", &self.shared.uri).finish_non_exhaustive()
    }
}

async fn read(response: http::Response<Incoming>) -> Result<v3::Response, SendError> {
    let (parts, body) = response.into_parts();
    if parts.status != StatusCode::OK {
        let retry_after = parts.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after = retry_after.and_then(|text| text.parse().ok()).map(Duration::from_secs);
        let body = collect(body, MAX_ERROR).await.unwrap_or_default();
        return Err(SendError::Status {
            status: parts.status.as_u16(),
            message: printable(&body),
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

fn printable(body: &[u8]) -> String {
    let text = match serde_json::from_slice::<ErrorBody>(body) {
        Ok(ErrorBody { error, message }) => format!("{error}: {message}"),
        Err(_) => String::from_utf8_lossy(body).into_owned(),
    };
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_MESSAGE).collect()
}
