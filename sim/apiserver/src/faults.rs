//! Fault injection, consulted before the cluster sees a request.

use std::{fmt, time::Duration};

use crate::store::refusal::Refusal;

/// Request details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// Cluster name.
    pub cluster: &'a str,
    /// HTTP method.
    pub method: &'a str,
    /// Path relative to the cluster.
    pub path: &'a str,
    /// Authorization verb; `discovery` for non-object requests.
    pub verb: &'static str,
    /// Whether the request starts a watch.
    pub is_watch: bool,
    /// User; empty without credentials.
    pub user: &'a str,
    /// `User-Agent` up to the first `/`; may be empty.
    pub agent: &'a str,
}

/// An injected fault.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Fault {
    /// No fault.
    #[default]
    None,
    /// Delays the answer.
    Latency(Duration),
    /// Answers with an error.
    Refuse(Refusal),
    /// Applies the request; sends nothing.
    Hang,
    /// Neither applies nor answers.
    Lost,
    /// Ends the connection unanswered; on HTTP/2, resets only the stream.
    Drop,
    /// Rejects the credentials.
    Unauthorized,
    /// Silences a watch after this time, like a half-open connection.
    Silent(Duration),
    /// Breaks off a watch or list after this time.
    BreakOff(Duration),
    /// Ends a watch with 410 after this time.
    Expire(Duration),
}

/// Chooses faults. Runs on the request's task: must not block.
pub trait Faults: fmt::Debug + Send + Sync {
    /// Returns a request's fault.
    fn fault(&self, call: &Call<'_>) -> Fault;
}

/// Injects no faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoFaults;

impl Faults for NoFaults {
    fn fault(&self, _: &Call<'_>) -> Fault {
        Fault::None
    }
}
