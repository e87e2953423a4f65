//! The mTLS port: accepts, verifies, serves; bounded in connections, time and streams.

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
use tidewatch_drain::Watch;
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
    shares::Shares,
};

/// An agent needs two streams at the same time, and a third while it replaces a poll.
const MAX_STREAMS: u32 = 8;
/// Streams that the peer reset and that are not cleaned up; with more, the connection is ended.
const MAX_RESETS: usize = 16;
/// What is received before it is read, of a stream and of a connection; and of answers, before they are sent. An idle
/// connection holds none of it, a malicious one all of it.
const WINDOWS: (u32, u32) = (64 * 1024, 128 * 1024);
const MAX_FRAME: u32 = 16 * 1024;
const MAX_SEND_BUFFER: usize = 64 * 1024;
/// Largest header list.
const MAX_HEADER_BYTES: u32 = 16 * 1024;
/// The same two for a trusted proxy: many runtimes share its connections, and it forwards their certificates.
const PROXY: (u32, u32) = (256, 48 * 1024);
/// HTTP/2 pings when nothing was heard for so long, so that a half-open connection is noticed. Longer than an agent's minute,
/// which shows the same: a connection that works is not pinged.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(75), Duration::from_secs(15));
/// Between two tries to accept when the process is out of descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(200);

/// What all connections share.
struct Door {
    tls: Arc<Store<ServerConfig>>,
    intake: Arc<Intake>,
    peers: Arc<Peers>,
    limits: Limits,
    clock: fn() -> Timestamp,
    drain: Watch,
}

impl Door {
    /// A handshake has failed. Nothing that is said about it is verified.
    fn refused(&self, from: Option<SocketAddr>, failure: HandshakeFailure, names: Option<&Names>) {
        let (reason, now) = (failure.label(), (self.clock)());
        let who = names.map_or_else(
            || from.map(|from| network(from.ip()).to_string()).unwrap_or_default(),
            |names| format!("{} by {}", names.subject, names.issuer),
        );
        if let Some(LogLine { times, left_out }) =
            self.intake.admission.refusals.told(&format!("{reason}: {who}"), now)
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

/// Serves until `drain` is signaled; then stops accepting, asks every connection to end, and returns when
/// all have. `clock` says when clients' certificates end; connections end with them.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<Store<ServerConfig>>,
    intake: Arc<Intake>,
    clock: fn() -> Timestamp,
    drain: Watch,
) {
    let limits = intake.admission.limits;
    let permits = |most: usize| Arc::new(Semaphore::new(most.clamp(1, Semaphore::MAX_PERMITS)));
    let (connected, shaking) = (permits(limits.connections), permits(limits.handshakes));
    // Those who are silent until the deadline are strangers: nothing but their address is known of them.
    let addresses = Shares::new(limits.handshakes / 2);
    let peers = Peers::new(limits.per_identity);
    let door = Arc::new(Door { tls, intake, peers, limits, clock, drain });
    // Dropped with this task, and all connections with it.
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            biased;
            () = door.drain.signaled() => break,
            accepted = accept(&listener, &connected, &shaking) => accepted,
        };
        match accepted {
            Ok((stream, from, permit, handshake)) => {
                let Some(share) = addresses.place_now(network(from.ip())) else {
                    // Not a line for each: there may be thousands in a second.
                    tracing::debug!(%from, "a connection was closed: its address has too many handshakes");
                    door.intake.metrics.handshake_failures.with_label_values(&[ADDRESS_SHARE]).inc();
                    continue;
                };
                let door = Arc::clone(&door);
                connections.spawn(async move {
                    door.intake.metrics.connections.inc();
                    // On the heap, and gone before the connection is served: it is the larger part of a task.
                    let shaken = Box::pin(shake_hands(stream, &door)).await;
                    drop((share, handshake));
                    if let Some(stream) = shaken {
                        serve_connection(stream, &door).await;
                    }
                    door.intake.metrics.connections.dec();
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

/// The next connection, when there is room for it and for its handshake; until then it waits in the backlog.
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

/// What counts as one address. Who has one of IPv6 has all of its /64.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// The stream is on the heap: each place it is moved to would be a further kilobyte of every task.
async fn shake_hands(stream: TcpStream, door: &Door) -> Option<Box<TlsStream<TcpStream>>> {
    // Acknowledgements are small and somebody waits for them.
    let _ = stream.set_nodelay(true);
    let from = stream.peer_addr().ok();
    let shown = RefusedCertificate::default();
    let handshake = shown.during(TlsAcceptor::from(door.tls.current()).accept(stream));
    let failure = match tokio::time::timeout(door.limits.handshake, handshake).await {
        Ok(Ok(stream)) => return Some(Box::new(stream)),
        Ok(Err(error)) => HandshakeFailure::from_io(&error),
        Err(_) => HandshakeFailure::Timeout,
    };
    if failure == HandshakeFailure::Io {
        // A load balancer that looks whether the port is open does just that, every few seconds.
        tracing::debug!(?from, "the peer ended the connection before the TLS handshake");
    } else {
        door.refused(from, failure, shown.names());
    }
    door.intake.metrics.handshake_failures.with_label_values(&[failure.label()]).inc();
    None
}

async fn serve_connection(stream: Box<TlsStream<TcpStream>>, door: &Door) {
    let Door { intake, peers, limits, clock, drain, tls: _ } = door;
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
    // Those whose certificate names nobody share a place. A proxy opens as many connections as it likes.
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
    };
    serving.as_mut().graceful_shutdown();
    let Some(reason) = reason else { return ended(serving.await) };
    let what = format!("ending: {reason}: {name}");
    if let Some(LogLine { times, .. }) = intake.admission.refusals.told(&what, clock()) {
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
        // It is another one each second, and for ten thousand idle agents a twentieth of what is sent.
        .auto_date_header(false)
        .keep_alive_interval(KEEP_ALIVE.0)
        .keep_alive_timeout(KEEP_ALIVE.1);
    // The handshake has said what is spoken; guessing would have no deadline.
    if http2 { builder.http2_only() } else { builder.http1_only() }
}

async fn lost(seat: Option<&Seat>) {
    match seat {
        Some(seat) => seat.lost().await,
        None => std::future::pending().await,
    }
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
    use super::*;

    #[test]
    fn one_host_is_one_address() {
        let network = |text: &str| network(text.parse().unwrap()).to_string();
        assert_eq!(network("192.0.2.7"), "192.0.2.7");
        assert_eq!(network("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(network("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
    }
}
