//! One stream of events with its checks.

use super::{
    super::{message::Baseline, resolve::Resolved},
    event::ObjectEvent,
    replay::Replay,
    verify::Check,
};
use futures::Stream;
use kube::runtime::watcher;
use std::time::Duration;
use tokio::sync::watch;

/// Longest pause within a list.
const LIST_STALL: Duration = Duration::from_mins(1);
/// kube's watcher signals no recovery. It is assumed after this time without an error, which exceeds its longest
/// backoff (30 s) plus the connect timeout.
pub(super) const RECOVERED_AFTER: Duration = Duration::from_mins(1);
/// Checks for events that the stream has lost.
pub(super) struct Checks {
    pub(super) list: Check,
    pub(super) replay: Replay,
}

/// One stream of events.
pub(super) struct Session<'a, S> {
    pub(super) events: S,
    pub(super) resolved: &'a Resolved,
    pub(super) checks: Checks,
    pub(super) baseline: watch::Receiver<Baseline>,
    /// Failed connections in a row.
    pub(super) attempt: &'a mut u32,
    pub(super) listing: bool,
    pub(super) failing: bool,
}

impl<'a, S: Stream<Item = watcher::Result<ObjectEvent>> + Unpin> Session<'a, S> {
    pub(super) fn new(
        events: S,
        resolved: &'a Resolved,
        checks: Checks,
        baseline: watch::Receiver<Baseline>,
        attempt: &'a mut u32,
    ) -> Self {
        Self { events, resolved, checks, baseline, attempt, listing: true, failing: false }
    }

    /// Longest pause between events.
    pub(super) fn limit(&self) -> Option<Duration> {
        match (self.listing, self.failing) {
            (true, _) => Some(LIST_STALL),
            (false, true) => Some(RECOVERED_AFTER),
            (false, false) => None,
        }
    }
}
