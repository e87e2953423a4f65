//! Readiness of a module.

use crate::State;

/// Combined readiness of a module's objects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Readiness {
    /// Ready.
    Ready,
    /// In progress; an event will follow.
    Processing(String),
    /// In progress until a user acts.
    Warning(String),
    /// Failed; does not recover by itself.
    Error(String),
}

/// State of a module's custom resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrState {
    /// `Empty` if missing or not reported.
    pub state: State,
    /// Cause, in stable text; empty if ready or not reported.
    pub message: String,
}
