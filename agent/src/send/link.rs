use super::{Channel, SendError, spread::Pause};
use futures::future::BoxFuture;
use jiff::Timestamp;
use std::future::pending;
use tidewatch_delivery::outbox::InFlight;
use tidewatch_wire::{Seq, v3};
use tokio::time::Instant;

pub(super) type Exchange = BoxFuture<'static, Result<v3::Response, SendError>>;

/// Events or a heartbeat.
pub(super) struct Batch {
    pub(super) sent: Sent,
    pub(super) exchange: Exchange,
}

pub(super) struct Poll {
    pub(super) since: Instant,
    /// Lacks the numbers of a batch answered since.
    pub(super) stale: bool,
    pub(super) ranges: usize,
    pub(super) exchange: Exchange,
}

pub(super) struct Up<C> {
    pub(super) connection: C,
    /// Only a good answer proves acceptance by the receiver.
    pub(super) answered: bool,
    pub(super) replacement: Option<BoxFuture<'static, Result<C, SendError>>>,
    pub(super) batch: Option<Batch>,
    pub(super) poll: Option<Poll>,
}

pub(super) enum Link<C> {
    Down(Pause),
    Connecting(BoxFuture<'static, Result<C, SendError>>),
    Up(Box<Up<C>>),
}

pub(super) enum Event<C> {
    Connected(Result<C, SendError>),
    /// Its slot is empty now.
    Batch(Sent, Result<v3::Response, SendError>),
    /// Its slot is empty now. With its start and number of awaited ranges.
    Poll(Instant, usize, Result<v3::Response, SendError>),
    Closed(SendError),
    /// Its slot is empty now.
    Replaced(Result<C, SendError>),
}

#[derive(Default)]
pub(super) struct Sent {
    pub(super) in_flight: InFlight,
    pub(super) ranges: usize,
    pub(super) observed: Vec<Timestamp>,
    pub(super) seqs: Option<(Seq, Seq)>,
    /// Its connection was replaced meanwhile.
    pub(super) elsewhere: bool,
}

impl<C: Channel> Link<C> {
    pub(super) fn now() -> Self {
        Self::Down(Pause::none(Instant::now()))
    }

    /// Pending while down. Cancel-safe.
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
