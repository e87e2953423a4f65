//! Possible actions and required properties.

use std::collections::HashSet;

use parking_lot::Mutex;
use stateright::{Checker, HasDiscoveries, Model, Property};

use super::{
    frozen::hash_of,
    rules::{Mutation, Rules},
    walk::Wanderer,
    world::{Action, Bounds, KEYS, Letter, RECEIVERS, State, WorkKey},
};

pub(crate) const SAFE: &str = "a route lets a key go only after work that began after its last change";
pub(crate) const RESTS: &str = "without further faults everything but what is stuck is let go";
const LETS_GO: &str = "after all changes and epochs everything was let go";
const GOES_WRONG: &str = "all that may go wrong has gone wrong";

/// Properties of the correct protocol.
pub(crate) const HOLDS: &[&str] = &[SAFE, RESTS, LETS_GO, GOES_WRONG];

/// Step limit, for the memory of a small machine.
const MAX_STEPS: usize = 20_000_000;

/// Steps after which a fault-free continuation counts as endless. The longest one has about forty.
const PATIENCE: usize = 200;

pub(crate) struct World {
    bounds: Bounds,
    rules: Rules,
    asked: &'static [&'static str],
    /// States known to come to rest.
    arrives: Mutex<HashSet<u64>>,
}

impl World {
    pub(crate) fn right(bounds: Bounds) -> Self {
        Self { bounds, rules: Rules(None), asked: HOLDS, arrives: Mutex::default() }
    }

    fn all_work(&self) -> impl Iterator<Item = WorkKey> + use<> {
        let routes = self.bounds.routes;
        (0..RECEIVERS).flat_map(move |r| {
            (0..KEYS).flat_map(move |k| (0..routes[k]).map(move |route| WorkKey(r, k, route)))
        })
    }

    fn can_be_finished(&self, key_of_work: WorkKey) -> bool {
        State::can_be_finished(&self.bounds, key_of_work)
    }

    /// Whether every live route has reconciled the latest change, and the agent knows it. Only keys that are suspended
    /// or have a dead route may be dirty.
    fn has_arrived(&self, state: &State) -> bool {
        (0..KEYS).all(|key| {
            let routes = self.bounds.routes[key];
            let alive = |route: &usize| self.can_be_finished(WorkKey(0, key, *route));
            let stuck = !(0..routes).all(|route| alive(&route));
            let seen = (0..routes).filter(alive).all(|route| {
                state.reconciled[key][route] >= state.version[key] && !state.agent.waits[key][route]
            });
            seen && (stuck || state.agent.number[key].is_none())
        })
    }

    /// Next step without faults and changes.
    fn calm_step(&self, state: &State) -> Option<Action> {
        if let Some(message) = state.network.first() {
            return Some(match message.letter {
                Letter::Request(_) => Action::Deliver { message: 0 },
                Letter::Answer(_) => Action::TakeAnswer { message: 0 },
            });
        }
        if state.agent.batch.is_some() {
            return Some(Action::NoAnswerToBatch);
        }
        if state.agent.poll.is_some() {
            return Some(Action::NoAnswerToPoll);
        }
        for key_of_work in self.all_work() {
            let WorkKey(receiver, key, route) = key_of_work;
            let slot = &state.receivers[receiver].work[key][route];
            if slot.running.is_some() {
                if self.can_be_finished(key_of_work) {
                    return Some(Action::Finish(key_of_work));
                }
            } else if slot.queued.is_some() {
                return Some(Action::Start(key_of_work));
            }
        }
        if state.agent.outbox.dirty().unsent() > 0 && self.can_send_batch(state) {
            return Some(Action::SendBatch);
        }
        self.can_poll(state).then_some(Action::SendPoll)
    }

    fn can_send_batch(&self, state: &State) -> bool {
        let waits = self.rules.is(Mutation::StopAndWait)
            && state.agent.outbox.dirty().len() > state.agent.outbox.dirty().unsent();
        state.agent.batch.is_none() && state.agent.outbox.dirty().unsent() > 0 && !waits
    }

    fn can_poll(&self, state: &State) -> bool {
        state.agent.poll.is_none()
            && state.agent.batch.is_none()
            && self.rules.poll(&mut state.agent.outbox.clone(), &state.agent.forgotten).is_some()
    }

    /// Whether the fault-free continuation comes to rest. It stops at a state with a known result.
    fn comes_to_rest(&self, state: &State) -> bool {
        let mut walked = Vec::new();
        let mut here = state.clone();
        loop {
            let hash = hash_of(&here);
            walked.push(hash);
            if self.has_arrived(&here) || self.arrives.lock().contains(&hash) {
                self.arrives.lock().extend(walked);
                return true;
            }
            match self.calm_step(&here) {
                Some(action) if walked.len() < PATIENCE => {
                    here = here.after(action, self.rules, &self.bounds);
                }
                _ => return false,
            }
        }
    }

    /// Whether every acknowledged route has reconciled the latest change.
    pub(crate) fn is_safe(&self, state: &State) -> bool {
        (0..KEYS).all(|key| {
            (0..self.bounds.routes[key])
                .filter(|&route| !state.agent.waits[key][route])
                .all(|route| state.reconciled[key][route] >= state.version[key])
        })
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(&self.bounds)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let Bounds { changes, epochs, receiver_crashes, switches, network, faults, troubles, .. } =
            self.bounds;
        let may_trouble = state.troubles() < troubles;
        let may_fail = may_trouble && state.faults < faults;
        let has_capacity = state.network.len() < network;
        actions
            .extend((0..KEYS).filter(|&k| state.version[k] < changes[k]).map(|key| Action::Change { key }));
        if has_capacity && self.can_send_batch(state) {
            actions.push(Action::SendBatch);
        }
        if has_capacity && self.can_poll(state) {
            actions.push(Action::SendPoll);
        }
        for (message, sent) in state.network.iter().enumerate() {
            if message > 0 && state.network[message - 1] == *sent {
                continue;
            }
            match sent.letter {
                Letter::Request(_) => actions.push(Action::Deliver { message }),
                Letter::Answer(_) => actions.push(Action::TakeAnswer { message }),
            }
            if may_fail {
                actions.push(Action::Lose { message });
                if has_capacity {
                    actions.push(Action::Repeat { message });
                }
            }
        }
        if state.agent.batch.as_ref().is_some_and(|batch| may_fail || !state.awaits(batch.0)) {
            actions.push(Action::NoAnswerToBatch);
        }
        if state.agent.poll.is_some_and(|poll| may_fail || !state.awaits(poll)) {
            actions.push(Action::NoAnswerToPoll);
        }
        for key_of_work in self.all_work() {
            let WorkKey(receiver, key, route) = key_of_work;
            let slot = &state.receivers[receiver].work[key][route];
            if slot.running.is_some() {
                if self.can_be_finished(key_of_work) {
                    actions.push(Action::Finish(key_of_work));
                }
                if may_fail {
                    actions.push(Action::Fail(key_of_work));
                }
            } else if slot.queued.is_some() {
                actions.push(Action::Start(key_of_work));
            }
            if may_fail && (slot.running.is_some() || slot.queued.is_some()) {
                actions.push(Action::Drop(key_of_work));
            }
        }
        if may_trouble && state.switches < switches {
            actions.push(Action::Switch);
        }
        if may_trouble && state.epochs < epochs {
            actions.push(Action::CrashAgent);
        }
        if may_trouble && state.crashes < receiver_crashes {
            actions.extend((0..RECEIVERS).map(|receiver| Action::CrashReceiver { receiver }));
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        Some(state.after(action, self.rules, &self.bounds))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let all_acknowledged = |world: &World, state: &State| {
            state.version == world.bounds.changes
                && state.epochs == world.bounds.epochs
                && world.has_arrived(state)
        };
        let mut properties = vec![
            Property::always(SAFE, |world: &World, state| world.is_safe(state)),
            Property::always(RESTS, |world: &World, state| world.comes_to_rest(state)),
            Property::sometimes(LETS_GO, all_acknowledged),
            Property::sometimes(GOES_WRONG, |world: &World, state: &State| {
                state.troubles() == world.bounds.max_troubles()
            }),
        ];
        properties.retain(|property| self.asked.contains(&property.name));
        properties
    }
}

pub(crate) struct Found {
    /// Distinct states; for walks, all visited.
    pub(crate) states: usize,
    /// Steps, including repeated ones.
    pub(crate) steps: usize,
    /// Distinct states known to come to rest.
    pub(crate) resting: usize,
    pub(crate) depth: usize,
    /// Whether every state was visited; false after a violation.
    pub(crate) complete: bool,
    /// Violated property and path; the shortest for a single property.
    pub(crate) violation: Option<(&'static str, Vec<Action>)>,
    /// Properties that lack a required example.
    pub(crate) never: Vec<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Every state.
    All,
    /// States within this many steps.
    Depth(usize),
    /// Random walks to the end, until the number of steps.
    Walks { seed: u64, steps: usize },
}

/// Visits all states, up to the first violation of an `asked` property.
pub(crate) fn check(bounds: Bounds, mutation: Option<Mutation>, asked: &'static [&'static str]) -> Found {
    explore(bounds, mutation, asked, Reach::All)
}

pub(crate) fn explore(
    bounds: Bounds,
    mutation: Option<Mutation>,
    asked: &'static [&'static str],
    reach: Reach,
) -> Found {
    let world = World { bounds, rules: Rules(mutation), asked, arrives: Mutex::default() };
    let checker = world.checker().finish_when(HasDiscoveries::AnyFailures);
    match reach {
        Reach::All => judge(&checker.target_state_count(MAX_STEPS).spawn_bfs().join(), MAX_STEPS),
        Reach::Depth(depth) => judge(&checker.target_max_depth(depth).spawn_bfs().join(), usize::MAX),
        Reach::Walks { seed, steps } => {
            judge(&checker.target_state_count(steps).spawn_simulation(seed, Wanderer).join(), steps)
        }
    }
}

fn judge(checker: &impl Checker<World>, max: usize) -> Found {
    let found = checker.discoveries();
    let violation =
        [SAFE, RESTS].into_iter().find_map(|name| Some((name, found.get(name)?.clone().into_actions())));
    let never = [LETS_GO, GOES_WRONG].into_iter().filter(|name| !found.contains_key(name)).collect();
    Found {
        states: checker.unique_state_count(),
        steps: checker.state_count(),
        resting: checker.model().arrives.lock().len(),
        depth: checker.max_depth(),
        complete: violation.is_none() && checker.state_count() < max,
        violation,
        never,
    }
}
