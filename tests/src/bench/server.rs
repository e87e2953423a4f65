//! Yardsticks of the event port: mTLS, HTTP/2, read the body, answer. They have no identity check, parsing,
//! ledger or queue.

use std::{convert::Infallible, sync::Arc};

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Request, Response, StatusCode, body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use jiff::{SignedDuration, Timestamp};
use tidewatch_certs::{Ca, ServerRequest};
use tidewatch_tls::server_config;
use tidewatch_wire::limits;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_rustls::TlsAcceptor;

/// As long as a receiver's answer to one event.
const ANSWER: &[u8] =
    br#"{"epoch":"00000000-0000-0000-0000-000000000001","session":"00000000-0000-0000-0000-000000000002"}"#;

/// Dropping it ends the server.
pub(super) struct BareServer {
    pub(super) port: u16,
    _accepting: JoinSet<()>,
}

impl BareServer {
    /// Starts a server with a certificate of this CA, for clients of this CA.
    pub(super) async fn start(ca: &Ca) -> Result<Self> {
        let request = ServerRequest {
            common_name: "bare".to_owned(),
            dns_names: vec!["localhost".to_owned()],
            ip_addrs: Vec::new(),
            validity: SignedDuration::from_hours(24),
        };
        let issued = ca.issue_server(&request, Timestamp::now())?;
        let tls = server_config(
            ca.cert_pem().as_bytes(),
            issued.cert_pem.as_bytes(),
            issued.key_pem.as_str().as_bytes(),
        )?;
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no port for the bare server")?;
        let port = listener.local_addr()?.port();
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, TlsAcceptor::from(tls), Says::Little));
        Ok(Self { port, _accepting: accepting })
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Says {
    /// An answer of a receiver's size.
    Little,
    /// The request's body.
    Same,
}

pub(super) async fn accept(listener: TcpListener, tls: TlsAcceptor, says: Says) {
    let tls = Arc::new(tls);
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let tls = Arc::clone(&tls);
        while connections.try_join_next().is_some() {}
        connections.spawn(async move {
            // The client observes every failure here.
            let _ = stream.set_nodelay(true);
            if let Ok(stream) = tls.accept(stream).await {
                let serving = http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service_fn(move |request| answer(request, says)));
                drop(serving.await);
            }
        });
    }
}

#[allow(clippy::disallowed_methods, reason = "the body is limited here")]
async fn answer(request: Request<Incoming>, says: Says) -> Result<Response<Full<Bytes>>, Infallible> {
    let read = Limited::new(request.into_body(), limits::V3_BODY_BYTES).collect().await;
    let mut answer = Response::new(Full::new(Bytes::from_static(ANSWER)));
    match (read, says) {
        (Ok(body), Says::Same) => *answer.body_mut() = Full::new(body.to_bytes()),
        (Ok(_), Says::Little) => {}
        (Err(_), _) => *answer.status_mut() = StatusCode::BAD_REQUEST,
    }
    Ok(answer)
}
