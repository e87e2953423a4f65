//! Admin endpoint: HTTP/1 without TLS.

use crate::{BuildInfo, Readiness, Reply, chain, metrics::Registry};
use http::{Method, Request, StatusCode};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use std::{convert::Infallible, fmt, pin::pin, sync::Arc, time::Duration};
use tidewatch_drain::{Drain, ShutdownSignal};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
};

/// Most connections; others wait.
pub const MAX_CONNECTIONS: usize = 64;

/// Includes idle time between requests.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Bounds clients that stop reading.
const MAX_LIFETIME: Duration = Duration::from_mins(10);
/// Time for the last answer.
const CLOSE_WAIT: Duration = Duration::from_secs(10);
/// For accept errors, such as no file descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(200);
/// In bytes; hyper's minimum is 8 KiB.
const MAX_HEAD: usize = 16 * 1024;

/// Handles path and query; `None` is 404. Must not block.
pub type Handler = Box<dyn Fn(&str, Option<&str>) -> Option<Reply> + Send + Sync>;

/// Admin endpoint.
pub struct AdminState {
    registry: Registry,
    readiness: Readiness,
    build: BuildInfo,
    routes: Vec<(String, Handler)>,
}

impl AdminState {
    /// Includes `/metrics`, `/healthz`, `/readyz` and `/version`.
    pub fn new(registry: Registry, readiness: Readiness, build: BuildInfo) -> Self {
        Self { registry, readiness, build, routes: Vec::new() }
    }

    /// Adds a GET and HEAD route. A pattern ending in `/*` matches paths below; the first match wins.
    #[must_use]
    pub fn route(
        mut self,
        pattern: impl Into<String>,
        handler: impl Fn(&str, Option<&str>) -> Option<Reply> + Send + Sync + 'static,
    ) -> Self {
        self.routes.push((pattern.into(), Box::new(handler)));
        self
    }

    fn answer(&self, method: &Method, path: &str, query: Option<&str>, draining: bool) -> Reply {
        let route = self.routes.iter().find(|(pattern, _)| matches(pattern, path));
        let built_in = matches!(path, "/metrics" | "/healthz" | "/readyz" | "/version");
        if (built_in || route.is_some()) && !matches!(*method, Method::GET | Method::HEAD) {
            return Reply::text("only GET and HEAD\n").with_status(StatusCode::METHOD_NOT_ALLOWED);
        }
        match path {
            "/metrics" => self.metrics(),
            "/healthz" => Reply::text("ok\n"),
            "/readyz" => self.readyz(draining),
            "/version" => Reply::json(&self.build.to_json()),
            _ => route.and_then(|(_, handler)| handler(path, query)).unwrap_or_else(|| self.not_found()),
        }
    }

    fn metrics(&self) -> Reply {
        match self.registry.encode() {
            Ok(text) => Reply::text(text).with_content_type(prometheus::TEXT_FORMAT),
            Err(error) => {
                tracing::error!(error = %chain(&error), "metrics could not be encoded");
                Reply::text("metrics could not be encoded; see the log\n")
                    .with_status(StatusCode::INTERNAL_SERVER_ERROR)
            }
        }
    }

    fn readyz(&self, draining: bool) -> Reply {
        let unready = self.readiness.unready();
        let ready = unready.is_empty() && !draining;
        let reply = Reply::json(&json!({"ready": ready, "draining": draining, "unready": unready}));
        reply.with_status(if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE })
    }

    fn not_found(&self) -> Reply {
        let mut text = String::from("not found; there are\n/healthz\n/metrics\n/readyz\n/version\n");
        for (pattern, _) in &self.routes {
            text.push_str(pattern);
            text.push('\n');
        }
        Reply::text(text).with_status(StatusCode::NOT_FOUND)
    }
}

impl fmt::Debug for AdminState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let routes: Vec<_> = self.routes.iter().map(|(pattern, _)| pattern).collect();
        f.debug_struct("AdminState")
            .field("build", &self.build)
            .field("routes", &routes)
            .finish_non_exhaustive()
    }
}

fn matches(pattern: &str, path: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => prefix.ends_with('/') && path.starts_with(prefix),
        None => path == pattern,
    }
}

/// Serves in the background and throughout the drain, with `/readyz` at 503.
pub fn serve(listener: TcpListener, state: AdminState, drain: &Drain) {
    drain.spawn_background("admin", accept(listener, Arc::new(state), drain.watch()));
}

async fn accept(listener: TcpListener, state: Arc<AdminState>, watch: ShutdownSignal) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    // Dropped with this task, which ends all connections.
    let mut connections = JoinSet::new();
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let (state, watch) = (Arc::clone(&state), watch.clone());
                connections.spawn(async move {
                    connection(stream, state, watch).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the admin endpoint cannot accept; trying again");
                tokio::time::sleep(ACCEPT_BACKOFF).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, state: Arc<AdminState>, watch: ShutdownSignal) {
    let service = service_fn(move |request: Request<Incoming>| {
        let uri = request.uri();
        let reply = state.answer(request.method(), uri.path(), uri.query(), watch.is_signaled());
        async move { Ok::<_, Infallible>(reply.into_response()) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let mut ended = tokio::time::timeout(MAX_LIFETIME, connection.as_mut()).await;
    if ended.is_err() {
        connection.as_mut().graceful_shutdown();
        ended = tokio::time::timeout(CLOSE_WAIT, connection).await;
    }
    if let Ok(Err(error)) = ended {
        tracing::debug!(error = %chain(&error), "an admin connection ended early");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const BUILD: BuildInfo = BuildInfo { name: "test", version: "1.2.3", commit: "abc" };

    struct Server {
        addr: SocketAddr,
        drain: Drain,
        readiness: Readiness,
    }

    async fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (drain, readiness) = (Drain::new(), Readiness::new());
        let state =
            AdminState::new(Registry::new("tidewatch_test", BUILD).unwrap(), readiness.clone(), BUILD)
                .route("/status", |_, query| Some(Reply::json(&json!({"query": query}))))
                .route("/runtimes/*", |path, _| {
                    (path == "/runtimes/one").then(|| Reply::text(path.to_owned()))
                });
        serve(listener, state, &drain);
        Server { addr, drain, readiness }
    }

    impl Server {
        async fn ask(&self, method: &str, path: &str) -> String {
            self.raw(&format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).await
        }

        async fn raw(&self, request: &str) -> String {
            let mut stream = TcpStream::connect(self.addr).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        }
    }

    #[tokio::test]
    async fn serves_metrics_health_version_and_status() {
        let server = start().await;
        let metrics = server.ask("GET", "/metrics").await;
        assert!(metrics.starts_with("HTTP/1.1 200"), "{metrics}");
        assert!(metrics.contains("content-type: text/plain; version=0.0.4"), "{metrics}");
        assert!(metrics.contains("tidewatch_test_build_info"), "{metrics}");
        assert!(server.ask("GET", "/healthz").await.ends_with("ok\n"));
        assert!(server.ask("GET", "/version").await.contains("\"version\": \"1.2.3\""));
        assert!(server.ask("GET", "/status?a=b").await.contains("\"query\": \"a=b\""));
        assert!(server.ask("GET", "/runtimes/one").await.ends_with("\r\n\r\n/runtimes/one"));
    }

    #[tokio::test]
    async fn ready_when_all_guards_are_gone_and_not_while_draining() {
        let server = start().await;
        let guard = server.readiness.register("watch kyma");
        let unready = server.ask("GET", "/readyz").await;
        assert!(unready.starts_with("HTTP/1.1 503") && unready.contains("watch kyma"), "{unready}");
        guard.ready();
        assert!(server.ask("GET", "/readyz").await.starts_with("HTTP/1.1 200"));
        server.drain.begin();
        let draining = server.ask("GET", "/readyz").await;
        assert!(
            draining.starts_with("HTTP/1.1 503") && draining.contains("\"draining\": true"),
            "{draining}"
        );
        assert!(server.ask("GET", "/healthz").await.starts_with("HTTP/1.1 200"), "alive while it drains");
        let _ = server.drain.shutdown(Duration::from_secs(5)).await;
        assert!(TcpStream::connect(server.addr).await.is_err(), "closed at the end");
    }

    #[tokio::test]
    async fn invalid_requests_get_their_status_code() {
        let server = start().await;
        let missing = server.ask("GET", "/nothing").await;
        assert!(missing.starts_with("HTTP/1.1 404") && missing.contains("/runtimes/*"), "{missing}");
        assert!(server.ask("GET", "/runtimes/two").await.starts_with("HTTP/1.1 404"));
        for path in ["/metrics", "/status", "/runtimes/one"] {
            let answer = server.ask("POST", path).await;
            assert!(answer.starts_with("HTTP/1.1 405") && answer.contains("allow: GET, HEAD"), "{answer}");
        }
        assert!(server.ask("HEAD", "/healthz").await.ends_with("\r\n\r\n"), "no body");
        assert!(server.raw("nonsense\r\n\r\n").await.starts_with("HTTP/1.1 400"));
        let body = "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc";
        assert!(server.raw(body).await.starts_with("HTTP/1.1 200"), "a body is ignored");
    }

    #[tokio::test]
    async fn connections_are_limited() {
        let server = start().await;
        let mut held = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            held.push(TcpStream::connect(server.addr).await.unwrap());
        }
        // All earlier connections are accepted first.
        let waiting = server.ask("GET", "/healthz");
        let mut waiting = pin!(waiting);
        assert!(tokio::time::timeout(Duration::from_millis(100), waiting.as_mut()).await.is_err());
        held.pop();
        assert!(waiting.await.starts_with("HTTP/1.1 200"));
    }
}
