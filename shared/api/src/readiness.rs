//! How a module is, as its objects and its custom resource say.

use crate::State;

/// What a module's objects say together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Readiness {
    /// It serves.
    Ready,
    /// It is on its way; an event about it will follow.
    Processing(String),
    /// It is on its way, and will not get there unless somebody does something.
    Warning(String),
    /// It will not get there by itself.
    Error(String),
}

/// The state of a module's custom resource, for the module's status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrState {
    /// `Empty`: the resource is not there, or tells nothing.
    pub state: State,
    /// Why it is not ready, in words that stay; empty when it is, or when it does not say.
    pub message: String,
}
