//! An anonymous, in-memory OCI registry: plain HTTP on loopback, bounded.
//!
//! Supports whole uploads, blobs, manifests, tags; else 405.

mod contents;

use std::{
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tidewatch_drain::{Drain, ShutdownSignal};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::timeout,
};

use self::contents::{Answer, Contents};
use crate::StartError;

/// Total bytes.
const LIMIT: u64 = 256 * 1024 * 1024;
/// Bytes per upload.
const MAX_BODY: usize = 32 * 1024 * 1024;
/// Concurrent connections, each with one upload in memory; more wait.
const CONNECTIONS: usize = 32;
/// Per request head and body.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A registry, running until drained.
#[derive(Clone, Debug)]
pub struct Registry {
    address: SocketAddr,
    trouble: Arc<Mutex<Trouble>>,
    refused: Arc<AtomicUsize>,
}

/// Injected faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trouble {
    /// Delay of each answer.
    pub latency: Duration,
    /// Status for every request.
    pub refuse: Option<u16>,
    /// `Retry-After` in seconds.
    pub retry_after: Option<u64>,
    /// Beginning of the `User-Agent` of affected clients; `None`: all.
    pub user_agent: Option<&'static str>,
}

impl Trouble {
    /// The faults of this request.
    fn of(self, headers: &HeaderMap) -> Self {
        let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or_default();
        let is_affected = self.user_agent.is_none_or(|affected| agent.starts_with(affected));
        if is_affected { self } else { Self::default() }
    }
}

impl Registry {
    /// Listens on a free port.
    pub async fn start(drain: &Drain) -> Result<Self, StartError> {
        let wanted = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let wrong = |error| StartError::Listen(wanted, error);
        let listener = TcpListener::bind(wanted).await.map_err(wrong)?;
        let address = listener.local_addr().map_err(wrong)?;
        let contents = Arc::new(Mutex::new(Contents::with_limit(LIMIT)));
        let trouble = Arc::new(Mutex::new(Trouble::default()));
        let refused: Arc<AtomicUsize> = Arc::default();
        let backend = Backend { contents, trouble: Arc::clone(&trouble), refused: Arc::clone(&refused) };
        drain.spawn("simulated-registry", accept(listener, backend, drain.clone()));
        Ok(Self { address, trouble, refused })
    }

    /// Returns `127.0.0.1:port`.
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// Replaces the faults.
    pub fn set_trouble(&self, trouble: Trouble) {
        *self.trouble.lock() = trouble;
    }

    /// Requests refused by [`Trouble::refuse`].
    pub fn refused(&self) -> usize {
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns `http://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

#[derive(Clone)]
struct Backend {
    contents: Arc<Mutex<Contents>>,
    trouble: Arc<Mutex<Trouble>>,
    refused: Arc<AtomicUsize>,
}

async fn accept(listener: TcpListener, backend: Backend, drain: Drain) {
    let (watch, connections) = (drain.watch(), Arc::new(Semaphore::new(CONNECTIONS)));
    loop {
        let accepted = async {
            let permit = Arc::clone(&connections).acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, stream) = tokio::select! {
            () = watch.signaled() => return,
            (Ok(permit), accepted) = accepted => match accepted {
                Ok((stream, _)) => (permit, stream),
                Err(error) => {
                    tracing::warn!(%error, "the simulated registry cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
            else => return,
        };
        let (backend, watch) = (backend.clone(), watch.clone());
        drain.spawn("simulated-registry-connection", async move {
            connection(stream, backend, watch).await;
            drop(permit);
        });
    }
}

async fn connection(stream: TcpStream, backend: Backend, watch: ShutdownSignal) {
    let service = service_fn(move |request: Request<Incoming>| {
        let backend = backend.clone();
        async move {
            let trouble = *backend.trouble.lock();
            let Trouble { latency, refuse, retry_after, .. } = trouble.of(request.headers());
            if !latency.is_zero() {
                tokio::time::sleep(latency).await;
            }
            Ok::<_, Infallible>(match refuse {
                Some(code) => {
                    backend.refused.fetch_add(1, Ordering::Relaxed);
                    let mut answer =
                        response(request.method(), contents::error(code, "DENIED", "injected fault"));
                    if let Some(seconds) = retry_after {
                        answer.headers_mut().insert(header::RETRY_AFTER, seconds.into());
                    }
                    answer
                }
                None => respond(request, &backend.contents).await,
            })
        }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(TIMEOUT);
    tokio::select! {
        () = watch.signaled() => {}
        _ = builder.serve_connection(TokioIo::new(stream), service) => {}
    }
}

async fn respond(request: Request<Incoming>, contents: &Mutex<Contents>) -> Response<Full<Bytes>> {
    let (parts, body) = request.into_parts();
    let Some(call) = contents::call(parts.uri.path()) else {
        return response(&parts.method, contents::error(404, "UNSUPPORTED", "a registry is below /v2/"));
    };
    #[expect(clippy::disallowed_methods, reason = "the body is limited here")]
    let body = match timeout(TIMEOUT, Limited::new(body, MAX_BODY).collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) => {
            let answer = contents::error(413, "SIZE_INVALID", "the upload is too large, or broke off");
            return response(&parts.method, answer);
        }
        Err(_) => {
            return response(&parts.method, contents::error(408, "BLOB_UPLOAD_INVALID", "it took too long"));
        }
    };
    let digest = parts.uri.query().into_iter().flat_map(|query| query.split('&')).find_map(|pair| {
        // A digest's only escaped character.
        Some(pair.strip_prefix("digest=")?.replace("%3A", ":").replace("%3a", ":"))
    });
    let media = parts.headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let answer = contents.lock().answer(parts.method.as_str(), &call, digest.as_deref(), media, body);
    response(&parts.method, answer)
}

fn response(method: &Method, answer: Answer) -> Response<Full<Bytes>> {
    let Answer { code, headers, body } = answer;
    let length = body.len();
    let body = if method == Method::HEAD { Bytes::new() } else { body };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in headers {
        if let Ok(value) = value.parse() {
            response.headers_mut().insert(name, value);
        }
    }
    response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    response
}
