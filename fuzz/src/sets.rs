use tidewatch_wire::{Seq, SeqSet, SeqSetError, limits};

use crate::assert_round_trip;

/// A list of ranges of sequence numbers.
///
/// # Panics
/// If a promise is broken.
pub fn seqset(data: &[u8]) {
    if data.len() > limits::V3_BODY_BYTES {
        return;
    }
    let Ok(list) = serde_json::from_slice::<Vec<[u64; 2]>>(data) else {
        assert!(serde_json::from_slice::<SeqSet>(data).is_err(), "a set is a list of pairs");
        return;
    };
    let reversed = list.iter().any(|[start, end]| end < start);
    match SeqSet::try_from(list.clone()) {
        Err(SeqSetError::TooManyRanges(count)) => {
            assert!(count > limits::SEQ_RANGES);
            return;
        }
        Err(SeqSetError::Reversed(start, end)) => {
            assert!(end < start && reversed);
            return;
        }
        Ok(set) => check(&list, &set),
    }
    assert!(!reversed && list.len() <= limits::SEQ_RANGES);
}

fn check(list: &[[u64; 2]], set: &SeqSet) {
    assert_round_trip(set);
    assert!(set.range_count() <= list.len());
    assert!(set.ranges().all(|(start, end)| start <= end));
    assert!(set.ranges().zip(set.ranges().skip(1)).all(|((_, end), (next, _))| end < next && next - end > 1));
    assert_eq!(set.is_empty(), list.is_empty());

    let mut points: Vec<u64> = list
        .iter()
        .take(48)
        .flat_map(|&[start, end]| [start.saturating_sub(1), start, end, end.saturating_add(1)])
        .collect();
    points.sort_unstable();
    points.dedup();
    for &point in &points {
        let listed = list.iter().any(|&[start, end]| (start..=end).contains(&point));
        assert_eq!(set.contains(Seq(point)), listed, "{point}");
    }

    let missing = set.without(points.iter().copied().map(Seq));
    let inside = points.iter().filter(|&&point| set.contains(Seq(point))).count();
    assert!(within(&missing, set));
    assert!(points.iter().all(|&point| !missing.contains(Seq(point))));
    assert_eq!(size(&missing) + inside as u128, size(set), "each number is known or missing");
    assert!(missing.range_count() <= set.range_count() + points.len());
}

/// How many numbers a set has.
fn size(set: &SeqSet) -> u128 {
    set.ranges().map(|(start, end)| u128::from(end - start) + 1).sum()
}

/// Whether every number of `part` is in `whole`.
pub(crate) fn within(part: &SeqSet, whole: &SeqSet) -> bool {
    let mut of_whole = whole.ranges().peekable();
    part.ranges().all(|(start, end)| {
        while of_whole.next_if(|&(_, last)| last < start).is_some() {}
        of_whole.peek().is_some_and(|&(first, last)| first <= start && end <= last)
    })
}

/// Whether no number is in both.
pub(crate) fn disjoint(one: &SeqSet, other: &SeqSet) -> bool {
    let mut others = other.ranges().peekable();
    one.ranges().all(|(start, end)| {
        while others.next_if(|&(_, last)| last < start).is_some() {}
        others.peek().is_none_or(|&(first, _)| first > end)
    })
}
