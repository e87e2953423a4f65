//! The receiver's half: what one runtime has said in this session, and what has become of it.
//!
//! It is soft state. Whatever is forgotten (a restart, an evicted epoch) is answered as `unknown`, and
//! the agent sends it again.

use std::collections::{BTreeMap, VecDeque};

use smallvec::SmallVec;
use tidewatch_wire::{
    Epoch, Route, Seq, SeqSet, SessionId, limits,
    v3::{self, Request, Response, RouteAck},
};

/// Numbers of canaries that are remembered beside all others, so that a runtime with much to say does not look as if
/// nothing arrived from it.
const CANARIES: usize = 2;
/// Epochs kept per runtime: the current one, and one before it for requests that were overtaken.
const EPOCHS: usize = 2;

/// What a route is asked to decide about an event when it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intake {
    /// It was taken and will be settled by [`Ledger::settle`].
    Held,
    /// Nothing has to happen: done at once.
    Done,
    /// It is not wanted.
    Refused,
}

/// How a held event ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A reconcile that could see it has finished.
    Done,
    /// It is not wanted.
    Refused,
    /// The work was dropped without being finished: forget it, so that it is sent again.
    Dropped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Verdict {
    Held,
    Done,
    Refused,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Told(BTreeMap<Seq, Verdicts>);

/// In the order of the routes. Nearly always one, which is kept in place: a map, or a list of its own, would take many times
/// the memory, for each event in work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Verdicts(SmallVec<[(Route, Verdict); 1]>);

impl Verdicts {
    fn set(&mut self, route: Route, verdict: Verdict) {
        match self.0.binary_search_by(|(known, _)| known.cmp(&route)) {
            Ok(at) => self.0[at].1 = verdict,
            Err(at) => self.0.insert(at, (route, verdict)),
        }
    }

    fn get_mut(&mut self, route: &Route) -> Option<&mut Verdict> {
        self.0.iter_mut().find(|(known, _)| known == route).map(|(_, verdict)| verdict)
    }

    fn is_held(&self) -> bool {
        self.0.iter().any(|(_, verdict)| *verdict == Verdict::Held)
    }
}

/// The ledger of one runtime.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ledger {
    session: SessionId,
    capacity: usize,
    epochs: VecDeque<(Epoch, Told)>,
}

/// What a request brought that is new to this session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Positions in [`Request::events`] of events to route.
    pub fresh: Vec<usize>,
    /// Whether events were left out because the ledger is full; the answer asks for patience.
    pub overloaded: bool,
}

impl Ledger {
    /// An empty ledger that remembers at most `capacity` numbers per epoch, and a few of canaries.
    #[must_use]
    pub fn new(session: SessionId, capacity: usize) -> Self {
        Self { session, capacity, epochs: VecDeque::new() }
    }

    fn told(&mut self, epoch: Epoch) -> Option<&mut Told> {
        self.epochs.iter_mut().find(|(e, _)| *e == epoch).map(|(_, told)| told)
    }

    /// Takes a request in: forgets settled numbers that the agent no longer awaits (held ones too, if
    /// there is no room otherwise), and says which events are new. Each of those must be given to
    /// [`Ledger::route`].
    pub fn receive(&mut self, request: &Request<'_>) -> Received {
        self.receive_those(request, |_| true)
    }

    /// The same of those events that are `wanted` now; the others stay unknown. What is part of a full report comes last in what is
    /// new: where there is no room for all, an edit has it.
    pub fn receive_those(
        &mut self,
        request: &Request<'_>,
        wanted: impl Fn(&v3::Event<'_>) -> bool,
    ) -> Received {
        let capacity = self.capacity;
        if self.told(request.epoch).is_none() {
            self.epochs.truncate(EPOCHS - 1);
            self.epochs.push_front((request.epoch, Told::default()));
        }
        let Some(told) = self.told(request.epoch) else { return Received::default() };
        // Events of this very request may be missing from `awaiting` only if the sender is broken.
        told.0.retain(|&seq, routes| request.awaiting.contains(seq) || routes.is_held());
        let new = request.events.iter().filter(|event| !told.0.contains_key(&event.seq)).count();
        if told.0.len().saturating_add(new) > capacity {
            // A key that never finishes and changes again and again would fill the ledger with numbers
            // that nobody asks about any more. A late request may ask for too much to be forgotten: that
            // is sent again.
            told.0.retain(|&seq, _| request.awaiting.contains(seq));
        }
        let mut received = Received::default();
        let part = |listed: bool| request.events.iter().enumerate().filter(move |(_, e)| e.listed == listed);
        for (index, event) in part(false).chain(part(true)) {
            if told.0.contains_key(&event.seq) || !wanted(event) {
                continue;
            }
            let beside = if event.watch == v3::CANARY { CANARIES } else { 0 };
            if told.0.len() >= capacity.saturating_add(beside) {
                received.overloaded = true;
                continue;
            }
            told.0.insert(event.seq, Verdicts::default());
            received.fresh.push(index);
        }
        received
    }

    /// Records where a new event went.
    pub fn route(&mut self, epoch: Epoch, seq: Seq, route: Route, intake: Intake) {
        let verdict = match intake {
            Intake::Held => Verdict::Held,
            Intake::Done => Verdict::Done,
            Intake::Refused => Verdict::Refused,
        };
        if let Some(routes) = self.told(epoch).and_then(|t| t.0.get_mut(&seq)) {
            routes.set(route, verdict);
        }
    }

    /// Records how a held event ended. Unknown epochs and numbers are ignored.
    pub fn settle(&mut self, epoch: Epoch, seq: Seq, route: &Route, outcome: Outcome) {
        let Some(told) = self.told(epoch) else { return };
        let Some(routes) = told.0.get_mut(&seq) else { return };
        let Some(verdict) = routes.get_mut(route) else { return };
        if *verdict != Verdict::Held {
            return;
        }
        match outcome {
            Outcome::Done => *verdict = Verdict::Done,
            Outcome::Refused => *verdict = Verdict::Refused,
            Outcome::Dropped => {
                told.0.remove(&seq);
            }
        }
    }

    /// Whether a number is remembered. Work for one that is not can be acknowledged to nobody.
    pub fn knows(&self, epoch: Epoch, seq: Seq) -> bool {
        self.epochs.iter().any(|(e, told)| *e == epoch && told.0.contains_key(&seq))
    }

    /// Whether [`Ledger::answer`] has a verdict on, or a question about, an awaited number.
    pub fn has_news(&mut self, epoch: Epoch, awaiting: &SeqSet) -> bool {
        let answer = self.answer(epoch, awaiting);
        !answer.acks.is_empty() || !answer.unknown.is_empty()
    }

    /// The verdicts on the awaited numbers.
    pub fn answer(&mut self, epoch: Epoch, awaiting: &SeqSet) -> Response {
        let session = self.session;
        let empty = Told::default();
        let told = self.epochs.iter().find(|(e, _)| *e == epoch).map_or(&empty, |(_, told)| told);
        let mut unknown = awaiting.without(told.0.keys().copied());
        // Known numbers split the ranges that are awaited, and the agent refuses a set of more ranges than the contract
        // allows. It asks again for what is left out here.
        unknown.keep_lowest(limits::SEQ_RANGES);
        let mut acks: BTreeMap<&Route, RouteAck> = BTreeMap::new();
        let known = awaiting.ranges().flat_map(|(start, end)| told.0.range(Seq(start)..=Seq(end)));
        for (&seq, verdicts) in known {
            for (route, verdict) in &verdicts.0 {
                if *verdict == Verdict::Held {
                    continue;
                }
                let ack = acks.entry(route).or_insert_with(|| RouteAck {
                    route: route.clone(),
                    done: SeqSet::new(),
                    refused: SeqSet::new(),
                });
                if *verdict == Verdict::Done { ack.done.insert(seq) } else { ack.refused.insert(seq) }
            }
        }
        for ack in acks.values_mut() {
            ack.done.keep_lowest(limits::SEQ_RANGES);
            ack.refused.keep_lowest(limits::SEQ_RANGES);
        }
        Response { acks: acks.into_values().collect(), unknown, ..Response::new(epoch, session) }
    }

    /// Numbers that wait for a reconcile, over all epochs.
    pub fn held(&self) -> usize {
        self.epochs.iter().flat_map(|(_, told)| told.0.values()).filter(|verdicts| verdicts.is_held()).count()
    }
}

#[cfg(test)]
mod tests;
