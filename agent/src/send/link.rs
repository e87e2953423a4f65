use super::{error::SendError, spread::Pause, transport::Channel};
use futures::{FutureExt, future::BoxFuture};
use jiff::Timestamp;
use std::{future::pending, time::Duration};
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
    /// Its slot is empty now.
    Poll {
        /// Start of the poll.
        since: Instant,
        /// Number of awaited ranges.
        ranges: usize,
        answer: Result<v3::Response, SendError>,
    },
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

impl<C: Channel> Up<C> {
    pub(super) fn start_batch(
        &mut self,
        request: &v3::Request<'static>,
        in_flight: InFlight,
        deadline: Duration,
    ) {
        let changes = request.events.iter().filter(|event| event.watch != v3::CANARY);
        let observed = changes.map(|event| event.observed_at).collect();
        let seqs = request.events.first().zip(request.events.last()).map(|(a, b)| (a.seq, b.seq));
        let ranges = request.awaiting.range_count();
        let exchange = self.connection.post(request, deadline).boxed();
        let sent = Sent { in_flight, ranges, observed, seqs, elsewhere: false };
        self.batch = Some(Batch { sent, exchange });
    }

    pub(super) fn needs_poll(&self) -> bool {
        self.poll.as_ref().is_none_or(|poll| poll.stale)
    }

    /// Replaces a stale poll; dropping it resets its stream. Returns whether there is a new one.
    pub(super) fn start_poll(&mut self, request: Option<v3::Request<'static>>, deadline: Duration) -> bool {
        self.poll = request.map(|request| Poll {
            since: Instant::now(),
            stale: false,
            ranges: request.awaiting.range_count(),
            exchange: self.connection.post(&request, deadline).boxed(),
        });
        self.poll.is_some()
    }
}

impl<C: Channel> Link<C> {
    /// Records a good answer, which alone proves that the receiver accepts the connection. Returns whether it is the
    /// first one.
    pub(super) fn accepted(&mut self) -> bool {
        match self {
            Self::Up(up) => !std::mem::replace(&mut up.answered, true),
            Self::Down(_) | Self::Connecting(_) => false,
        }
    }

    /// Marks the poll: it lacks the numbers of an answered batch.
    pub(super) fn mark_poll_stale(&mut self) {
        if let Self::Up(up) = self
            && let Some(poll) = &mut up.poll
        {
            poll.stale = true;
        }
    }

    /// Ends the wait before the next connection: new certificates may end the failure that caused it.
    pub(super) fn retry_now(&mut self) {
        if matches!(self, Self::Down(_)) {
            *self = Self::now();
        }
    }

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
                Event::Poll { since, ranges, answer }
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
