//! Seeded fault simulation of the event path.
//!
//! The agent's sender and watch, the receiver's intake and ledgers and the engine's work queue are those of the
//! products. The network, the API servers, the workers and the clock are made here, and decide by a seeded generator
//! what goes wrong. Everything runs on one thread in simulated time, so a seed is a run.

mod agent;
mod cluster;
mod episode;
mod mistake;
mod net;
mod oracle;
mod receiver;
mod rng;
mod step;
mod world;

pub use episode::{Failure, REST_WITHIN, Report, play};
pub use mistake::Mistake;
pub use step::{Action, Counts, Kind, Point};
