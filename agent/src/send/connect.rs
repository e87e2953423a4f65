//! Making the connection, and one request on it.

use super::{
    Channel, SendError, Transport,
    alert::{self, Alert, Heard},
    material::{Fate, Material},
    pieces::Pieces,
    proxy::{self, Proxy},
    v2::{Post, Translator},
};
use crate::metrics::Metrics;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use jiff::Timestamp;
use rustls::{
    ClientConfig,
    pki_types::{CertificateDer, ServerName},
};
use std::{
    collections::BTreeMap,
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tidewatch_drain::Watch;
use tidewatch_tls::{Files, HandshakeFailure, Store};
use tidewatch_wire::{
    Epoch, ErrorBody, Route, limits,
    standing::{self, Standing},
    v3,
};
use tokio::{
    net::TcpStream,
    sync::{oneshot, watch},
    task::AbortHandle,
};
use tokio_rustls::TlsConnector;

/// Largest answer: a full set of ranges in decimal for each of several routes stays below.
const MAX_ANSWER: usize = 4 * limits::V3_BODY_BYTES;
/// What a body has room for at first: for itself, and for each event, whose names are seldom longer.
const LEAST_BODY: usize = 512;
const EVENT: usize = 256;
/// Largest error answer that is read.
const MAX_ERROR: usize = 16 * 1024;
/// How much of the receiver's words goes into an error.
const MAX_MESSAGE: usize = 300;
/// Longest wait a receiver may ask for; a wrong value must not silence an agent for good.
pub(super) const MAX_RETRY_AFTER: Duration = Duration::from_mins(5);
/// When nothing was heard for so long: longer than the canary's minute, which does the same for a connection that works
/// and costs an idle agent half as many bytes.
const PING_INTERVAL: Duration = Duration::from_secs(70);
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
    /// Where it comes from; looked at now and then, and before each connection.
    pub files: Files,
}

/// Makes connections to one receiver.
#[derive(Clone, Debug)]
pub struct Connector {
    pub(super) to: Arc<Receiver>,
    timeout: Duration,
    /// For a receiver that speaks only v2.
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

/// The one connection. When it is dropped, it is closed as soon as its requests have ended.
pub struct Connection {
    shared: Arc<Shared>,
    /// Says why the connection has ended.
    ended: oneshot::Receiver<SendError>,
    /// What it was made with, and when the certificate in it ends.
    pub(super) config: Arc<ClientConfig>,
    pub(super) not_after: Timestamp,
    /// The receiver's certificate and its intermediates.
    pub(super) chain: Vec<CertificateDer<'static>>,
}

/// What a connection and its requests have together.
struct Shared {
    requests: http2::SendRequest<Pieces>,
    driver: AbortHandle,
    uri: http::Uri,
    v2: Option<Arc<Translator>>,
    /// The last answer says that what is the same in every request may stand in headers. Behind a load balancer the next
    /// one may come from a receiver that does not know that; it refuses the request, and hears all of it the next time.
    brief: AtomicBool,
    /// A request that relied on headers was refused as malformed: something on the way takes them out.
    plain: AtomicBool,
    /// In TLS 1.3, a refused client certificate shows only after the handshake.
    alert: Alert,
}

impl Connector {
    /// `timeout` is for the proxy, TCP, TLS and HTTP/2 together. Fails when the host is neither a name nor an address.
    pub fn new(
        target: Target,
        timeout: Duration,
        clock: fn() -> Timestamp,
        metrics: Metrics,
    ) -> Result<Self, SendError> {
        let Target { host, port, proxy, tls, files } = target;
        let name = ServerName::try_from(host.clone()).map_err(|e| SendError::Request(Box::new(e)))?;
        let bracketed = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let uri = format!("https://{bracketed}:{port}{}", v3::PATH);
        let uri = uri.parse().map_err(|e| SendError::Request(Box::new(e)))?;
        let material = Material::new(tls, files, clock, metrics);
        Ok(Self { to: Arc::new(Receiver { host, port, proxy, name, uri, material }), timeout, v2: None })
    }

    /// The same, for a receiver that speaks only v2.
    #[must_use]
    pub fn speaking_v2(mut self, translator: Translator) -> Self {
        self.v2 = Some(Arc::new(translator));
        self
    }

    /// Looks at the TLS files until shutdown begins. New ones are used for the next connection, and the sender hears
    /// of them.
    pub async fn watch_files(self, shutdown: Watch) {
        tokio::select! {
            () = shutdown.signaled() => {}
            () = self.to.material.watch() => {}
        }
    }

    async fn connect_now(&self) -> Result<Connection, SendError> {
        self.to.material.look().await;
        let (config, not_after) = self.to.material.current();
        let stream = self.stream().await?;
        let stream = TlsConnector::from(Arc::clone(&config))
            .connect(self.to.name.clone(), stream)
            .await
            .map_err(handshake)?;
        let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let shown: Vec<_> = shown.iter().map(|certificate| certificate.clone().into_owned()).collect();
        let alert = Alert::default();
        let (requests, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(Heard::new(stream, alert.clone())))
            .await
            .map_err(|error| alert.explain(error))?;
        let (ends, ended) = oneshot::channel();
        let of_driver = alert.clone();
        let driver = tokio::spawn(async move {
            let error =
                connection.await.map_or_else(|error| of_driver.explain(error), |()| SendError::Closed);
            // Nobody listens after a connection that was replaced.
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
        Ok(Connection { shared, ended, config, not_after, chain: shown })
    }

    /// A stream to the receiver, directly or through the proxy.
    async fn stream(&self) -> Result<TcpStream, SendError> {
        let Receiver { host, port, proxy, .. } = &*self.to;
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

impl Transport for Connector {
    type Connection = Connection;

    async fn connect(self) -> Result<Connection, SendError> {
        tokio::time::timeout(self.timeout, self.connect_now()).await.unwrap_or(Err(SendError::Timeout))
    }

    /// Changes when there is another certificate or CA bundle.
    fn renewals(&self) -> watch::Receiver<()> {
        self.to.material.changes()
    }

    fn fate(&self, connection: &Connection) -> Fate {
        self.to.material.fate(connection, &self.to.name)
    }

    /// Tells whoever sends on its connections of other routes by watch.
    fn set_routes(&self, routes: &BTreeMap<String, Vec<Route>>) {
        if let Some(v2) = &self.v2 {
            v2.set_routes(routes.clone());
        }
    }
}

impl Channel for Connection {
    fn not_after(&self) -> Timestamp {
        self.not_after
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
        // Held to the end: the connection stays as long as one of its requests.
        let shared = Arc::clone(&self.shared);
        async move {
            if let Some((v2, batch)) = v2 {
                let send = |post, limit| single(shared.requests.clone(), &shared.uri, post, limit);
                return v2.deliver(batch, deadline, send).await;
            }
            let (request, epoch) = made?;
            let mut requests = shared.requests.clone();
            let exchange = async {
                let broken = |error| shared.alert.explain(error);
                requests.ready().await.map_err(broken)?;
                let answer = requests.send_request(request).await.map_err(broken)?;
                let session = answer.headers().get(standing::SESSION).map(HeaderValue::as_bytes);
                let session = standing::session(session);
                shared.brief.store(session.is_some(), Ordering::Relaxed);
                if epoch.is_some() && answer.status() == StatusCode::BAD_REQUEST {
                    shared.plain.store(true, Ordering::Relaxed);
                }
                let answer = standing::complete(read(answer).await?, epoch, session);
                answer.ok_or_else(|| SendError::Malformed("it names no session".into()))
            };
            tokio::time::timeout(deadline, exchange).await.unwrap_or(Err(SendError::Timeout))
        }
    }
}

impl Connection {
    /// The request, and its epoch if that stands in a header.
    fn make(&self, request: &v3::Request<'static>) -> Result<(Request<Pieces>, Option<Epoch>), SendError> {
        let mut made = Request::builder()
            .method(Method::POST)
            .uri(self.shared.uri.clone())
            .header(header::CONTENT_TYPE, "application/json");
        // In a large one it makes no difference.
        let allowed = self.shared.brief.load(Ordering::Relaxed) && !self.shared.plain.load(Ordering::Relaxed);
        let brief = request.events.len() <= 1 && allowed;
        let body = if brief {
            let mut rest = request.clone();
            for (name, value) in Standing::take(&mut rest).headers() {
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

/// A body that is written where it stays: one that grows leaves half a MiB behind in pieces.
fn json(request: &v3::Request<'static>) -> Result<Vec<u8>, serde_json::Error> {
    let mut body = Vec::with_capacity(LEAST_BODY + request.events.len() * EVENT);
    serde_json::to_writer(&mut body, request)?;
    Ok(body)
}

/// Sends one request of the v2 contract, and returns the status of its answer.
fn single(
    mut requests: http2::SendRequest<Pieces>,
    uri: &http::Uri,
    post: Post,
    limit: Duration,
) -> impl Future<Output = Result<u16, SendError>> + Send + use<> {
    let made = uri.authority().cloned().map(|authority| {
        let uri = http::Uri::builder().scheme("https").authority(authority).path_and_query(post.path).build();
        Request::post(uri.unwrap_or_default())
            .header(header::CONTENT_TYPE, "application/json")
            .body(post.body.into())
            .map_err(|e| SendError::Request(Box::new(e)))
    });
    async move {
        let request = made.ok_or(SendError::Closed)??;
        let exchange = async {
            requests.ready().await.map_err(SendError::Broken)?;
            // The body means nothing; dropping it resets the stream if there is more of it.
            Ok(requests.send_request(request).await.map_err(SendError::Broken)?.status().as_u16())
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
