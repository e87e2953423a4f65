//! Seeded fault simulation of the event path.
//!
//! The agent's sender and watches, the receiver's intake, ledgers, sessions and lanes and the engine's work queue are those
//! of the products. The network, the API servers, another manager's service, the workers and the clock are made here, and
//! decide by a seeded generator what goes wrong. Everything runs on one thread in simulated time, so a seed is a run.

mod agent;
mod cluster;
mod control;
mod episode;
mod forward;
mod keep;
mod mistake;
mod net;
mod oracle;
mod receiver;
mod rng;
mod script;
mod step;
mod world;

pub use episode::{Failure, REST_WITHIN, Report, play};
pub use mistake::Mistake;
pub use script::{Do, follow};
pub use step::{Action, Counts, Kind, Point};
