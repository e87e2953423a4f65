//! The state of the one connection, and what happens on it next.

use super::{Channel, SendError, spread::Pause};
use futures::future::BoxFuture;
use jiff::Timestamp;
use std::future::pending;
use tidewatch_delivery::outbox::InFlight;
use tidewatch_wire::{Seq, v3};
use tokio::time::Instant;

pub(super) type Exchange = BoxFuture<'static, Result<v3::Response, SendError>>;

/// A request with events, or a heartbeat without.
pub(super) struct Batch {
    pub(super) sent: Sent,
    pub(super) exchange: Exchange,
}

/// The open acknowledgement poll.
pub(super) struct Poll {
    pub(super) since: Instant,
    /// A batch was answered since: the poll does not name that batch's numbers.
    pub(super) stale: bool,
    /// How many ranges it awaits.
    pub(super) ranges: usize,
    pub(super) exchange: Exchange,
}

pub(super) struct Up<C> {
    pub(super) connection: C,
    /// The receiver has given a good answer on it: before, nobody knows whether it lets the agent in.
    pub(super) answered: bool,
    /// A connection that is to take this one's place.
    pub(super) replacement: Option<BoxFuture<'static, Result<C, SendError>>>,
    pub(super) batch: Option<Batch>,
    pub(super) poll: Option<Poll>,
}

pub(super) enum Link<C> {
    /// Not connected; to be tried again then.
    Down(Pause),
    Connecting(BoxFuture<'static, Result<C, SendError>>),
    Up(Box<Up<C>>),
}

/// What happened on the link.
pub(super) enum Event<C> {
    Connected(Result<C, SendError>),
    /// The batch's slot is empty now.
    Batch(Sent, Result<v3::Response, SendError>),
    /// The poll's slot is empty now; first when it was opened, and how many ranges it awaited.
    Poll(Instant, usize, Result<v3::Response, SendError>),
    /// The connection has ended, and why.
    Closed(SendError),
    /// The replacement's slot is empty now.
    Replaced(Result<C, SendError>),
}

/// What a [`Batch`] carries.
#[derive(Default)]
pub(super) struct Sent {
    pub(super) in_flight: InFlight,
    /// How many ranges it awaits.
    pub(super) ranges: usize,
    /// When its changes were observed.
    pub(super) observed: Vec<Timestamp>,
    /// Its lowest and highest number.
    pub(super) seqs: Option<(Seq, Seq)>,
    /// On a connection that has been replaced since.
    pub(super) elsewhere: bool,
}

impl<C: Channel> Link<C> {
    /// Not connected, and nothing to wait for.
    pub(super) fn now() -> Self {
        Self::Down(Pause::none(Instant::now()))
    }

    /// The next event; never resolves while down. Cancel-safe.
    pub(super) async fn next(&mut self) -> Event<C> {
        let up = match self {
            Self::Down(_) => return pending().await,
            Self::Connecting(connecting) => return Event::Connected(connecting.await),
            Self::Up(up) => up,
        };
        let Up { connection, answered: _, batch, poll, replacement } = &mut **up;
        tokio::select! {
            biased;
            answer = answer(batch.as_mut().map(|batch| &mut batch.exchange)) => {
                let sent = batch.take().map(|batch| batch.sent).unwrap_or_default();
                Event::Batch(sent, answer)
            }
            answer = answer(poll.as_mut().map(|poll| &mut poll.exchange)) => {
                let (since, ranges) =
                    poll.take().map_or_else(|| (Instant::now(), 0), |poll| (poll.since, poll.ranges));
                Event::Poll(since, ranges, answer)
            }
            error = connection.closed() => Event::Closed(error),
            made = made(replacement.as_mut()) => {
                *replacement = None;
                Event::Replaced(made)
            }
        }
    }
}

async fn answer(exchange: Option<&mut Exchange>) -> Result<v3::Response, SendError> {
    match exchange {
        Some(exchange) => exchange.await,
        None => pending().await,
    }
}

async fn made<C>(replacement: Option<&mut BoxFuture<'static, Result<C, SendError>>>) -> Result<C, SendError> {
    match replacement {
        Some(replacement) => replacement.await,
        None => pending().await,
    }
}
