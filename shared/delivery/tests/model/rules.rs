//! The protocol as the model plays it: the production functions, and around them the ways to get it wrong.
//!
//! A mutation changes what goes into or comes out of a production function, never the function.

use tidewatch_delivery::{
    Tick,
    ledger::{Intake, Ledger, Outcome, Received},
    outbox::{Applied, InFlight, Outbox},
};
use tidewatch_wire::{
    Epoch, Route, Seq, SeqSet, SessionId,
    v3::{Event, Request, Response, RouteAck},
};

/// One thing done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Mutation {
    /// The agent takes the highest acknowledged number for all up to it.
    AcknowledgeByMaximum,
    /// The agent takes answers for another epoch in.
    NoEpochCheck,
    /// The receiver keeps one account for all epochs of a runtime.
    EpochsShareOneAccount,
    /// The receiver says `done` when it has taken an event.
    AcknowledgeOnReceipt,
    /// ... when the reconcile begins.
    AcknowledgeAtTheStart,
    /// The agent lets go what was in a request when that is answered.
    AcknowledgedByTheAnswer,
    /// Work that was dropped says `done`.
    DroppedGuardAcknowledges,
    /// Work that was dropped says nothing, not even that it was dropped.
    DroppedGuardIsSilent,
    /// Work that failed, and has to be done again, says `done`.
    FailedWorkAcknowledges,
    /// Work that failed is done again, but who waited for it is forgotten.
    FailedWorkForgetsItsGuards,
    /// A key that changes while it is in flight keeps its number.
    SameNumberAfterAChange,
    /// Each route's word releases a number from all routes.
    OneRouteReleasesAll,
    /// The agent takes a number that the receiver does not know for one that is done.
    UnknownIsDone,
    /// The agent does not send what the receiver says it does not know.
    UnknownIsIgnored,
    /// The agent sends nothing again, neither unknown numbers nor to a new session.
    NothingIsSentAgain,
    /// The agent does not send the numbers of a failed request again, nor ask about them.
    FailedRequestIsForgotten,
    /// The receiver's ledger survives a crash that its queue does not.
    LedgerSurvivesItsQueue,
    /// ... and speaks for a new session.
    LedgerSurvivesInANewSession,
    /// An event that arrives during a reconcile is acknowledged by that reconcile.
    EventJoinsRunningWork,
    /// An event of a key that is being reconciled is done at once.
    EventOfRunningWorkIsDone,
    /// An event of a key that is queued already leaves no guard.
    MergedWorkLosesItsGuard,
    /// A reconcile works on what was there when it was queued (a cache, an old read).
    StaleRead,
    /// A new agent does not report what its first list finds.
    FirstListIsNotReported,
    /// The agent sends nothing more until everything in flight is let go.
    StopAndWait,
    /// A poll asks about the highest number alone.
    PollNamesTheHighest,
    /// The receiver acknowledges in order, nothing above a held number.
    InOrderAcknowledgements,
    /// The receiver acknowledges nothing while any route holds one of the awaited numbers.
    AllRoutesOrNone,
    /// Tolerated: the agent does not notice a new session.
    SessionIsIgnored,
    /// Tolerated: a receiver that has lost everything keeps its session's name.
    CrashKeepsTheSession,
    /// Tolerated: the numbers of a failed request are not put back, only asked about.
    FailedRequestIsNotPutBack,
}

/// A number that waits for a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Guard {
    pub(crate) epoch: Epoch,
    pub(crate) seq: Seq,
}

/// The protocol, right or with one mistake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules(pub(crate) Option<Mutation>);

const ONE_FOR_ALL: Epoch = Epoch::from_bits(77);

impl Rules {
    pub(crate) fn is(self, mutation: Mutation) -> bool {
        self.0 == Some(mutation)
    }

    // The agent's side.

    pub(crate) fn next_batch(self, outbox: &mut Outbox) -> Option<(Request<'static>, InFlight)> {
        if self.is(Mutation::StopAndWait) && outbox.len() > outbox.unsent() {
            return None;
        }
        let (mut request, in_flight) = outbox.next_batch(Tick::ZERO)?;
        // Figures for metrics, not protocol.
        request.reconciled_ms.clear();
        Some((request, in_flight))
    }

    /// `forgotten`: see [`Mutation::FailedRequestIsForgotten`].
    pub(crate) fn poll(self, outbox: &mut Outbox, forgotten: &[Seq]) -> Option<Request<'static>> {
        let mut request = outbox.poll()?;
        request.reconciled_ms.clear();
        let mut awaited = numbers(&request.awaiting);
        if self.is(Mutation::PollNamesTheHighest) {
            awaited = awaited.split_off(awaited.len() - 1);
        }
        awaited.retain(|seq| !forgotten.contains(seq));
        if awaited.is_empty() {
            return None;
        }
        request.awaiting = awaited.into_iter().collect();
        Some(request)
    }

    pub(crate) fn failed(self, outbox: &mut Outbox, in_flight: &InFlight) {
        if !self.is(Mutation::FailedRequestIsForgotten) && !self.is(Mutation::FailedRequestIsNotPutBack) {
            outbox.failed(in_flight);
        }
    }

    /// `answers`: what the answered request carried, if it is the batch in flight. Returns the answer as it was taken, too.
    pub(crate) fn answered(
        self,
        outbox: &mut Outbox,
        response: &Response,
        answers: Option<&Request<'_>>,
    ) -> (Applied, Response) {
        let mut response = response.clone();
        match self.0 {
            Some(Mutation::AcknowledgeByMaximum) => {
                for ack in &mut response.acks {
                    let highest = numbers(&ack.done).last().map_or(0, |seq| seq.0);
                    ack.done = (1..=highest).map(Seq).collect();
                }
            }
            Some(Mutation::NoEpochCheck) => response.epoch = outbox.epoch(),
            Some(Mutation::AcknowledgedByTheAnswer) => {
                let sent = answers.into_iter().flat_map(|request| &request.events).map(|event| event.seq);
                acknowledge(&mut response, sent.collect());
            }
            Some(Mutation::OneRouteReleasesAll) => {
                for ack in response.acks.clone() {
                    acknowledge(&mut response, ack.done);
                }
            }
            Some(Mutation::UnknownIsDone) => {
                let unknown = std::mem::take(&mut response.unknown);
                acknowledge(&mut response, unknown);
            }
            Some(Mutation::UnknownIsIgnored) => response.unknown = SeqSet::new(),
            Some(Mutation::NothingIsSentAgain) => {
                response.unknown = SeqSet::new();
                response.session = outbox.session().unwrap_or(response.session);
            }
            Some(Mutation::SessionIsIgnored) => {
                response.session = outbox.session().unwrap_or(response.session);
            }
            _ => {}
        }
        (outbox.answered(&response, Tick::ZERO), response)
    }

    // The receiver's side.

    fn epoch(self, epoch: Epoch) -> Epoch {
        if self.is(Mutation::EpochsShareOneAccount) { ONE_FOR_ALL } else { epoch }
    }

    pub(crate) fn receive(self, ledger: &mut Ledger, request: &Request<'_>) -> Received {
        ledger.receive(&Request { epoch: self.epoch(request.epoch), ..request.clone() })
    }

    pub(crate) fn route(
        self,
        ledger: &mut Ledger,
        epoch: Epoch,
        event: &Event<'_>,
        route: Route,
        running: bool,
    ) -> Intake {
        let done = self.is(Mutation::AcknowledgeOnReceipt)
            || (self.is(Mutation::EventOfRunningWorkIsDone) && running);
        let intake = if done { Intake::Done } else { Intake::Held };
        ledger.route(self.epoch(epoch), event.seq, route, intake);
        intake
    }

    pub(crate) fn settle(self, ledger: &mut Ledger, guard: Guard, route: &Route, outcome: Outcome) {
        let outcome = match (outcome, self.0) {
            (Outcome::Dropped, Some(Mutation::DroppedGuardAcknowledges)) => Outcome::Done,
            (Outcome::Dropped, Some(Mutation::DroppedGuardIsSilent)) => return,
            (outcome, _) => outcome,
        };
        ledger.settle(self.epoch(guard.epoch), guard.seq, route, outcome);
    }

    /// `session`: see [`Mutation::LedgerSurvivesInANewSession`]; otherwise the ledger's own.
    pub(crate) fn answer(self, ledger: &mut Ledger, request: &Request<'_>, session: SessionId) -> Response {
        let mut response = ledger.answer(self.epoch(request.epoch), &request.awaiting);
        response.epoch = request.epoch;
        match self.0 {
            Some(Mutation::LedgerSurvivesInANewSession) => response.session = session,
            Some(Mutation::InOrderAcknowledgements) => {
                let first_open = numbers(&request.awaiting)
                    .into_iter()
                    .find(|seq| !response.acks.iter().any(|ack| ack.done.contains(*seq)));
                if let Some(open) = first_open {
                    for ack in &mut response.acks {
                        ack.done = numbers(&ack.done).into_iter().filter(|seq| *seq < open).collect();
                    }
                }
            }
            Some(Mutation::AllRoutesOrNone) => {
                let settled = |seq: &Seq| {
                    let routes = response.acks.iter().filter(|ack| ack.done.contains(*seq)).count();
                    routes >= ledger_routes(ledger, self.epoch(request.epoch), *seq)
                };
                if !numbers(&request.awaiting).iter().all(settled) {
                    response.acks.clear();
                }
            }
            _ => {}
        }
        response
    }
}

/// One if a number is settled everywhere, more than any can have if a route still holds it.
fn ledger_routes(ledger: &Ledger, epoch: Epoch, seq: Seq) -> usize {
    let mut forgetful = ledger.clone();
    let held = forgetful.held();
    for route in [super::world::route(0), super::world::route(1)] {
        forgetful.settle(epoch, seq, &route, Outcome::Done);
    }
    if forgetful.held() < held { usize::MAX } else { 1 }
}

pub(crate) fn numbers(set: &SeqSet) -> Vec<Seq> {
    set.ranges().flat_map(|(start, end)| (start..=end).map(Seq)).collect()
}

/// Adds a `done` for all these numbers on every route.
fn acknowledge(response: &mut Response, done: SeqSet) {
    for route in [super::world::route(0), super::world::route(1)] {
        response.acks.push(RouteAck { route, done: done.clone(), refused: SeqSet::new() });
    }
}
