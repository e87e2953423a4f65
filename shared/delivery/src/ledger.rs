//! The receiver's half: events of one runtime and session, with their results.
//!
//! Soft state: forgotten events are answered as `unknown`, and the agent resends them.

use std::collections::{BTreeMap, VecDeque};

use smallvec::SmallVec;
use tidewatch_wire::{
    Epoch, Route, Seq, SeqSet, SessionId, limits,
    v3::{self, Request, Response, RouteAck},
};

/// Canaries beyond the capacity, so that a busy runtime does not look silent.
const CANARIES: usize = 2;
/// Epochs per runtime: the current and, for late requests, the previous one.
const EPOCHS: usize = 2;

/// A route's decision on a new event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intake {
    /// Accepted until [`Ledger::settle`].
    Held,
    /// Done immediately.
    Done,
    /// Not wanted.
    Refused,
}

/// Result of a held event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A reconcile that observed it has finished.
    Done,
    /// Not wanted.
    Refused,
    /// Dropped unfinished; the agent resends it.
    Dropped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum EventState {
    Held,
    Done,
    Refused,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Numbers(BTreeMap<Seq, Verdicts>);

/// By route. Usually one, inline: a map or list takes many times the memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Verdicts(SmallVec<[(Route, EventState); 1]>);

impl Verdicts {
    fn set(&mut self, route: Route, verdict: EventState) {
        match self.0.binary_search_by(|(known, _)| known.cmp(&route)) {
            Ok(at) => self.0[at].1 = verdict,
            Err(at) => self.0.insert(at, (route, verdict)),
        }
    }

    fn get_mut(&mut self, route: &Route) -> Option<&mut EventState> {
        self.0.iter_mut().find(|(known, _)| known == route).map(|(_, verdict)| verdict)
    }

    fn is_held(&self) -> bool {
        self.0.iter().any(|(_, verdict)| *verdict == EventState::Held)
    }
}

/// Ledger of one runtime.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ledger {
    session: SessionId,
    capacity: usize,
    epochs: VecDeque<(Epoch, Numbers)>,
}

/// New events of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Positions in [`Request::events`].
    pub fresh: Vec<usize>,
    /// Whether the ledger was full; the answer asks for a delay.
    pub overloaded: bool,
}

impl Ledger {
    /// An empty ledger for `capacity` numbers per epoch, plus a few canaries.
    #[must_use]
    pub fn new(session: SessionId, capacity: usize) -> Self {
        Self { session, capacity, epochs: VecDeque::new() }
    }

    fn numbers(&mut self, epoch: Epoch) -> Option<&mut Numbers> {
        self.epochs.iter_mut().find(|(e, _)| *e == epoch).map(|(_, numbers)| numbers)
    }

    /// Receives a request. Each new event must be passed to [`Ledger::route`].
    ///
    /// Forgets settled numbers that are not awaited, and held ones if full.
    pub fn receive(&mut self, request: &Request<'_>) -> Received {
        self.receive_only(request, |_| true)
    }

    /// Like [`Ledger::receive`] for `wanted` events only. Edits precede a full report's events when capacity is short.
    pub fn receive_only(
        &mut self,
        request: &Request<'_>,
        wanted: impl Fn(&v3::Event<'_>) -> bool,
    ) -> Received {
        let capacity = self.capacity;
        if self.numbers(request.epoch).is_none() {
            self.epochs.truncate(EPOCHS - 1);
            self.epochs.push_front((request.epoch, Numbers::default()));
        }
        let Some(numbers) = self.numbers(request.epoch) else { return Received::default() };
        // A resent event missing from `awaiting` counts as new.
        numbers.0.retain(|&seq, routes| request.awaiting.contains(seq) || routes.is_held());
        let new = request.events.iter().filter(|event| !numbers.0.contains_key(&event.seq)).count();
        if numbers.0.len().saturating_add(new) > capacity {
            // Otherwise a key that changes without ever finishing fills the ledger. If a late request drops too many,
            // the agent resends them.
            numbers.0.retain(|&seq, _| request.awaiting.contains(seq));
        }
        let mut received = Received::default();
        let part = |listed: bool| request.events.iter().enumerate().filter(move |(_, e)| e.listed == listed);
        for (index, event) in part(false).chain(part(true)) {
            if numbers.0.contains_key(&event.seq) || !wanted(event) {
                continue;
            }
            let extra = if event.watch == v3::CANARY { CANARIES } else { 0 };
            if numbers.0.len() >= capacity.saturating_add(extra) {
                received.overloaded = true;
                continue;
            }
            numbers.0.insert(event.seq, Verdicts::default());
            received.fresh.push(index);
        }
        received
    }

    /// Records a route's decision.
    pub fn route(&mut self, epoch: Epoch, seq: Seq, route: Route, intake: Intake) {
        let verdict = match intake {
            Intake::Held => EventState::Held,
            Intake::Done => EventState::Done,
            Intake::Refused => EventState::Refused,
        };
        if let Some(routes) = self.numbers(epoch).and_then(|t| t.0.get_mut(&seq)) {
            routes.set(route, verdict);
        }
    }

    /// Records a held event's result. Ignores unknown numbers.
    pub fn settle(&mut self, epoch: Epoch, seq: Seq, route: &Route, outcome: Outcome) {
        let Some(numbers) = self.numbers(epoch) else { return };
        let Some(routes) = numbers.0.get_mut(&seq) else { return };
        let Some(verdict) = routes.get_mut(route) else { return };
        if *verdict != EventState::Held {
            return;
        }
        match outcome {
            Outcome::Done => *verdict = EventState::Done,
            Outcome::Refused => *verdict = EventState::Refused,
            Outcome::Dropped => {
                numbers.0.remove(&seq);
            }
        }
    }

    /// Whether a number is remembered. A reconcile for a forgotten one cannot be acknowledged.
    pub fn knows(&self, epoch: Epoch, seq: Seq) -> bool {
        self.epochs.iter().any(|(e, numbers)| *e == epoch && numbers.0.contains_key(&seq))
    }

    /// Whether [`Ledger::answer`] has an acknowledged or unknown number.
    pub fn has_changes(&mut self, epoch: Epoch, awaiting: &SeqSet) -> bool {
        let answer = self.answer(epoch, awaiting);
        !answer.acks.is_empty() || !answer.unknown.is_empty()
    }

    /// Verdicts on the awaited numbers.
    pub fn answer(&mut self, epoch: Epoch, awaiting: &SeqSet) -> Response {
        let session = self.session;
        let empty = Numbers::default();
        let numbers = self.epochs.iter().find(|(e, _)| *e == epoch).map_or(&empty, |(_, numbers)| numbers);
        let mut unknown = awaiting.without(numbers.0.keys().copied());
        // Known numbers split the awaited ranges, and the agent rejects too many. It asks again for the rest.
        unknown.keep_lowest(limits::SEQ_RANGES);
        let mut acks: BTreeMap<&Route, RouteAck> = BTreeMap::new();
        let known = awaiting.ranges().flat_map(|(start, end)| numbers.0.range(Seq(start)..=Seq(end)));
        for (&seq, verdicts) in known {
            for (route, verdict) in &verdicts.0 {
                if *verdict == EventState::Held {
                    continue;
                }
                let ack = acks.entry(route).or_insert_with(|| RouteAck {
                    route: route.clone(),
                    done: SeqSet::new(),
                    refused: SeqSet::new(),
                });
                if *verdict == EventState::Done { ack.done.insert(seq) } else { ack.refused.insert(seq) }
            }
        }
        for ack in acks.values_mut() {
            ack.done.keep_lowest(limits::SEQ_RANGES);
            ack.refused.keep_lowest(limits::SEQ_RANGES);
        }
        Response { acks: acks.into_values().collect(), unknown, ..Response::new(epoch, session) }
    }

    /// Numbers that wait for a reconcile.
    pub fn held(&self) -> usize {
        self.epochs
            .iter()
            .flat_map(|(_, numbers)| numbers.0.values())
            .filter(|verdicts| verdicts.is_held())
            .count()
    }
}

#[cfg(test)]
mod tests;
