//! Next window.

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp, ToSpan, civil};

use super::policy::{DayTime, Policy, When, WindowTimes};

/// Window; updates begin from `begin` until the minimum before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Begin.
    pub begin: Timestamp,
    /// End, exclusive.
    pub end: Timestamp,
    /// Begun, with more than the minimum left.
    pub open: bool,
}

/// Returns the open window that ends last, else the next one.
///
/// `labels`: the Kyma's in KCP.
#[must_use]
pub fn next(
    policy: &Policy,
    labels: &BTreeMap<String, String>,
    now: Timestamp,
    min: Duration,
) -> Option<Window> {
    let min = SignedDuration::try_from(min).ok()?;
    let ready = now.checked_add(min).ok()?;
    for windows in policy.windows_of(labels) {
        let ahead: Vec<_> = windows.iter().filter_map(|times| next_occurrence(times, now, ready)).collect();
        if !ahead.is_empty() {
            // Even a short window excludes the default.
            return ahead
                .into_iter()
                .filter(|(begin, end)| end.duration_since((*begin).max(now)) > min)
                .min_by_key(|(begin, end)| ((*begin).max(now), Reverse(*end)))
                .map(|(begin, end)| Window { begin, end, open: begin <= now });
        }
    }
    None
}

/// First occurrence that ends after `ready`.
fn next_occurrence(times: &WindowTimes, now: Timestamp, ready: Timestamp) -> Option<(Timestamp, Timestamp)> {
    match times.when() {
        When::Never => None,
        When::Once { begin, end } => (begin < end && ready < end).then_some((begin, end)),
        When::Weekly { begin, end } => {
            let today = times
                .zone()
                .map_or_else(|| begin.offset.to_datetime(now).date(), |zone| zone.to_datetime(now).date());
            // Extreme offsets make windows up to 50 hours long, so three days back suffice. Longer minimums never fit, but the window still
            // exists. From three days ahead, the next occurrence is within a week.
            let ready = now.checked_add(SignedDuration::from_hours(72)).ok()?.min(ready);
            (-3..=11)
                .filter_map(|days| today.checked_add(i64::from(days).days()).ok())
                .filter(|date| times.begins_on(date.weekday()))
                .filter_map(|date| occurrence_on(times, date, begin, end))
                .find(|(_, until)| ready < *until)
        }
    }
}

/// Occurrence on a day; it ends on the first later `end`.
fn occurrence_on(
    times: &WindowTimes,
    date: civil::Date,
    begin: DayTime,
    end: DayTime,
) -> Option<(Timestamp, Timestamp)> {
    let from = moment(times, date, begin)?;
    if times.zone().is_some() {
        // Local time: if the clock skips begin and end, there is no window.
        let end_day = if end.time > begin.time { date } else { date.tomorrow().ok()? };
        return moment(times, end_day, end).filter(|until| *until > from).map(|until| (from, until));
    }
    (0..=3)
        .filter_map(|days| date.checked_add(i64::from(days).days()).ok())
        .filter_map(|date| moment(times, date, end))
        .find(|until| *until > from)
        .map(|until| (from, until))
}

/// Resolves local time: skipped times move later, repeated ones mean the first.
fn moment(times: &WindowTimes, date: civil::Date, at: DayTime) -> Option<Timestamp> {
    let local = date.to_datetime(at.time);
    match times.zone() {
        Some(zone) => zone.to_ambiguous_timestamp(local).compatible().ok(),
        None => at.offset.to_timestamp(local).ok(),
    }
}

/// Maximum duration; zero if never open.
pub(super) fn length(times: &WindowTimes) -> SignedDuration {
    match times.when() {
        When::Never => SignedDuration::ZERO,
        When::Once { begin, end } => end.duration_since(begin).max(SignedDuration::ZERO),
        When::Weekly { begin, end } => occurrence_on(times, civil::date(2026, 1, 5), begin, end)
            .map_or(SignedDuration::ZERO, |(from, until)| until.duration_since(from)),
    }
}
