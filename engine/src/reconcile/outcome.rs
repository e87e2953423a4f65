//! How a reconcile ends.

use std::time::Duration;

use jiff::Timestamp;
use tidewatch_api::State;
use tidewatch_planner::watches;

use super::{Shared, apply::ObjectError, next_try};
use crate::{
    gate,
    key::{Cause, Report},
};

/// A kind may be served a moment after its definition has said so, of which nothing tells.
pub(crate) const SERVED_AFTER: Duration = Duration::from_secs(2);

/// How one reconcile ended.
#[derive(Debug)]
pub(crate) enum Finish {
    /// Nothing more to do.
    Done,
    /// What this was asked for has come before: nothing was read.
    Unneeded,
    /// Nothing more to do until an event; what is missing stands in the status.
    Waiting(String),
    /// Looks again soon: what it waits for has no event of its own.
    Recheck(String),
    /// Nothing more to do until an event; if none has ended it by then, it looks again after this time.
    Again(Duration, String),
    /// Looks again, soon at first and then seldom: it may wait for days, for somebody whom no event of ours tells of.
    Patient(String),
    /// It ended like this, and looks again at that time, at which a plan may be another one though nothing has changed.
    RecheckAt(Timestamp, Box<Finish>),
    /// It ended like this, and whoever failed asks not to be tried again before that.
    NotBefore(Duration, Box<Finish>),
    /// The failure stands in the status. Only a change can mend it, and that is an event.
    Settled(Report),
    /// The failure, of a class, stands in the status. Trying again can mend it.
    Failed(Report, &'static str),
}

impl Finish {
    /// A failure of a class, which may be tried again after `wait` at the earliest.
    pub(crate) fn failed(report: Report, class: &'static str, wait: Option<Duration>) -> Self {
        let failed = Self::Failed(report, class);
        match wait {
            Some(wait) => Self::NotBefore(wait, Box::new(failed)),
            None => failed,
        }
    }

    /// What a failure is in the status; `None` without one.
    pub(crate) const fn report(&self) -> Option<&Report> {
        match self {
            Self::Settled(report) | Self::Failed(report, _) => Some(report),
            _ => None,
        }
    }
}

/// Why work was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Why<'a> {
    /// The first few causes.
    pub(crate) causes: &'a [Cause],
    /// How many there were.
    pub(crate) count: usize,
}

impl Why<'_> {
    /// Whether there are causes, and all of them are like that.
    pub(crate) fn is_all(&self, is: impl Fn(&Cause) -> bool) -> bool {
        !self.causes.is_empty() && self.causes.len() >= self.count && self.causes.iter().all(is)
    }

    /// Whether a cause may be among all there were. Of those that are not known nobody can tell.
    pub(crate) fn may_be(&self, is: impl Fn(&Cause) -> bool) -> bool {
        self.causes.len() < self.count || self.causes.iter().any(is)
    }
}

/// Whether it tells of something that says which kinds are served.
pub(crate) fn is_of_definition(cause: &Cause) -> bool {
    let is = |object: &str| watches::SERVES.iter().any(|(_, kind)| object.starts_with(kind));
    matches!(cause, Cause::Event { object, .. } if is(object))
}

/// Why a reconcile could not even write down how it ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Lost {
    /// KCP did not answer, or refused.
    #[error("{what} in KCP failed")]
    Kcp {
        what: String,
        #[source]
        source: Box<kube::Error>,
    },
    /// What the plan was made of is not what KCP has; its watch tells in a moment.
    #[error("{0}: KCP has another one than was seen")]
    Behind(String),
    /// Nothing may be written now. What was asked for is still to be done.
    #[error(transparent)]
    Held(#[from] gate::Held),
    /// What it waits for is slow, and as many wait for that as may.
    #[error("{0}; as many reconciles as may wait for it do; it is tried again in a moment")]
    Crowded(String),
    /// Its runtime is left alone, for so long.
    #[error("{0}")]
    Parked(String, Duration),
    /// It took too long.
    #[error("the reconcile took longer than {} s", .0.as_secs())]
    Deadline(Duration),
}

impl Lost {
    /// What KCP says against an object, which it will say again; `None` if it was something else.
    pub(crate) fn refusal(&self) -> Option<String> {
        match self {
            Self::Kcp { what, source } => match source.as_ref() {
                kube::Error::Api(status) if matches!(status.code, 400 | 422) => {
                    Some(format!("{what} in KCP was refused: {}", status.message))
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// Which of its causes work still has that was not begun, or has found that what it knew was not the newest: a retry alone is nobody's in
    /// particular, may be left for later, and trusts what was found before.
    pub(crate) fn leaves(&self, causes: &[Cause]) -> Vec<Cause> {
        let keeps = |cause: &&Cause| match (self, cause) {
            (_, Cause::Retry { .. }) => false,
            (Self::Held(_) | Self::Behind(_) | Self::Crowded(_), _) => true,
            // Who was heard of has had its try, or somebody tries for all.
            (Self::Parked(..), cause) => cause.is_whole_look(),
            _ => false,
        };
        causes.iter().filter(keeps).cloned().collect()
    }

    pub(crate) const fn class(&self) -> &'static str {
        match self {
            Self::Kcp { .. } | Self::Behind(_) => "kcp",
            Self::Held(_) => "held",
            Self::Crowded(_) => "crowded",
            Self::Parked(..) => "parked",
            Self::Deadline(_) => "deadline",
        }
    }
}

impl Shared {
    /// The end of a reconcile that a runtime did not let come to its own. What it shows of the client and of how long to wait counts.
    pub(crate) fn failed_at(&self, kyma: &str, error: ObjectError) -> Result<Finish, Lost> {
        if let ObjectError::Held(held) = error {
            return Err(held.into());
        }
        if error.discredits_client() {
            self.discredit(kyma);
        }
        let rest = error.retry_after();
        let report = error_report(format!("{}; {}", error.message(), next_try(self.now(), rest)));
        Ok(Finish::failed(report, error.class(), rest))
    }
}

pub(crate) fn error_report(message: String) -> Report {
    Report { state: State::Error, message, is_found: false }
}

/// An Error or Warning that a look at everything has found.
pub(crate) const fn found_report(state: State, message: String) -> Report {
    Report { state, message, is_found: true }
}
