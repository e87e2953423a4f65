//! Random walks through a world too large to explore.

use stateright::Chooser;

use super::{
    checked::World,
    world::{Action, State},
};

/// One choice in this many is a fault. Otherwise the faults come before anything that they could disturb.
const TROUBLE: u64 = 8;

/// Chooses by `SplitMix64`, so a walk depends on its seed only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanderer;

fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn one_of(state: &mut u64, indexes: &[usize]) -> usize {
    let at = usize::try_from(next(state) % indexes.len().max(1) as u64).unwrap_or_default();
    indexes.get(at).copied().unwrap_or_default()
}

impl Chooser<World> for Wanderer {
    type State = u64;

    fn new_state(&self, seed: u64) -> u64 {
        seed
    }

    fn choose_initial_state(&self, _: &mut u64, _: &[State]) -> usize {
        0
    }

    fn choose_action(&self, state: &mut u64, here: &State, actions: &[Action]) -> usize {
        let (troubles, usual): (Vec<usize>, Vec<usize>) =
            (0..actions.len()).partition(|&n| actions.get(n).is_some_and(|action| here.is_trouble(*action)));
        let trouble = usual.is_empty() || (!troubles.is_empty() && next(state).is_multiple_of(TROUBLE));
        one_of(state, if trouble { &troubles } else { &usual })
    }
}
