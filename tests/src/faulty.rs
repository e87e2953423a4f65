//! A TCP proxy on 127.0.0.1 that loses, delays and cuts traffic.
//!
//! [`Proxy::strike`] affects existing connections, [`Proxy::set_door`] new ones. This simulates a NAT that
//! drops a connection but accepts the next.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

/// Limit on concurrent connections. Further ones are closed.
const MAX_CONNECTIONS: usize = 256;
/// Limit on buffered pieces per direction. A full buffer stops reading.
const MAX_PIECES: usize = 64;
/// Bytes per piece.
const PIECE: usize = 16 * 1024;
/// Timeout of a connection to the local target.
const CONNECT: Duration = Duration::from_secs(5);
/// Pause after a failed accept, e.g. without free file descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// A permanent fault for the existing connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// Closes them.
    Drop,
    /// Stops reading both sides, without notice.
    HalfOpen,
    /// Discards the client's data.
    SwallowRequests,
    /// Discards the server's data.
    SwallowAnswers,
}

/// Treatment of new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// Forwards to the target.
    Open,
    /// Resets.
    Refused,
    /// Accepts, then stays silent.
    Silent,
}

/// The commands so far. A connection obeys later commands only; the last one wins.
#[derive(Clone, Copy, Debug)]
struct Orders {
    door: Door,
    /// Delay per direction.
    delay: Duration,
    blows: u64,
    last: Blow,
}

/// The proxy. Dropping it closes all its connections.
#[derive(Debug)]
pub struct Proxy {
    address: String,
    orders: watch::Sender<Orders>,
    lost: Arc<AtomicU64>,
    accepted: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    /// Starts a faultless proxy before `https://host:port`.
    pub async fn before(url: &str) -> Result<Self> {
        let target = url.strip_prefix("https://").context("the target is no https URL")?.to_owned();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("cannot bind 127.0.0.1")?;
        let address = listener.local_addr().context("a bound socket has no address")?.to_string();
        let orders = watch::Sender::new(Orders {
            door: Door::Open,
            delay: Duration::ZERO,
            blows: 0,
            last: Blow::Drop,
        });
        let (lost, accepted) = <(Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, target, orders.clone(), Arc::clone(&lost), Arc::clone(&accepted)));
        Ok(Self { address, orders, lost, accepted, _tasks: tasks })
    }

    /// Returns `https://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Applies a fault to the existing connections.
    pub fn strike(&self, blow: Blow) {
        self.orders.send_modify(|orders| (orders.blows, orders.last) = (orders.blows + 1, blow));
    }

    /// Sets the treatment of new connections.
    pub fn set_door(&self, door: Door) {
        self.orders.send_modify(|orders| orders.door = door);
    }

    /// Sets the delay per direction for further data.
    pub fn set_delay(&self, delay: Duration) {
        self.orders.send_modify(|orders| orders.delay = delay);
    }

    /// Returns the number of discarded bytes.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Returns the number of connections forwarded to the target.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }
}

async fn accept(
    listener: TcpListener,
    target: String,
    orders: watch::Sender<Orders>,
    lost: Arc<AtomicU64>,
    accepted: Arc<AtomicU64>,
) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((near, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        let Orders { door, blows, .. } = *orders.borrow();
        if door == Door::Refused || connections.len() >= MAX_CONNECTIONS {
            // Prefers RST over FIN; both end the connection.
            let _ = near.set_zero_linger();
            continue;
        }
        accepted.fetch_add(1, Ordering::Relaxed);
        let met = Met { door, blows };
        connections.spawn(connection(near, target.clone(), met, orders.subscribe(), Arc::clone(&lost)));
    }
}

/// The state when a connection was accepted.
#[derive(Clone, Copy, Debug)]
struct Met {
    door: Door,
    blows: u64,
}

/// Runs until a side or a command ends it.
async fn connection(
    near: TcpStream,
    target: String,
    met: Met,
    orders: watch::Receiver<Orders>,
    lost: Arc<AtomicU64>,
) {
    let (requests, answers) = (watch::Sender::new(Way::Open), watch::Sender::new(Way::Open));
    let mut obeyed = orders.clone();
    let carried = async {
        // The open stream keeps the connection.
        if met.door == Door::Silent {
            return std::future::pending().await;
        }
        let Ok(Ok(far)) = timeout(CONNECT, TcpStream::connect(&target)).await else { return };
        // Peers wait for small pieces.
        let (_, _) = (near.set_nodelay(true), far.set_nodelay(true));
        let ((from_near, to_near), (from_far, to_far)) = (near.into_split(), far.into_split());
        // The end of one side ends both.
        tokio::select! {
            () = carry(from_near, to_far, requests.subscribe(), orders.clone(), &lost) => {}
            () = carry(from_far, to_near, answers.subscribe(), orders.clone(), &lost) => {}
        }
    };
    let obey = async {
        loop {
            let Orders { blows, last, .. } = *obeyed.borrow_and_update();
            if blows > met.blows {
                match last {
                    Blow::Drop => return,
                    Blow::HalfOpen => {
                        requests.send_replace(Way::Closed);
                        answers.send_replace(Way::Closed);
                    }
                    Blow::SwallowRequests => drop(requests.send_replace(Way::Swallows)),
                    Blow::SwallowAnswers => drop(answers.send_replace(Way::Swallows)),
                }
            }
            if obeyed.changed().await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = carried => {}
        () = obey => {}
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Open,
    /// Discards data.
    Swallows,
    /// Reads nothing.
    Closed,
}

async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut way: watch::Receiver<Way>,
    orders: watch::Receiver<Orders>,
    lost: &AtomicU64,
) {
    let (sender, mut pieces) = mpsc::channel::<(Instant, Vec<u8>)>(MAX_PIECES);
    let mut delivered = way.clone();
    let read = async move {
        loop {
            let mut piece = vec![0; PIECE];
            let length = tokio::select! {
                biased;
                () = closed(&mut way) => None,
                read = from.read(&mut piece) => Some(read),
            };
            match length {
                None => return std::future::pending().await,
                Some(Ok(length)) if length > 0 => piece.truncate(length),
                // Data in transit still arrives.
                _ => return,
            }
            let due = Instant::now() + orders.borrow().delay;
            if sender.send((due, piece)).await.is_err() {
                return;
            }
        }
    };
    let write = async move {
        while let Some((due, piece)) = pieces.recv().await {
            sleep_until(due).await;
            let now = *delivered.borrow_and_update();
            match now {
                Way::Open => {
                    if to.write_all(&piece).await.is_err() {
                        return;
                    }
                }
                Way::Swallows => drop(lost.fetch_add(piece.len() as u64, Ordering::Relaxed)),
                Way::Closed => std::future::pending().await,
            }
        }
    };
    // The writer ends on failure, or after the reader's end and the last write.
    let read = async {
        read.await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = read => {}
        () = write => {}
    }
}

async fn closed(way: &mut watch::Receiver<Way>) {
    if way.wait_for(|way| *way == Way::Closed).await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests;
