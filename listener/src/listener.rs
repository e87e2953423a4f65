//! The mTLS port: accepts, verifies, serves; bounded in connections, time and streams.

use std::{io, sync::Arc, time::Duration};

use hyper::{Request, body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use rustls::ServerConfig;
use tidewatch_drain::Watch;
use tidewatch_tls::{HandshakeFailure, PeerIdentity, Store};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

use crate::intake::Intake;

/// Connections at the same time. An agent keeps one; the rest waits in the backlog.
const MAX_CONNECTIONS: usize = 20_000;
/// For the TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// For the head of an HTTP/1 request; this also ends idle HTTP/1 connections.
const HEADERS: Duration = Duration::from_secs(30);
/// An agent needs two streams; a few more are for a reconnect that overlaps.
const MAX_STREAMS: u32 = 16;
/// Largest header list.
const MAX_HEADER_BYTES: u32 = 16 * 1024;
/// HTTP/2 pings, so that a half-open connection is noticed.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(15));
/// Between two tries to accept when the process is out of descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(200);

/// Serves until `drain` is signaled; then stops accepting, asks every connection to end, and returns when
/// all have.
pub async fn serve(listener: TcpListener, tls: Arc<Store<ServerConfig>>, intake: Arc<Intake>, drain: Watch) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    // Dropped with this task, and all connections with it.
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            biased;
            () = drain.signaled() => break,
            accepted = accept(&listener, &permits) => accepted,
        };
        match accepted {
            Ok((stream, permit)) => {
                let (tls, intake, drain) = (tls.current(), Arc::clone(&intake), drain.clone());
                connections.spawn(async move {
                    intake.metrics.connections.inc();
                    connection(stream, tls, &intake, drain).await;
                    intake.metrics.connections.dec();
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_BACKOFF).await;
            }
        }
    }
    while connections.join_next().await.is_some() {}
}

async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, permit))
}

async fn connection(stream: TcpStream, tls: Arc<ServerConfig>, intake: &Arc<Intake>, drain: Watch) {
    // Acknowledgements are small and somebody waits for them.
    let _ = stream.set_nodelay(true);
    let from = stream.peer_addr().ok();
    let handshake = tokio::time::timeout(HANDSHAKE, TlsAcceptor::from(tls).accept(stream));
    let failure = match handshake.await {
        Ok(Ok(stream)) => return serve_connection(stream, intake, drain).await,
        Ok(Err(error)) => HandshakeFailure::from_io(&error),
        Err(_) => HandshakeFailure::Timeout,
    };
    tracing::warn!(?from, reason = failure.label(), "TLS handshake refused");
    intake.metrics.handshake_failures.with_label_values(&[failure.label()]).inc();
}

async fn serve_connection(
    stream: tokio_rustls::server::TlsStream<TcpStream>,
    intake: &Arc<Intake>,
    drain: Watch,
) {
    let peer = Arc::new(PeerIdentity::from_chain(stream.get_ref().1.peer_certificates()));
    let service = service_fn(|request: Request<Incoming>| {
        let (intake, peer) = (Arc::clone(intake), Arc::clone(&peer));
        async move { Ok::<_, std::convert::Infallible>(intake.serve(peer, request).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .max_buf_size(MAX_HEADER_BYTES as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_BYTES)
        .max_pending_accept_reset_streams(Some(MAX_STREAMS as usize))
        .keep_alive_interval(KEEP_ALIVE.0)
        .keep_alive_timeout(KEEP_ALIVE.1);
    let serving = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(serving);
    let result = tokio::select! {
        result = serving.as_mut() => result,
        () = drain.signaled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended early");
    }
}
