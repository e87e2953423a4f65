//! The protocol with optional mistakes. A mutation changes inputs or outputs of production functions, never the
//! functions.

use tidewatch_delivery::{
    Tick,
    ledger::{Intake, Ledger, Outcome, Received},
    outbox::{Applied, InFlight, Outbox},
};
use tidewatch_wire::{
    Epoch, Route, Seq, SeqSet, SessionId,
    v3::{Event, Request, Response, RouteAck},
};

/// One mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Mutation {
    /// The agent acknowledges all numbers up to the highest.
    AcknowledgeByMaximum,
    /// The agent accepts answers for another epoch.
    NoEpochCheck,
    /// The receiver shares one account among epochs.
    EpochsShareOneAccount,
    AcknowledgeOnReceipt,
    AcknowledgeAtTheStart,
    /// The agent releases the events of an answered request.
    AcknowledgedByTheAnswer,
    DroppedGuardAcknowledges,
    DroppedGuardIsSilent,
    FailedWorkAcknowledges,
    FailedWorkForgetsItsGuards,
    SameNumberAfterAChange,
    OneRouteReleasesAll,
    UnknownIsDone,
    UnknownIsIgnored,
    NothingIsSentAgain,
    /// The agent forgets the numbers of a failed request.
    FailedRequestIsForgotten,
    /// The ledger survives a crash, the queue does not.
    LedgerSurvivesItsQueue,
    LedgerSurvivesInANewSession,
    /// A running reconcile acknowledges a new event.
    EventJoinsRunningWork,
    /// An event during its key's reconcile is done immediately.
    EventOfRunningWorkIsDone,
    MergedWorkLosesItsGuard,
    /// A reconcile uses the state from when it was queued.
    StaleRead,
    FirstListIsNotReported,
    /// The agent sends nothing while events are in flight.
    StopAndWait,
    PollNamesTheHighest,
    /// Acknowledgements stop at the first held number.
    InOrderAcknowledgements,
    /// No acknowledgement while any route holds an awaited number.
    AllRoutesOrNone,
    /// Tolerated.
    SessionIsIgnored,
    /// Tolerated.
    CrashKeepsTheSession,
    /// Tolerated: they are only asked about.
    FailedRequestIsNotPutBack,
}

/// A number that waits for a reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Guard {
    pub(crate) epoch: Epoch,
    pub(crate) seq: Seq,
}

/// The protocol, correct or with one mistake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules(pub(crate) Option<Mutation>);

const ONE_FOR_ALL: Epoch = Epoch::from_bits(77);

impl Rules {
    pub(crate) fn is(self, mutation: Mutation) -> bool {
        self.0 == Some(mutation)
    }

    // The agent's side.

    pub(crate) fn next_batch(self, outbox: &mut Outbox) -> Option<(Request<'static>, InFlight)> {
        if self.is(Mutation::StopAndWait) && outbox.dirty().len() > outbox.dirty().unsent() {
            return None;
        }
        let (mut request, in_flight) = outbox.next_batch(Tick::ZERO)?;
        // Metrics, not protocol.
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

    /// Returns the answer as applied, too. `answers` is the answered batch.
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

    /// `session`: see [`Mutation::LedgerSurvivesInANewSession`].
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

/// One if settled everywhere, else more than any number can have.
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

fn acknowledge(response: &mut Response, done: SeqSet) {
    for route in [super::world::route(0), super::world::route(1)] {
        response.acks.push(RouteAck { route, done: done.clone(), refused: SeqSet::new() });
    }
}
