//! One runtime's event path for pages.

use std::time::Duration;

use jiff::Timestamp;
use tidewatch_engine::queue::Tick;

use super::{Path, Refusals, State};

/// A snapshot with ages.
#[derive(Clone, Debug)]
pub struct View<'a> {
    /// The state.
    pub state: State,
    /// The cause, as text.
    pub cause: &'a str,
    /// Last v3 request.
    pub received: Option<Duration>,
    /// Last returned canary.
    pub canary: Option<Duration>,
    /// Connected since; `None` if silent.
    pub connected: Option<Duration>,
    /// Expiry of the last certificate.
    pub not_after: Option<Timestamp>,
    /// Refused peers.
    pub refusals: &'a Refusals,
}

impl<'a> View<'a> {
    pub(super) fn new(path: &'a Path, is_silent: bool, now: Tick) -> Self {
        let age = |at: Option<Tick>| at.map(|at| now.saturating_sub(at));
        // No report yet.
        let unknown = match path.received {
            Some(_) => "its agent speaks; its next canary, within a minute, proves that events arrive",
            None => "its agent has not been heard since this receiver began",
        };
        let cause = match &path.report {
            Some(report) if path.state != State::Unknown => &report.message,
            _ => unknown,
        };
        Self {
            state: path.state,
            cause,
            received: age(path.received),
            canary: age(path.canary),
            connected: age(path.connected.filter(|_| !is_silent)),
            not_after: path.not_after,
            refusals: &path.refusals,
        }
    }
}
