//! Verified events from runtimes, over mTLS, acknowledged when they are handled.
//!
//! An event's way: [`listener`] (TLS, limits) → [`intake`] (paths, bodies) → [`identity`] (who says so) → the
//! [`Host`], which decides what depends on it. [`deliveries`] remembers what was told until the host has finished,
//! and answers the agents.

pub mod deliveries;
pub mod host;
pub mod identity;
pub mod intake;
pub mod listener;
pub mod metrics;

pub use deliveries::{Deliveries, Guard, Ticket};
pub use host::{Fate, Host, Manager};
pub use identity::{Refusal, Runtime, RuntimeLookup};
pub use intake::Intake;
pub use metrics::Metrics;
