//! `tidewatch-receiver`: verifies who speaks, queues reconciles, runs the lifecycle engine.
//!
//! An event's way in here: [`listener`] (TLS, limits) → [`intake`] (paths, bodies) → [`identity`] (who
//! says so) → [`route`] (which reconciles could care) → the engine's queue. [`deliveries`] remembers what
//! was told until it is done, and answers the agents.

pub mod app;
pub mod args;
pub mod deliveries;
pub mod identity;
pub mod intake;
pub mod listener;
pub mod metrics;
pub mod route;
pub mod runtimes_page;
pub mod sessions;

pub use app::{Bound, Config};
