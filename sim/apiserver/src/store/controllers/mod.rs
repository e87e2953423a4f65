//! Simulated controllers: CRDs, workloads, garbage collection, namespaces, roles, tokens, `APIServices`.

pub(super) mod api_services;
mod conditions;
mod definitions;
mod garbage;
mod namespaces;
mod roles;
mod workloads;

use jiff::{SignedDuration, Timestamp};

use super::{schedule::Task, state::State, tokens};

/// Limits rounds of controller reactions: a safeguard, since each round changes objects.
const MAX_ROUNDS: usize = 64;

/// Retry interval while readiness is withheld.
const RETRY: SignedDuration = SignedDuration::from_secs(1);

/// Runs controllers until nothing changes.
pub(super) fn run(state: &mut State, now: Timestamp) {
    for _ in 0..MAX_ROUNDS {
        let before = state.objects.revision();
        run_due(state, now);
        garbage::collect(state, now);
        garbage::propagate(state, now);
        definitions::clean_up(state, now);
        namespaces::clean_up(state, now);
        api_services::update(state, now);
        roles::aggregate(state, now);
        if state.objects.revision() == before {
            return;
        }
    }
}

fn run_due(state: &mut State, now: Timestamp) {
    while let Some(task) = state.schedule.take_due(now) {
        match task {
            Task::Establish(key) => definitions::establish(state, &key, now),
            task @ Task::Ready(_) if state.withholds_readiness => state.schedule.add(task, now, RETRY),
            Task::Ready(key) => workloads::make_ready(state, &key, now),
            Task::Token(key) => tokens::fill(state, &key, now),
        }
    }
}
