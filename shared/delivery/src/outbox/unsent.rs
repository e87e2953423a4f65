//! Numbers to send, and in which order.

use std::{
    collections::BTreeSet,
    hash::{Hash, Hasher},
};

use tidewatch_wire::Seq;

/// Where a number stands: `None` for what somebody has changed just now; else how often the receiver has asked for it again, 0 for
/// what is only reported because everything is. What comes first in this order goes first, so that neither a full
/// report nor what finds no room at the receiver holds up anything else.
pub(super) type Place = Option<u32>;

/// One part in so many of a batch is for what is reported: behind steady change it would wait for ever.
const SHARE: usize = 8;

/// Two sets of the same numbers are equal, whatever their order: it decides nothing but an order, and so a model has fewer states.
#[derive(Clone, Debug, Default)]
pub(super) struct Unsent {
    fresh: BTreeSet<Seq>,
    later: BTreeSet<(u32, Seq)>,
}

impl Unsent {
    pub(super) fn insert(&mut self, seq: Seq, place: Place) {
        match place {
            None => self.fresh.insert(seq),
            Some(round) => self.later.insert((round, seq)),
        };
    }

    /// `place` is the one that it was inserted with.
    pub(super) fn remove(&mut self, seq: Seq, place: Place) {
        match place {
            None => self.fresh.remove(&seq),
            Some(round) => self.later.remove(&(round, seq)),
        };
    }

    pub(super) fn contains(&self, seq: Seq, place: Place) -> bool {
        match place {
            None => self.fresh.contains(&seq),
            Some(round) => self.later.contains(&(round, seq)),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.fresh.len() + self.later.len()
    }

    pub(super) fn has_fresh(&self) -> bool {
        !self.fresh.is_empty()
    }

    /// The first so many.
    pub(super) fn first(&self, most: usize) -> Vec<Seq> {
        let reported = self.later.range(..(1, Seq(0)));
        let kept = reported.take(most / SHARE).count();
        let fresh = self.first_fresh(most - kept);
        let rest = most - fresh.len();
        fresh.into_iter().chain(self.later.iter().take(rest).map(|(_, seq)| *seq)).collect()
    }

    /// The first so many of what was changed just now.
    pub(super) fn first_fresh(&self, most: usize) -> Vec<Seq> {
        self.fresh.iter().take(most).copied().collect()
    }

    fn sorted(&self) -> Vec<Seq> {
        let mut all: Vec<Seq> =
            self.fresh.iter().copied().chain(self.later.iter().map(|(_, seq)| *seq)).collect();
        all.sort_unstable();
        all
    }
}

impl PartialEq for Unsent {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.sorted() == other.sorted()
    }
}

impl Eq for Unsent {}

impl Hash for Unsent {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.sorted().hash(state);
    }
}
