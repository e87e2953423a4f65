//! The explored worlds. One world with every fault has too many states (see `at_once`). Here each fault meets the
//! others in at least one world.

use super::{
    checked::{HOLDS, check},
    world::Bounds,
};

pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// For every test run.
    pub(crate) bounds: Bounds,
    /// With `TIDEWATCH_MODEL=full`.
    pub(crate) full: Bounds,
}

/// No faults, but reordered messages.
pub(crate) const CALM: Bounds = Bounds {
    changes: [2, 1],
    epochs: 1,
    receiver_crashes: 0,
    switches: 0,
    network: 2,
    faults: 0,
    troubles: u8::MAX,
    capacity: usize::MAX,
    routes: [1, 1],
    suspended: None,
    dead_route: false,
    simplified: false,
};

/// Both objects change in flight, with reordered messages.
pub(crate) const REORDERED: Scenario = Scenario {
    name: "reordered",
    bounds: Bounds { changes: [2, 2], ..CALM },
    full: Bounds { changes: [3, 2], ..CALM },
};

/// A lost, repeated or late message, or a dropped or failed reconcile.
pub(crate) const ONE_FAULT: Scenario = Scenario {
    name: "one fault",
    bounds: Bounds { faults: 1, ..CALM },
    full: Bounds { changes: [2, 2], faults: 1, ..CALM },
};

/// Two faults, and a repeated message behind two open requests.
pub(crate) const TWO_FAULTS: Scenario = Scenario {
    name: "two faults",
    bounds: Bounds { changes: [2, 0], faults: 2, network: 3, ..CALM },
    full: Bounds { changes: [2, 1], faults: 2, ..CALM },
};

/// The agent restarts and reports its list; messages of the old run are in flight.
pub(crate) const AGENT_CRASHES: Scenario = Scenario {
    name: "agent crashes",
    bounds: Bounds { changes: [1, 1], epochs: 2, ..CALM },
    full: Bounds { epochs: 2, ..CALM },
};

pub(crate) const AGENT_CRASHES_AND_A_FAULT: Scenario = Scenario {
    name: "agent crashes and a fault",
    bounds: Bounds { changes: [2, 0], epochs: 2, faults: 1, ..CALM },
    full: Bounds { epochs: 2, faults: 1, ..CALM },
};

/// A receiver loses its queue and ledger, twice.
pub(crate) const RECEIVER_CRASHES: Scenario = Scenario {
    name: "receiver crashes",
    bounds: Bounds { changes: [1, 1], receiver_crashes: 2, ..CALM },
    full: Bounds { receiver_crashes: 2, ..CALM },
};

/// Requests switch to another receiver and back, with a loss.
pub(crate) const TWO_RECEIVERS: Scenario = Scenario {
    name: "two receivers",
    bounds: Bounds { changes: [2, 0], switches: 2, faults: 1, ..CALM },
    full: Bounds { switches: 2, ..CALM },
};

/// One object's reconciles never finish; the other must not wait.
pub(crate) const SUSPENDED: Scenario = Scenario {
    name: "parked",
    bounds: Bounds { changes: [2, 2], suspended: Some(0), ..CALM },
    full: Bounds { changes: [2, 2], suspended: Some(0), faults: 1, ..CALM },
};

/// One object has a central component's route.
pub(crate) const TWO_ROUTES: Scenario = Scenario {
    name: "two routes",
    bounds: Bounds { routes: [2, 1], ..CALM },
    full: Bounds { routes: [2, 2], ..CALM },
};

pub(crate) const TWO_ROUTES_AND_A_FAULT: Scenario = Scenario {
    name: "two routes and a fault",
    bounds: Bounds { changes: [2, 0], routes: [2, 1], faults: 1, ..CALM },
    full: Bounds { routes: [2, 1], faults: 1, ..CALM },
};

/// Capacity for one number; the others are asked for again.
pub(crate) const FULL_LEDGER: Scenario = Scenario {
    name: "full ledger",
    bounds: Bounds { changes: [2, 2], capacity: 1, ..CALM },
    full: Bounds { changes: [2, 2], capacity: 1, faults: 1, ..CALM },
};

/// Capacity for all dirty keys. Overtaken numbers of the suspended object must not fill it.
pub(crate) const SUSPENDED_IN_A_FULL_LEDGER: Scenario = Scenario {
    name: "parked in a full ledger",
    bounds: Bounds { changes: [2, 2], capacity: 2, suspended: Some(0), ..CALM },
    full: Bounds { changes: [3, 2], capacity: 2, suspended: Some(0), faults: 1, ..CALM },
};

/// The central component never answers, and a receiver crashes.
pub(crate) const DEAD_ROUTE: Scenario = Scenario {
    name: "dead route",
    bounds: Bounds { routes: [2, 1], dead_route: true, receiver_crashes: 1, ..CALM },
    full: Bounds { routes: [2, 1], dead_route: true, receiver_crashes: 1, switches: 1, ..CALM },
};

const FULL_OF_TROUBLES: Bounds =
    Bounds { changes: [1, 0], epochs: 2, receiver_crashes: 1, switches: 1, faults: 1, ..CALM };

/// Any three faults around one object.
pub(crate) const ALL_TROUBLES: Scenario = Scenario {
    name: "all troubles",
    bounds: Bounds { troubles: 3, ..FULL_OF_TROUBLES },
    full: FULL_OF_TROUBLES,
};

/// Everything in one world with any two faults; messages stay in order.
pub(crate) const EVERYTHING: Scenario = Scenario {
    name: "everything",
    bounds: Bounds { troubles: 2, network: 1, ..FULL_OF_EVERYTHING },
    full: Bounds { troubles: 2, ..FULL_OF_EVERYTHING },
};

const FULL_OF_EVERYTHING: Bounds = Bounds {
    changes: [1, 1],
    epochs: 2,
    receiver_crashes: 1,
    switches: 1,
    faults: 1,
    routes: [2, 1],
    suspended: Some(1),
    dead_route: true,
    ..CALM
};

pub(crate) fn full() -> bool {
    std::env::var("TIDEWATCH_MODEL").is_ok_and(|value| value == "full")
}

/// Asserts the properties of the correct protocol in a world, and that the world reaches its goal.
pub(crate) fn holds(scenario: &Scenario) {
    let bounds = if full() { scenario.full } else { scenario.bounds };
    let found = check(bounds, None, HOLDS);
    let reach = if found.complete { "all" } else { "the first" };
    println!("{}: {reach} {} states, depth {}", scenario.name, found.states, found.depth);
    assert_eq!(found.violation, None, "{}: {bounds:?}", scenario.name);
    assert!(found.complete || full(), "{}: too large for a test run", scenario.name);
    assert!(!found.complete || found.never.is_empty(), "{}: never {:?}", scenario.name, found.never);
}

macro_rules! hold {
    ($($name:ident: $scenario:ident,)*) => {
        $(#[test]
        fn $name() {
            holds(&$scenario);
        })*
    };
}

hold! {
    message_reordering_is_safe: REORDERED,
    one_fault_is_safe: ONE_FAULT,
    two_faults_are_safe: TWO_FAULTS,
    an_agent_crash_is_safe: AGENT_CRASHES,
    an_agent_crash_with_a_fault_is_safe: AGENT_CRASHES_AND_A_FAULT,
    receiver_crashes_are_safe: RECEIVER_CRASHES,
    receiver_switches_are_safe: TWO_RECEIVERS,
    a_suspended_object_blocks_nothing: SUSPENDED,
    two_routes_are_safe: TWO_ROUTES,
    two_routes_with_a_fault_are_safe: TWO_ROUTES_AND_A_FAULT,
    a_full_ledger_requests_events_again: FULL_LEDGER,
    a_suspended_object_does_not_fill_the_ledger: SUSPENDED_IN_A_FULL_LEDGER,
    a_dead_route_blocks_nothing: DEAD_ROUTE,
    any_three_faults_around_one_object_are_safe: ALL_TROUBLES,
    all_faults_at_once_are_safe: EVERYTHING,
}
