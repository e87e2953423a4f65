//! The delivery protocol's two halves as pure state machines.
//!
//! - [`outbox`]: the agent's dirty set. A change is kept until every route has let it go.
//! - [`ledger`]: the receiver's memory of what it was told and what has become of it.
//! - [`digest`]: what was reconciled last, small enough to outlive the agent.
//! - [`names`]: of objects that others than the engine hear of, for the same time.
//! - [`claims`]: whether an agent that starts may rely on the digest it finds.
//! - [`repeats`]: which of many equal messages are worth a line.
//! - [`backoff`]: how long to wait before the next try.
//! - [`pace`]: how long to wait with what a peer asks for again and again.
//!
//! Neither half has a client, a clock, a runtime or randomness: time is an argument (a [`Tick`]), and
//! so is jitter. One model can therefore drive both.

pub mod backoff;
pub mod claims;
pub mod digest;
pub mod ledger;
pub mod names;
pub mod outbox;
pub mod pace;
pub mod repeats;

/// A point in time on one process's monotonic clock, as the time since an arbitrary start.
pub type Tick = std::time::Duration;
