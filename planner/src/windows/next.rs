//! The next window.

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp, ToSpan, civil};

use super::policy::{DayTime, Policy, Times, When};

/// A window, in which updates may begin from `begin` until the minimum before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// When it begins.
    pub begin: Timestamp,
    /// When it ends; not part of it.
    pub end: Timestamp,
    /// Whether it has begun, with more than the minimum left.
    pub open: bool,
}

/// The window that is open, or else the next one that will be; none if there is no more.
///
/// `labels` are those of the Kyma in KCP. Of several open windows it is the one that ends last.
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
        let ahead: Vec<_> = windows.iter().filter_map(|times| ahead(times, now, ready)).collect();
        if !ahead.is_empty() {
            // A window that is too short still says that the default is not meant.
            return ahead
                .into_iter()
                .filter(|(begin, end)| end.duration_since((*begin).max(now)) > min)
                .min_by_key(|(begin, end)| ((*begin).max(now), Reverse(*end)))
                .map(|(begin, end)| Window { begin, end, open: begin <= now });
        }
    }
    None
}

/// The first time this window comes with its end after `ready`.
fn ahead(times: &Times, now: Timestamp, ready: Timestamp) -> Option<(Timestamp, Timestamp)> {
    match times.when() {
        When::Never => None,
        When::Once { begin, end } => (begin < end && ready < end).then_some((begin, end)),
        When::Weekly { begin, end } => {
            let today = times
                .zone()
                .map_or_else(|| begin.offset.to_datetime(now).date(), |zone| zone.to_datetime(now).date());
            // With offsets far apart a window lasts up to two days and two hours: what began earlier than three
            // days ago is over, and a longer minimum is not reached by any (which is not to say that there is no
            // window). A window that is looked for from three days ahead comes within the week after.
            let ready = now.checked_add(SignedDuration::from_hours(72)).ok()?.min(ready);
            (-3..=11)
                .filter_map(|days| today.checked_add(i64::from(days).days()).ok())
                .filter(|date| times.on(date.weekday()))
                .filter_map(|date| on(times, date, begin, end))
                .find(|(_, until)| ready < *until)
        }
    }
}

/// The window of one day; it ends on the first day on which its end is after its begin.
fn on(times: &Times, date: civil::Date, begin: DayTime, end: DayTime) -> Option<(Timestamp, Timestamp)> {
    let from = moment(times, date, begin)?;
    if times.zone().is_some() {
        // By the clock there: a night in which it skips the begin, and the end with it, has no window, and no day-long one.
        let end_day = if end.time > begin.time { date } else { date.tomorrow().ok()? };
        return moment(times, end_day, end).filter(|until| *until > from).map(|until| (from, until));
    }
    (0..=3)
        .filter_map(|days| date.checked_add(i64::from(days).days()).ok())
        .filter_map(|date| moment(times, date, end))
        .find(|until| *until > from)
        .map(|until| (from, until))
}

/// When it is so late on that day. A time that the clock skips is as much later; of one that comes twice it is the first.
fn moment(times: &Times, date: civil::Date, at: DayTime) -> Option<Timestamp> {
    let local = date.to_datetime(at.time);
    match times.zone() {
        Some(zone) => zone.to_ambiguous_timestamp(local).compatible().ok(),
        None => at.offset.to_timestamp(local).ok(),
    }
}

/// How long a window lasts at most, the nights aside in which clocks change; zero for one that never opens.
pub(super) fn length(times: &Times) -> SignedDuration {
    match times.when() {
        When::Never => SignedDuration::ZERO,
        When::Once { begin, end } => end.duration_since(begin).max(SignedDuration::ZERO),
        When::Weekly { begin, end } => on(times, civil::date(2026, 1, 5), begin, end)
            .map_or(SignedDuration::ZERO, |(from, until)| until.duration_since(from)),
    }
}
