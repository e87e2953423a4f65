//! The model's state: objects, agent, two receivers with queues, and messages.

use std::{array, collections::BTreeMap};

use jiff::Timestamp;
use tidewatch_delivery::{
    Tick,
    ledger::{Intake, Ledger, Outcome},
    outbox::{InFlight, Key, Observation, Observed, Outbox},
};
use tidewatch_wire::{
    Epoch, Route, Seq, SessionId,
    v3::{Change, Request, Response},
};

use super::{
    frozen::Frozen,
    rules::{Guard, Mutation, Rules},
};

/// Watched objects, each with its own watch.
pub(crate) const KEYS: usize = 2;
pub(crate) const RECEIVERS: usize = 2;
/// The engine and one central component.
pub(crate) const ROUTES: usize = 2;

/// Limits of a world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) changes: [u8; KEYS],
    /// Starts of the agent.
    pub(crate) epochs: u8,
    /// Total of both receivers.
    pub(crate) receiver_crashes: u8,
    /// Switches to the other receiver.
    pub(crate) switches: u8,
    /// Messages in flight.
    pub(crate) network: usize,
    /// Lost, repeated or late messages, and dropped or failed reconciles.
    pub(crate) faults: u8,
    /// Faults, crashes and switches together, in any choice.
    pub(crate) troubles: u8,
    /// Numbers per epoch in a ledger.
    pub(crate) capacity: usize,
    /// Routes per object; 1 is the engine only.
    pub(crate) routes: [usize; KEYS],
    /// The object with reconciles that never finish.
    pub(crate) suspended: Option<usize>,
    pub(crate) dead_route: bool,
    pub(crate) simplified: bool,
}

impl Bounds {
    pub(crate) fn max_troubles(&self) -> u8 {
        let Self { epochs, receiver_crashes, switches, faults, troubles, .. } = self;
        troubles.min(&(epochs - 1 + receiver_crashes + switches + faults)).to_owned()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// Changes so far.
    pub(crate) version: [u8; KEYS],
    /// Latest version that a *finished* reconcile observed, by object and route.
    pub(crate) reconciled: [[u8; ROUTES]; KEYS],
    pub(crate) agent: Frozen<Agent>,
    pub(crate) receivers: [Frozen<Receiver>; RECEIVERS],
    /// A multiset.
    pub(crate) network: Vec<Message>,
    /// Receiver of new requests.
    pub(crate) connected: usize,
    pub(crate) switches: u8,
    pub(crate) epochs: u8,
    pub(crate) crashes: u8,
    pub(crate) faults: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Agent {
    pub(crate) outbox: Outbox,
    /// Number of each dirty object.
    pub(crate) number: [Option<Seq>; KEYS],
    /// Routes without acknowledgement, by object.
    pub(crate) waits: [[bool; ROUTES]; KEYS],
    /// Open exchanges, at most one of each kind.
    pub(crate) batch: Option<(u8, Frozen<Request<'static>>, InFlight)>,
    pub(crate) poll: Option<u8>,
    /// Only for [`Mutation::FailedRequestIsForgotten`].
    pub(crate) forgotten: Vec<Seq>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Receiver {
    pub(crate) session: SessionId,
    pub(crate) ledger: Ledger,
    pub(crate) work: [[Slot; ROUTES]; KEYS],
}

/// One key in the queue: merged while queued, run once at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Slot {
    pub(crate) queued: Option<Work>,
    pub(crate) running: Option<Work>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Work {
    /// Observed version, read at the start.
    pub(crate) view: u8,
    pub(crate) guards: Vec<Guard>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Message {
    pub(crate) exchange: u8,
    pub(crate) letter: Letter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Letter {
    Request(Frozen<Request<'static>>),
    Answer(Frozen<Response>),
}

/// Receiver, object and route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkKey(pub(crate) usize, pub(crate) usize, pub(crate) usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Change { key: usize },
    SendBatch,
    SendPoll,
    Deliver { message: usize },
    TakeAnswer { message: usize },
    NoAnswerToBatch,
    NoAnswerToPoll,
    Start(WorkKey),
    Finish(WorkKey),
    // Faults.
    Lose { message: usize },
    Repeat { message: usize },
    Drop(WorkKey),
    Fail(WorkKey),
    Switch,
    CrashAgent,
    CrashReceiver { receiver: usize },
}

pub(crate) fn route(index: usize) -> Route {
    if index == 0 { Route::engine() } else { Route::manager("central") }
}

fn name(key: usize) -> String {
    ["a", "b"][key].to_owned()
}

fn key_of(name: &str) -> usize {
    usize::from(name == "b")
}

impl State {
    pub(crate) fn new(bounds: &Bounds) -> Self {
        let receiver = |n: usize| Frozen::new(Receiver::new(session(n), bounds));
        Self {
            version: [0; KEYS],
            reconciled: [[0; ROUTES]; KEYS],
            agent: Frozen::new(Agent::new(1, bounds)),
            receivers: array::from_fn(receiver),
            network: Vec::new(),
            connected: 0,
            switches: 0,
            epochs: 1,
            crashes: 0,
            faults: 0,
        }
    }

    pub(crate) fn troubles(&self) -> u8 {
        self.epochs - 1 + self.crashes + self.switches + self.faults
    }

    /// Whether an action is a trouble. A timeout after a lost answer is none.
    pub(crate) fn is_trouble(&self, action: Action) -> bool {
        match action {
            Action::Change { .. }
            | Action::SendBatch
            | Action::SendPoll
            | Action::Deliver { .. }
            | Action::TakeAnswer { .. }
            | Action::Start(_)
            | Action::Finish(_) => false,
            Action::NoAnswerToBatch => self.agent.batch.as_ref().is_some_and(|batch| self.awaits(batch.0)),
            Action::NoAnswerToPoll => self.agent.poll.is_some_and(|exchange| self.awaits(exchange)),
            Action::Lose { .. }
            | Action::Repeat { .. }
            | Action::Drop(_)
            | Action::Fail(_)
            | Action::Switch
            | Action::CrashAgent
            | Action::CrashReceiver { .. } => true,
        }
    }

    pub(crate) fn awaits(&self, exchange: u8) -> bool {
        self.network.iter().any(|message| message.exchange == exchange)
    }

    pub(crate) fn can_be_finished(bounds: &Bounds, WorkKey(_, key, route): WorkKey) -> bool {
        bounds.suspended != Some(key) && !(bounds.dead_route && route > 0)
    }

    fn free_exchange(&self) -> u8 {
        let taken = |n: u8| {
            self.awaits(n)
                || self.agent.poll == Some(n)
                || self.agent.batch.as_ref().is_some_and(|b| b.0 == n)
        };
        (0..u8::MAX).find(|&n| !taken(n)).unwrap_or(u8::MAX)
    }

    fn post(&mut self, exchange: u8, letter: Letter) {
        self.network.push(Message { exchange, letter });
        self.network.sort_by_key(Message::rank);
    }

    pub(crate) fn after(&self, action: Action, rules: Rules, bounds: &Bounds) -> Self {
        let mut next = self.clone();
        next.apply(action, rules, bounds);
        if bounds.simplified {
            next.simplify(rules, bounds);
        }
        next
    }

    /// Removes parts that no later step of the correct protocol reads. Later behaviour and properties stay equal.
    ///
    /// - The view of a reconcile that never ends is never read.
    /// - Such a reconcile itself is read only by a fault.
    /// - The memory of an unreachable receiver is never read; its reconciles continue.
    pub(crate) fn simplify(&mut self, rules: Rules, bounds: &Bounds) {
        if rules.0.is_some() {
            return;
        }
        let over = self.troubles() >= bounds.troubles;
        let no_fault = over || self.faults >= bounds.faults;
        for index in 0..RECEIVERS {
            let cut_off = index != self.connected && (over || self.switches >= bounds.switches);
            let mut simple = Receiver::clone(&self.receivers[index]);
            if cut_off {
                simple.ledger = Ledger::new(simple.session, bounds.capacity);
            }
            for (key, route) in (0..KEYS).flat_map(|key| (0..ROUTES).map(move |route| (key, route))) {
                let stuck = !Self::can_be_finished(bounds, WorkKey(index, key, route));
                let Slot { queued, running } = &mut simple.work[key][route];
                for work in queued.iter_mut().chain(running.iter_mut()) {
                    if stuck {
                        work.view = 0;
                    }
                    if cut_off {
                        work.guards.clear();
                    }
                }
                if stuck && no_fault {
                    (*queued, *running) = (None, None);
                }
            }
            if simple != *self.receivers[index] {
                self.receivers[index] = Frozen::new(simple);
            }
        }
    }

    fn apply(&mut self, action: Action, rules: Rules, bounds: &Bounds) {
        match action {
            Action::Change { key } => {
                self.version[key] += 1;
                self.agent.change(|agent| agent.observe(key, rules, bounds));
            }
            Action::SendBatch => {
                let exchange = self.free_exchange();
                let sent = self.agent.change(|agent| {
                    let (request, in_flight) = rules.next_batch(&mut agent.outbox)?;
                    let request = Frozen::new(request);
                    agent.batch = Some((exchange, request.clone(), in_flight));
                    Some(request)
                });
                if let Some(request) = sent {
                    self.post(exchange, Letter::Request(request));
                }
            }
            Action::SendPoll => {
                let exchange = self.free_exchange();
                let sent = self.agent.change(|agent| {
                    let request = rules.poll(&mut agent.outbox, &agent.forgotten)?;
                    agent.poll = Some(exchange);
                    Some(request)
                });
                if let Some(request) = sent {
                    self.post(exchange, Letter::Request(Frozen::new(request)));
                }
            }
            Action::Deliver { message } => {
                let Message { exchange, letter } = self.network.remove(message);
                if let Letter::Request(request) = letter {
                    let versions = self.version;
                    let answer = self.receivers[self.connected]
                        .change(|r| r.receive(&request, versions, rules, bounds));
                    self.post(exchange, Letter::Answer(Frozen::new(answer)));
                }
            }
            Action::TakeAnswer { message } => {
                let Message { exchange, letter } = self.network.remove(message);
                if let Letter::Answer(response) = letter {
                    self.agent.change(|agent| agent.answered(exchange, &response, rules));
                }
            }
            Action::NoAnswerToBatch => {
                self.faults += u8::from(self.agent.batch.as_ref().is_some_and(|b| self.awaits(b.0)));
                self.agent.change(|agent| agent.batch_failed(rules));
            }
            Action::NoAnswerToPoll => {
                self.faults += u8::from(self.agent.poll.is_some_and(|exchange| self.awaits(exchange)));
                self.agent.change(|agent| agent.poll = None);
            }
            Action::Start(key_of_work) => self.start(key_of_work, rules),
            Action::Finish(key_of_work) => self.finish(key_of_work, rules),
            Action::Lose { message } => {
                self.faults += 1;
                self.network.remove(message);
            }
            Action::Repeat { message } => {
                self.faults += 1;
                self.network.insert(message, self.network[message].clone());
            }
            Action::Drop(key_of_work) => {
                self.faults += 1;
                self.drop_work(key_of_work, rules);
            }
            Action::Fail(key_of_work) => {
                self.faults += 1;
                self.fail(key_of_work, rules);
            }
            Action::Switch => {
                self.switches += 1;
                self.connected = (self.connected + 1) % RECEIVERS;
            }
            Action::CrashAgent => {
                self.epochs += 1;
                let mut agent = Agent::new(self.epochs, bounds);
                // The first list reports every object.
                for key in (0..KEYS).filter(|&key| self.version[key] > 0) {
                    if !rules.is(Mutation::FirstListIsNotReported) {
                        agent.observe(key, rules, bounds);
                    }
                }
                self.agent = Frozen::new(agent);
            }
            Action::CrashReceiver { receiver } => {
                self.crashes += 1;
                let fresh = session(RECEIVERS + usize::from(self.crashes) - 1);
                self.receivers[receiver].change(|receiver| receiver.crash(fresh, rules, bounds));
            }
        }
    }

    fn start(&mut self, WorkKey(receiver, key, route): WorkKey, rules: Rules) {
        let version = self.version[key];
        self.receivers[receiver].change(|receiver| {
            let Some(mut work) = receiver.work[key][route].queued.take() else { return };
            if !rules.is(Mutation::StaleRead) {
                work.view = version;
            }
            if rules.is(Mutation::AcknowledgeAtTheStart) {
                receiver.settle(&work.guards, route, Outcome::Done, rules);
            }
            receiver.work[key][route].running = Some(work);
        });
    }

    fn finish(&mut self, WorkKey(receiver, key, route): WorkKey, rules: Rules) {
        let view = self.receivers[receiver].change(|receiver| {
            let work = receiver.work[key][route].running.take()?;
            receiver.settle(&work.guards, route, Outcome::Done, rules);
            Some(work.view)
        });
        let reconciled = &mut self.reconciled[key][route];
        *reconciled = view.map_or(*reconciled, |view| view.max(*reconciled));
    }

    fn drop_work(&mut self, WorkKey(receiver, key, route): WorkKey, rules: Rules) {
        self.receivers[receiver].change(|receiver| {
            let Slot { queued, running } = &mut receiver.work[key][route];
            if let Some(work) = running.take().or_else(|| queued.take()) {
                receiver.settle(&work.guards, route, Outcome::Dropped, rules);
            }
        });
    }

    /// Queues a failed reconcile again, with its guards.
    fn fail(&mut self, WorkKey(receiver, key, route): WorkKey, rules: Rules) {
        self.receivers[receiver].change(|receiver| {
            let Some(mut work) = receiver.work[key][route].running.take() else { return };
            if rules.is(Mutation::FailedWorkAcknowledges) {
                receiver.settle(&work.guards, route, Outcome::Done, rules);
            }
            if rules.is(Mutation::FailedWorkForgetsItsGuards) {
                work.guards.clear();
            }
            // A queued view is not read; equal ones keep the states few.
            work.view = 0;
            let slot = &mut receiver.work[key][route];
            if let Some(waiting) = slot.queued.take() {
                work.guards.extend(waiting.guards);
                work.guards.sort_unstable();
            }
            slot.queued = Some(work);
        });
    }
}

impl Message {
    fn rank(&self) -> (u8, u64) {
        let hash = match &self.letter {
            Letter::Request(request) => request.rank(),
            Letter::Answer(response) => response.rank(),
        };
        (self.exchange, hash)
    }
}

impl Agent {
    fn new(epoch: u8, bounds: &Bounds) -> Self {
        let routes: BTreeMap<String, Vec<Route>> = (0..KEYS)
            .filter(|&key| bounds.routes[key] > 1)
            .map(|key| (name(key), (0..bounds.routes[key]).map(route).collect()))
            .collect();
        Self {
            outbox: Outbox::new(Epoch::from_bits(u128::from(epoch)), routes),
            number: [None; KEYS],
            waits: [[false; ROUTES]; KEYS],
            batch: None,
            poll: None,
            forgotten: Vec::new(),
        }
    }

    fn observe(&mut self, key: usize, rules: Rules, bounds: &Bounds) {
        if rules.is(Mutation::SameNumberAfterAChange) && self.number[key].is_some() {
            return;
        }
        let observation = Observation {
            key: Key { watch: name(key).into(), namespace: "".into(), name: name(key).into() },
            group: "".into(),
            version: "".into(),
            kind: "".into(),
            uid: String::new(),
            resource_version: String::new(),
            change: Change::Changed,
            listed: false,
            at: Timestamp::UNIX_EPOCH,
        };
        let (Observed::New(seq) | Observed::Coalesced(seq)) = self.outbox.observe(observation, Tick::ZERO);
        self.number[key] = Some(seq);
        self.waits[key] = array::from_fn(|route| route < bounds.routes[key]);
    }

    fn answered(&mut self, exchange: u8, response: &Response, rules: Rules) {
        let batch = self.batch.take_if(|batch| batch.0 == exchange);
        self.poll.take_if(|poll| *poll == exchange);
        let answers = batch.as_ref().map(|batch| &*batch.1);
        let (applied, response) = rules.answered(&mut self.outbox, response, answers);
        for key in (0..KEYS).filter(|_| !applied.ignored) {
            let Some(number) = self.number[key] else { continue };
            for (index, waits) in self.waits[key].iter_mut().enumerate() {
                *waits &= !response.acks.iter().any(|a| a.route == route(index) && a.done.contains(number));
            }
        }
        for released in applied.released {
            let key = key_of(&released.key.name);
            (self.number[key], self.waits[key]) = (None, [false; ROUTES]);
        }
        if let Some((.., in_flight)) = batch.filter(|_| applied.ignored) {
            rules.failed(&mut self.outbox, &in_flight);
        }
    }

    fn batch_failed(&mut self, rules: Rules) {
        let Some((_, request, in_flight)) = self.batch.take() else { return };
        rules.failed(&mut self.outbox, &in_flight);
        if rules.is(Mutation::FailedRequestIsForgotten) {
            self.forgotten.extend(request.events.iter().map(|event| event.seq));
        }
    }
}

impl Receiver {
    fn new(session: SessionId, bounds: &Bounds) -> Self {
        let work = array::from_fn(|_| array::from_fn(|_| Slot::default()));
        Self { session, ledger: Ledger::new(session, bounds.capacity), work }
    }

    fn receive(
        &mut self,
        request: &Request<'_>,
        versions: [u8; KEYS],
        rules: Rules,
        bounds: &Bounds,
    ) -> Response {
        let received = rules.receive(&mut self.ledger, request);
        for event in received.fresh.into_iter().filter_map(|index| request.events.get(index)) {
            let key = key_of(&event.name);
            for index in 0..bounds.routes[key] {
                let running = self.work[key][index].running.is_some();
                let intake = rules.route(&mut self.ledger, request.epoch, event, route(index), running);
                if intake == Intake::Held || !running {
                    let view = if rules.is(Mutation::StaleRead) { versions[key] } else { 0 };
                    self.work[key][index].push(Guard { epoch: request.epoch, seq: event.seq }, view, rules);
                }
            }
        }
        rules.answer(&mut self.ledger, request, self.session)
    }

    fn settle(&mut self, guards: &[Guard], index: usize, outcome: Outcome, rules: Rules) {
        for guard in guards {
            rules.settle(&mut self.ledger, *guard, &route(index), outcome);
        }
    }

    fn crash(&mut self, fresh: SessionId, rules: Rules, bounds: &Bounds) {
        let session = if rules.is(Mutation::CrashKeepsTheSession) { self.session } else { fresh };
        let before = std::mem::replace(self, Self::new(session, bounds));
        if rules.is(Mutation::LedgerSurvivesItsQueue) || rules.is(Mutation::LedgerSurvivesInANewSession) {
            self.ledger = before.ledger;
        }
    }
}

impl Slot {
    fn push(&mut self, guard: Guard, view: u8, rules: Rules) {
        if let Some(running) = self.running.as_mut().filter(|_| rules.is(Mutation::EventJoinsRunningWork)) {
            running.guards.push(guard);
            return;
        }
        match &mut self.queued {
            Some(_) if rules.is(Mutation::MergedWorkLosesItsGuard) => {}
            Some(work) => {
                work.guards.push(guard);
                work.guards.sort_unstable();
            }
            None => self.queued = Some(Work { view, guards: vec![guard] }),
        }
    }
}

fn session(number: usize) -> SessionId {
    SessionId::from_bits(number as u128 + 1)
}
