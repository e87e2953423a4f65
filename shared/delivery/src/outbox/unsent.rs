//! Numbers to send, in order.

use std::{
    collections::BTreeSet,
    hash::{Hash, Hasher},
};

use tidewatch_wire::Seq;

/// Lowest first: fresh before reported, then least often asked for. So neither a full report nor a full receiver delays
/// others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Priority {
    /// Part of a full report, or older than the session.
    pub(super) older: bool,
    /// How often the receiver has asked again.
    pub(super) round: u32,
}

/// A fresh change.
pub(super) const FRESH: Priority = Priority { older: false, round: 0 };

/// Permission for more than fresh changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct May {
    /// Events asked for again.
    pub again: bool,
    /// Full-report events and those older than the session.
    pub older: bool,
}

impl May {
    /// Everything.
    pub const ALL: Self = Self { again: true, older: true };
    /// Fresh changes only.
    pub const NONE: Self = Self { again: false, older: false };
}

/// Reports get 1/8 of a batch, and one of two events; steady changes would starve them.
const SHARE: usize = 8;

/// Equality ignores the order, which keeps a model's states few.
#[derive(Clone, Debug, Default)]
pub(super) struct Unsent(BTreeSet<(Priority, Seq)>);

impl Unsent {
    pub(super) fn insert(&mut self, seq: Seq, priority: Priority) {
        self.0.insert((priority, seq));
    }

    /// `priority` must be the inserted one.
    pub(super) fn remove(&mut self, seq: Seq, priority: Priority) {
        self.0.remove(&(priority, seq));
    }

    pub(super) fn contains(&self, seq: Seq, priority: Priority) -> bool {
        self.0.contains(&(priority, seq))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn take(&mut self) -> impl Iterator<Item = Seq> + use<> {
        std::mem::take(&mut self.0).into_iter().map(|(_, seq)| seq)
    }

    /// Whether any is in exactly this class.
    pub(super) fn has(&self, may: May) -> bool {
        self.part(may.older, may.again).next().is_some()
    }

    /// The first `max` permitted numbers.
    pub(super) fn first(&self, may: May, max: usize) -> Vec<Seq> {
        let share = (max / SHARE).max(usize::from(max > 1));
        let kept = if may.older { self.part(true, false).take(share).count() } else { 0 };
        let again = |older: bool| may.again.then(|| self.part(older, true)).into_iter().flatten();
        let mut first: Vec<Seq> = self.part(false, false).chain(again(false)).take(max - kept).collect();
        if may.older {
            let left = max - first.len();
            first.extend(self.part(true, false).chain(again(true)).take(left));
        }
        first
    }

    fn part(&self, older: bool, again: bool) -> impl Iterator<Item = Seq> {
        let (min, max) = if again { (1, u32::MAX) } else { (0, 0) };
        let from = (Priority { older, round: min }, Seq(0));
        let to = (Priority { older, round: max }, Seq(u64::MAX));
        self.0.range(from..=to).map(|(_, seq)| *seq)
    }

    fn sorted(&self) -> Vec<Seq> {
        let mut all: Vec<Seq> = self.0.iter().map(|(_, seq)| *seq).collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_batches_include_listed_events() {
        let mut unsent = Unsent::default();
        (1..=100).for_each(|n| unsent.insert(Seq(n), FRESH));
        (101..=200).for_each(|n| unsent.insert(Seq(n), Priority { older: true, round: 0 }));
        for (max, reported) in [(1, 0), (2, 1), (7, 1), (16, 2), (80, 10)] {
            let first = unsent.first(May::ALL, max);
            let of_report = first.iter().filter(|seq| **seq > Seq(100)).count();
            assert_eq!((first.len(), of_report), (max, reported));
        }
        assert_eq!(unsent.first(May::NONE, 7), (1..=7).map(Seq).collect::<Vec<_>>());
    }
}
