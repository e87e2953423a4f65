//! What is known of one runtime's way, for pages.

use std::time::Duration;

use jiff::Timestamp;
use tidewatch_engine::queue::Tick;

use super::{Path, Refusals, State};

/// What is known; ages are counted from now.
#[derive(Clone, Debug)]
pub struct View<'a> {
    /// The state.
    pub state: State,
    /// The cause, for people.
    pub cause: &'a str,
    /// The last request of the v3 contract.
    pub heard: Option<Duration>,
    /// The last canary that came back.
    pub canary: Option<Duration>,
    /// Since when the agent speaks without a longer silence; `None` of one that is silent.
    pub speaks: Option<Duration>,
    /// When the certificate ends by which it was last heard.
    pub not_after: Option<Timestamp>,
    /// Who was refused in its name.
    pub refusals: &'a Refusals,
}

impl<'a> View<'a> {
    pub(super) fn new(path: &'a Path, is_silent: bool, now: Tick) -> Self {
        let age = |at: Option<Tick>| at.map(|at| now.saturating_sub(at));
        // Before the first report, nothing is known but whether it speaks.
        let unknown = match path.heard {
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
            heard: age(path.heard),
            canary: age(path.canary),
            speaks: age(path.speaks.filter(|_| !is_silent)),
            not_after: path.not_after,
            refusals: &path.refusals,
        }
    }
}
