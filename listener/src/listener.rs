//! The mTLS port.

use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use hyper::{Request, body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use jiff::Timestamp;
use rustls::ServerConfig;
use tidewatch_drain::ShutdownSignal;
use tidewatch_tls::{HandshakeFailure, Names, PeerIdentity, RefusedCertificate, Store};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::Instant,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::{
    intake::{Intake, Peer},
    limits::Limits,
    metrics::ADDRESS_SHARE,
    peers::{Activity, Peers, Seat},
    refused::{LogLine, RefusedPeer},
    revocations::Revocations,
    shares::Shares,
};

/// An agent needs two, and a third while it replaces a poll.
const MAX_STREAMS: u32 = 8;
/// Uncleaned resets; more end the connection.
const MAX_RESETS: usize = 16;
/// Receive windows of stream and connection, in bytes. Only malicious peers fill them.
const WINDOWS: (u32, u32) = (64 * 1024, 128 * 1024);
const MAX_FRAME: u32 = 16 * 1024;
const MAX_SEND_BUFFER: usize = 64 * 1024;
const MAX_HEADER_BYTES: u32 = 16 * 1024;
/// Streams and header bytes for a trusted proxy with many runtimes and their certificates.
const PROXY: (u32, u32) = (256, 48 * 1024);
/// Interval and timeout of pings against half-open connections. Agents' requests each minute make pings rare.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(75), Duration::from_secs(15));
/// For accept errors, such as no file descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(200);
/// A revoked runtime reads in this time why its requests are refused.
const REASON: Duration = Duration::from_secs(2);

struct Port {
    tls: Arc<Store<ServerConfig>>,
    intake: Arc<Intake>,
    peers: Arc<Peers>,
    limits: Limits,
    clock: fn() -> Timestamp,
    drain: ShutdownSignal,
}

impl Port {
    /// Reports a failed handshake. The names are not verified.
    fn refused(&self, from: Option<SocketAddr>, failure: HandshakeFailure, names: Option<&Names>) {
        let (reason, now) = (failure.label(), (self.clock)());
        let peer = names.map_or_else(
            || from.map(|from| network(from.ip()).to_string()).unwrap_or_default(),
            |names| format!("{} by {}", names.subject, names.issuer),
        );
        if let Some(LogLine { times, left_out }) =
            self.intake.admission.refusals.record(&format!("{reason}: {peer}"), now)
        {
            let subject = names.map(|names| names.subject.as_str());
            let issuer = names.map(|names| names.issuer.as_str());
            tracing::warn!(?from, reason, subject, issuer, times, left_out, "TLS handshake refused");
        }
        if let Some(names) = names {
            let names = names.clone();
            self.intake.host.refused(&RefusedPeer { reason, verified: false, names });
        }
    }
}

/// Serves until `drain` is signaled, then ends all connections.
///
/// Connections end with their certificates, by `clock`.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<Store<ServerConfig>>,
    intake: Arc<Intake>,
    clock: fn() -> Timestamp,
    drain: ShutdownSignal,
) {
    let limits = intake.admission.limits;
    let permits = |max: usize| Arc::new(Semaphore::new(max.clamp(1, Semaphore::MAX_PERMITS)));
    let (connected, shaking) = (permits(limits.connections), permits(limits.handshakes));
    // Silent peers have no identity yet.
    let addresses = Shares::new(limits.handshakes / 2);
    let peers = Peers::new(limits.per_identity);
    let port = Arc::new(Port { tls, intake, peers, limits, clock, drain });
    // Dropped with this task, which ends all connections.
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            biased;
            () = port.drain.signaled() => break,
            accepted = accept(&listener, &connected, &shaking) => accepted,
        };
        match accepted {
            Ok((stream, from, permit, handshake)) => {
                let Some(share) = addresses.try_acquire(network(from.ip())) else {
                    // There may be thousands per second.
                    tracing::debug!(%from, "a connection was closed: its address has too many handshakes");
                    port.intake.metrics.handshake_failures.with_label_values(&[ADDRESS_SHARE]).inc();
                    continue;
                };
                let port = Arc::clone(&port);
                connections.spawn(async move {
                    port.intake.metrics.connections.inc();
                    // Boxed and dropped early: handshakes need most memory.
                    let shaken = Box::pin(shake_hands(stream, &port)).await;
                    drop((share, handshake));
                    if let Some(stream) = shaken {
                        serve_connection(stream, &port).await;
                    }
                    port.intake.metrics.connections.dec();
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

/// Accepts within the limits. Others wait in the backlog.
async fn accept(
    listener: &TcpListener,
    connected: &Arc<Semaphore>,
    shaking: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit, OwnedSemaphorePermit)> {
    let permit = Arc::clone(connected).acquire_owned().await.map_err(io::Error::other)?;
    let handshake = Arc::clone(shaking).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, from) = listener.accept().await?;
    Ok((stream, from, permit, handshake))
}

/// An IPv6 host owns its /64.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// Boxed: each move would add a kilobyte to every task.
async fn shake_hands(stream: TcpStream, port: &Port) -> Option<Box<TlsStream<TcpStream>>> {
    // Acknowledgements are small and urgent.
    let _ = stream.set_nodelay(true);
    let from = stream.peer_addr().ok();
    let shown = RefusedCertificate::default();
    let handshake = shown.during(TlsAcceptor::from(port.tls.current()).accept(stream));
    let failure = match tokio::time::timeout(port.limits.handshake, handshake).await {
        Ok(Ok(stream)) => return Some(Box::new(stream)),
        Ok(Err(error)) => HandshakeFailure::from_io(&error),
        Err(_) => HandshakeFailure::Timeout,
    };
    if failure == HandshakeFailure::Io {
        // Load balancers probe the port like this.
        tracing::debug!(?from, "the peer ended the connection before the TLS handshake");
    } else {
        port.refused(from, failure, shown.names());
    }
    port.intake.metrics.handshake_failures.with_label_values(&[failure.label()]).inc();
    None
}

async fn serve_connection(stream: Box<TlsStream<TcpStream>>, port: &Port) {
    let Port { intake, peers, limits, clock, drain, tls: _ } = port;
    let (_, tls) = stream.get_ref();
    let http2 = tls.alpn_protocol() == Some(b"h2");
    let chain = tls.peer_certificates();
    let identity = PeerIdentity::from_chain(chain);
    let leaf = match &identity {
        Ok(identity) => Some(Arc::clone(&identity.certificate)),
        Err(_) => chain.and_then(<[_]>::first).map(|leaf| Arc::from(leaf.as_ref())),
    };
    let peer = Arc::new(Peer { leaf, identity });
    let proxy = peer.leaf.as_ref().is_some_and(|leaf| intake.proxies.trusts(leaf));
    let name: Arc<str> = peer.identity.as_ref().map_or("", |peer| peer.common_name.as_str()).into();
    // Peers without identity share a limit. Proxies have none.
    let seat = (!proxy).then(|| peers.seat(&name));
    let left = peer.identity.as_ref().map_or(Duration::ZERO, |peer| {
        Duration::try_from(peer.not_after.duration_since(clock())).unwrap_or_default()
    });
    let expiry = peer.identity.is_ok().then(|| Instant::now().checked_add(left)).flatten();
    let activity = Activity::new(Instant::now());
    let service = service_fn(|request: Request<Incoming>| {
        let (intake, peer, act) = (Arc::clone(intake), Arc::clone(&peer), activity.begin());
        async move {
            let answer = intake.serve(peer, request).await;
            drop(act);
            Ok::<_, std::convert::Infallible>(answer)
        }
    });
    let builder = builder(http2, proxy, limits);
    let mut serving = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let reason = tokio::select! {
        result = serving.as_mut() => return ended(result),
        () = drain.signaled() => None,
        () = lost(seat.as_ref()) => Some("superseded"),
        used = activity.none_for(limits.headers, limits.idle) => Some(if used { "idle" } else { "no_request" }),
        () = at(expiry) => Some("certificate_expired"),
        () = revoked(intake.host.revocations(), &name) => Some("revoked"),
    };
    serving.as_mut().graceful_shutdown();
    let Some(reason) = reason else { return ended(serving.await) };
    let message = format!("ending: {reason}: {name}");
    if let Some(times) = intake.admission.refusals.repeat(&message, clock()) {
        tracing::info!(runtime = &*name, reason, times, "ending a connection");
    }
    intake.metrics.connections_ended.with_label_values(&[reason]).inc();
    if let Ok(result) = tokio::time::timeout(limits.farewell, serving).await {
        ended(result);
    }
}

fn builder(http2: bool, proxy: bool, limits: &Limits) -> auto::Builder<TokioExecutor> {
    let (streams, headers) = if proxy { PROXY } else { (MAX_STREAMS, MAX_HEADER_BYTES) };
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.headers)
        .max_buf_size(headers as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(streams)
        .max_header_list_size(headers)
        .max_pending_accept_reset_streams(Some(MAX_RESETS))
        .max_local_error_reset_streams(Some(MAX_RESETS))
        .initial_stream_window_size(Some(WINDOWS.0))
        .initial_connection_window_size(Some(WINDOWS.1))
        .max_frame_size(Some(MAX_FRAME))
        .max_send_buf_size(MAX_SEND_BUFFER)
        // Dates are a twentieth of all bytes to idle agents.
        .auto_date_header(false)
        .keep_alive_interval(KEEP_ALIVE.0)
        .keep_alive_timeout(KEEP_ALIVE.1);
    // By ALPN. Detection would have no deadline.
    if http2 { builder.http2_only() } else { builder.http1_only() }
}

async fn lost(seat: Option<&Seat>) {
    match seat {
        Some(seat) => seat.lost().await,
        None => std::future::pending().await,
    }
}

/// Waits until a runtime id is revoked. A connection of one that is revoked already lasts [`REASON`].
async fn revoked(revocations: Option<&Revocations>, name: &str) {
    let Some(revocations) = revocations else { return std::future::pending().await };
    if revocations.contains(name) {
        tokio::time::sleep(REASON).await;
    }
    revocations.include(name).await;
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

fn ended(result: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended early");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_revocation_ends_a_connection_at_once_and_a_later_one_after_its_refusal() {
        let began = Instant::now();
        let (revocations, revoke) = (Revocations::default(), BTreeSet::from(["r1".to_owned()]));
        let live = revoked(Some(&revocations), "r1");
        tokio::join!(live, async { revocations.replace(revoke) });
        assert_eq!(began.elapsed(), Duration::ZERO);
        revoked(Some(&revocations), "r1").await;
        assert_eq!(began.elapsed(), REASON);
    }

    #[test]
    fn addresses_of_one_host_count_as_one() {
        let network = |text: &str| network(text.parse().unwrap()).to_string();
        assert_eq!(network("192.0.2.7"), "192.0.2.7");
        assert_eq!(network("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(network("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
    }
}
