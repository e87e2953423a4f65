//! A minimal client of an event port: one mTLS connection, HTTP/2, raw bodies.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Request, StatusCode, client::conn::http2, header::CONTENT_TYPE};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{ClientConfig, pki_types::ServerName};
use tidewatch_wire::v3;
use tokio::{net::TcpStream, task::JoinSet};
use tokio_rustls::TlsConnector;

/// Limit on an answer's bytes.
const MAX_ANSWER: usize = 1024 * 1024;

/// Address and identity.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) port: u16,
    pub(super) tls: Arc<ClientConfig>,
}

pub(super) struct Connection {
    requests: http2::SendRequest<Full<Bytes>>,
    uri: String,
    _driver: JoinSet<()>,
}

impl Target {
    pub(super) async fn connect(&self) -> Result<Connection> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await.context("no TCP connection")?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from("localhost")?;
        let stream =
            TlsConnector::from(Arc::clone(&self.tls)).connect(name, stream).await.context("no TLS")?;
        let (requests, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        let mut driver = JoinSet::new();
        // The failing request reports the error.
        driver.spawn(async move { drop(connection.await) });
        let uri = format!("https://localhost:{}{}", self.port, v3::PATH);
        Ok(Connection { requests, uri, _driver: driver })
    }
}

impl Connection {
    /// Sends one POST, requires status 200, returns the answer's body.
    #[allow(clippy::disallowed_methods, reason = "the body is limited here")]
    pub(super) async fn post(&self, body: Bytes) -> Result<Bytes> {
        let mut requests = self.requests.clone();
        requests.ready().await?;
        let request =
            Request::post(&self.uri).header(CONTENT_TYPE, "application/json").body(Full::new(body))?;
        let answer = requests.send_request(request).await?;
        let status = answer.status();
        let body =
            Limited::new(answer.into_body(), MAX_ANSWER).collect().await.map_err(|e| anyhow::anyhow!(e))?;
        let body = body.to_bytes();
        ensure!(status == StatusCode::OK, "answered with {status}: {}", String::from_utf8_lossy(&body));
        Ok(body)
    }
}
