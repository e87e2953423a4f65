//! All faults in one world: two agent runs, two receivers, two objects with two changes each, one suspended and one
//! with a dead route.
//!
//! It is too large to explore completely. So it is explored with fewer faults, up to a depth, and by random walks.

use std::collections::HashSet;

use stateright::Model;

use super::{
    checked::{Found, HOLDS, Reach, World, explore},
    frozen::hash_of,
    mistakes::FOUND,
    rules::Rules,
    scenarios::{CALM, Scenario, full, holds},
    world::{Bounds, State},
};

const AT_ONCE: Bounds = Bounds {
    changes: [2, 2],
    epochs: 2,
    receiver_crashes: 1,
    switches: 1,
    network: 3,
    faults: 2,
    routes: [2, 1],
    suspended: Some(1),
    dead_route: true,
    simplified: true,
    ..CALM
};

const TWO_RUNS_AND_TWO_RECEIVERS: Bounds = Bounds { receiver_crashes: 0, faults: 0, ..AT_ONCE };

/// The agent restarts and the receivers change; messages stay in order.
const HANDED_OVER: Scenario = Scenario {
    name: "at once: handed over",
    bounds: Bounds { network: 1, ..TWO_RUNS_AND_TWO_RECEIVERS },
    full: Bounds { network: 2, ..TWO_RUNS_AND_TWO_RECEIVERS },
};

/// Any fault, but few; messages stay in order.
const TROUBLED: Scenario = Scenario {
    name: "at once: troubled",
    bounds: Bounds { network: 1, faults: 1, troubles: 1, ..AT_ONCE },
    full: Bounds { network: 1, faults: 1, troubles: 2, ..AT_ONCE },
};

/// One fault, with reordered messages.
const OVERTAKEN: Scenario = Scenario {
    name: "at once: overtaken",
    bounds: Bounds { network: 2, troubles: 1, ..TWO_RUNS_AND_TWO_RECEIVERS },
    full: Bounds { network: 2, faults: 1, troubles: 1, ..AT_ONCE },
};

/// A number from the environment, for longer runs.
fn number(name: &str, usual: usize) -> usize {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(usual)
}

fn kept(scenario: &str, found: &Found) {
    let Found { states, steps, resting, depth, .. } = found;
    println!(
        "at once: {scenario}: {states} states, {steps} steps, depth {depth}; rest was seen from {resting}"
    );
    assert_eq!(found.violation, None, "{scenario}");
}

#[test]
fn two_agent_runs_and_two_receivers_keep_the_properties() {
    holds(&HANDED_OVER);
}

#[test]
fn one_fault_of_any_kind_keeps_the_properties() {
    holds(&TROUBLED);
}

#[test]
fn reordered_messages_keep_the_properties() {
    holds(&OVERTAKEN);
}

#[test]
fn all_states_up_to_a_depth_keep_the_properties() {
    let depth = number("TIDEWATCH_MODEL_DEPTH", if full() { 12 } else { 9 });
    let found = explore(AT_ONCE, None, HOLDS, Reach::Depth(depth));
    kept(&format!("all within {depth} steps"), &found);
    assert_eq!(found.depth, depth);
}

#[test]
fn random_walks_keep_the_properties() {
    let steps = number("TIDEWATCH_MODEL_STEPS", if full() { 20_000_000 } else { 500_000 });
    let seed = number("TIDEWATCH_SEED", 1) as u64;
    let found = explore(AT_ONCE, None, HOLDS, Reach::Walks { seed, steps });
    kept(&format!("random ways from seed {seed}"), &found);
    assert_eq!(
        found.never, [""; 0],
        "ways end where all has happened, all has gone wrong, and all was let go"
    );
}

#[test]
fn random_walks_find_injected_mistakes() {
    let reach = Reach::Walks { seed: 1, steps: 2_000_000 };
    let missed = FOUND.iter().filter(|(mutation, asked, _)| {
        let found = explore(AT_ONCE, Some(*mutation), asked, reach);
        println!(
            "{mutation:?}: {} steps, {:?}",
            found.steps,
            found.violation.as_ref().map(|(_, path)| path.len())
        );
        found.violation.is_none()
    });
    let missed: Vec<_> = missed.map(|(mutation, ..)| *mutation).collect();
    assert_eq!(missed, []);
}

/// [`State::simplify`] must not change the reachable states or their safety.
#[test]
fn simplification_keeps_the_reachable_states() {
    for small in [
        Bounds { changes: [1, 1], network: 1, faults: 1, troubles: 2, ..AT_ONCE },
        Bounds { changes: [1, 1], network: 2, troubles: 1, ..TWO_RUNS_AND_TWO_RECEIVERS },
    ] {
        let whole = Bounds { simplified: false, ..small };
        let (simple, visited) = (reachable(small, small), reachable(whole, small));
        println!("{} states of {}", simple.0.len(), visited.1);
        assert!(simple.0 == visited.0, "{} and {} states", simple.0.len(), visited.0.len());
        assert!(visited.1 > 2 * simple.1, "it takes out something");
    }
}

/// All simplified states of a world, and their number before that.
fn reachable(bounds: Bounds, by: Bounds) -> (HashSet<(u64, bool)>, usize) {
    let world = World::right(bounds);
    let (mut simple, mut seen) = (HashSet::new(), HashSet::new());
    let mut left: Vec<State> = world.init_states();
    while let Some(state) = left.pop() {
        if !seen.insert(hash_of(&state)) {
            continue;
        }
        let mut simplified = state.clone();
        simplified.simplify(Rules(None), &by);
        assert_eq!(world.is_safe(&state), world.is_safe(&simplified));
        simple.insert((hash_of(&simplified), world.is_safe(&state)));
        let mut actions = Vec::new();
        world.actions(&state, &mut actions);
        left.extend(actions.into_iter().filter_map(|action| world.next_state(&state, action)));
    }
    (simple, seen.len())
}
