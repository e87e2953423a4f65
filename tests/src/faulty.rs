//! A TCP proxy on 127.0.0.1 that loses, delays and cuts at a command.
//!
//! What happens to the connections there are ([`Proxy::strike`]) is apart from how new ones are met
//! ([`Proxy::set_door`]): a NAT that has forgotten a connection lets the next one through.

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

/// Connections at the same time; those beyond are closed.
const MAX_CONNECTIONS: usize = 256;
/// Pieces on their way in one direction of a connection; with that many, nothing more is read.
const MAX_PIECES: usize = 64;
/// Bytes of one piece.
const PIECE: usize = 16 * 1024;
/// For a connection to the target, which is on this machine.
const CONNECT: Duration = Duration::from_secs(5);
/// After an accept that failed, e.g. for want of file descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// What befalls the connections that there are, for the rest of their lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// They are closed.
    Drop,
    /// Nothing is taken from either side any more, and neither side is told.
    HalfOpen,
    /// What the client says is taken and thrown away.
    SwallowRequests,
    /// What the server says is taken and thrown away.
    SwallowAnswers,
}

/// How new connections are met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// They are carried to the target.
    Open,
    /// They are reset at once.
    Refused,
    /// They are accepted, and nothing more happens.
    Silent,
}

/// The commands so far. A connection obeys those that come after its start; of two at once, the last.
#[derive(Clone, Copy, Debug)]
struct Orders {
    door: Door,
    /// Each way.
    delay: Duration,
    blows: u64,
    last: Blow,
}

/// The proxy. Dropping it ends it with all its connections.
#[derive(Debug)]
pub struct Proxy {
    address: String,
    orders: watch::Sender<Orders>,
    lost: Arc<AtomicU64>,
    accepted: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    /// A proxy that does nothing wrong yet, before `https://host:port`.
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

    /// `https://127.0.0.1:port`
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Strikes the connections that there are.
    pub fn strike(&self, blow: Blow) {
        self.orders.send_modify(|orders| (orders.blows, orders.last) = (orders.blows + 1, blow));
    }

    /// Says how new connections are met from now on.
    pub fn set_door(&self, door: Door) {
        self.orders.send_modify(|orders| orders.door = door);
    }

    /// Delays everything that is read from now on, each way.
    pub fn set_delay(&self, delay: Duration) {
        self.orders.send_modify(|orders| orders.delay = delay);
    }

    /// Bytes thrown away so far.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Connections that were carried to the target so far.
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
            // Not a FIN, but a RST, where the system can; either way it is over.
            let _ = near.set_zero_linger();
            continue;
        }
        accepted.fetch_add(1, Ordering::Relaxed);
        let met = Met { door, blows };
        connections.spawn(connection(near, target.clone(), met, orders.subscribe(), Arc::clone(&lost)));
    }
}

/// How things stood when a connection was accepted.
#[derive(Clone, Copy, Debug)]
struct Met {
    door: Door,
    blows: u64,
}

/// Until one side ends it, or a command does.
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
        // It stays open as long as the stream does.
        if met.door == Door::Silent {
            return std::future::pending().await;
        }
        let Ok(Ok(far)) = timeout(CONNECT, TcpStream::connect(&target)).await else { return };
        // Small pieces that somebody waits for.
        let (_, _) = (near.set_nodelay(true), far.set_nodelay(true));
        let ((from_near, to_near), (from_far, to_far)) = (near.into_split(), far.into_split());
        // The first side that ends ends both.
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

/// One direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Open,
    /// What comes is thrown away.
    Swallows,
    /// Nothing is read.
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
                // What is on its way still arrives.
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
    // The writer ends when it fails, or when the reader has ended and all is written.
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
