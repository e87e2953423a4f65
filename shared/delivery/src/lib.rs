//! The two halves of the delivery protocol as pure state machines.
//!
//! - [`outbox`]: the agent's dirty set.
//! - [`ledger`]: the receiver's events and their results.
//! - [`digest`]: the last reconciled state; outlives the agent.
//! - [`names`]: object names for other managers; outlive the agent.
//! - [`claims`]: whether a starting agent may rely on its digest.
//! - [`repeats`]: selects repeated messages to log.
//! - [`backoff`] and [`pace`]: delays of retries and of a peer's demands.
//!
//! Time (a [`Tick`]) and jitter are arguments, so a model can run both halves.

pub mod backoff;
pub mod claims;
pub mod digest;
pub mod ledger;
pub mod names;
pub mod outbox;
pub mod pace;
pub mod repeats;

/// Monotonic time since an arbitrary start.
pub type Tick = std::time::Duration;
