use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Seq, limits};

/// A set of sequence numbers as inclusive ranges: `[[1,5],[7,7]]`.
///
/// Memory and body depend on the number of ranges only, so a huge range from a hostile peer costs nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<[u64; 2]>", into = "Vec<[u64; 2]>")]
pub struct SeqSet {
    /// start → end, disjoint and not adjacent.
    ranges: BTreeMap<u64, u64>,
}

/// Error of an invalid list of ranges.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SeqSetError {
    /// More than [`limits::SEQ_RANGES`] ranges.
    #[error("a sequence set has {0} ranges; at most {limit} are allowed", limit = limits::SEQ_RANGES)]
    TooManyRanges(usize),
    /// A range ends before it starts.
    #[error("the range [{0},{1}] ends before it starts")]
    Reversed(u64, u64),
}

impl SeqSet {
    /// The empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Number of ranges.
    pub fn range_count(&self) -> usize {
        self.ranges.len()
    }

    /// Adds a number.
    pub fn insert(&mut self, seq: Seq) {
        self.insert_range(seq.0, seq.0);
    }

    fn insert_range(&mut self, mut start: u64, mut end: u64) {
        // Fast path: numbers usually ascend, so the last range grows.
        if let Some(mut last) = self.ranges.last_entry()
            && *last.key() <= start
            && start <= last.get().saturating_add(1)
        {
            let end = end.max(*last.get());
            last.insert(end);
            return;
        }
        // Merge every range that overlaps or touches [start, end].
        while let Some((&s, &e)) = self.ranges.range(..=end.saturating_add(1)).next_back()
            && e.saturating_add(1) >= start
        {
            self.ranges.remove(&s);
            start = start.min(s);
            end = end.max(e);
        }
        self.ranges.insert(start, end);
    }

    /// Whether the set contains `seq`.
    pub fn contains(&self, seq: Seq) -> bool {
        self.ranges.range(..=seq.0).next_back().is_some_and(|(_, &end)| end >= seq.0)
    }

    /// Inclusive ranges, ascending.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(&s, &e)| (s, e))
    }

    /// Keeps at most the `ranges` lowest ranges.
    pub fn keep_lowest(&mut self, ranges: usize) {
        if let Some(&first_beyond) = self.ranges.keys().nth(ranges) {
            self.ranges.split_off(&first_beyond);
        }
    }

    /// The set without these numbers, which ascend.
    #[must_use]
    pub fn without(&self, numbers: impl Iterator<Item = Seq>) -> Self {
        let mut missing = Self::new();
        let mut numbers = numbers.map(|seq| seq.0).peekable();
        for (&start, &end) in &self.ranges {
            while numbers.next_if(|&k| k < start).is_some() {}
            let mut next = Some(start);
            while let Some(k) = numbers.next_if(|&k| k <= end) {
                if let Some(next) = next.filter(|&next| next < k) {
                    missing.ranges.insert(next, k - 1);
                }
                next = k.checked_add(1);
            }
            if let Some(next) = next.filter(|&next| next <= end) {
                missing.ranges.insert(next, end);
            }
        }
        missing
    }
}

impl FromIterator<Seq> for SeqSet {
    fn from_iter<T: IntoIterator<Item = Seq>>(iter: T) -> Self {
        let mut set = Self::new();
        for seq in iter {
            set.insert(seq);
        }
        set
    }
}

impl TryFrom<Vec<[u64; 2]>> for SeqSet {
    type Error = SeqSetError;

    fn try_from(list: Vec<[u64; 2]>) -> Result<Self, Self::Error> {
        if list.len() > limits::SEQ_RANGES {
            return Err(SeqSetError::TooManyRanges(list.len()));
        }
        let mut set = Self::new();
        for [start, end] in list {
            if end < start {
                return Err(SeqSetError::Reversed(start, end));
            }
            set.insert_range(start, end);
        }
        Ok(set)
    }
}

impl From<SeqSet> for Vec<[u64; 2]> {
    fn from(set: SeqSet) -> Self {
        set.ranges.into_iter().map(|(s, e)| [s, e]).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_a_set_of_numbers(numbers in prop::collection::vec(0_u64..60, 0..80),
                                         known in prop::collection::btree_set(0_u64..60, 0..40)) {
            let set: SeqSet = numbers.iter().map(|&n| Seq(n)).collect();
            let model: BTreeSet<u64> = numbers.into_iter().collect();
            for n in 0..60 {
                prop_assert_eq!(set.contains(Seq(n)), model.contains(&n));
            }
            let ranges: Vec<_> = set.ranges().collect();
            prop_assert!(ranges.windows(2).all(|w| w[0].1 + 1 < w[1].0), "touching ranges are one range");

            let missing = set.without(known.iter().copied().map(Seq));
            for n in 0..60 {
                prop_assert_eq!(missing.contains(Seq(n)), model.contains(&n) && !known.contains(&n));
            }
        }
    }

    #[test]
    fn survives_the_largest_range() {
        let set: SeqSet = serde_json::from_str("[[1,18446744073709551615]]").unwrap();
        assert!(set.contains(Seq(u64::MAX)));
        let missing = set.without([7, u64::MAX].map(Seq).into_iter());
        assert_eq!(missing.ranges().collect::<Vec<_>>(), [(1, 6), (8, u64::MAX - 1)]);
    }

    #[test]
    fn keeps_the_lowest_ranges() {
        let set: SeqSet = [1, 2, 4, 8].map(Seq).into_iter().collect();
        for (most, left) in [(0, vec![]), (1, vec![(1, 2)]), (2, vec![(1, 2), (4, 4)])] {
            let mut set = set.clone();
            set.keep_lowest(most);
            assert_eq!(set.ranges().collect::<Vec<_>>(), left);
        }
        for most in [3, 4] {
            let mut same = set.clone();
            same.keep_lowest(most);
            assert_eq!(same, set);
        }
    }

    #[test]
    fn refuses_reversed_and_oversized_sets() {
        assert!(serde_json::from_str::<SeqSet>("[[5,1]]").is_err());
        let many: Vec<[u64; 2]> = (0..=limits::SEQ_RANGES as u64).map(|i| [i * 3, i * 3]).collect();
        assert_eq!(SeqSet::try_from(many), Err(SeqSetError::TooManyRanges(limits::SEQ_RANGES + 1)));
    }
}
