//! Seeded fault simulation of the event path, on one thread and in simulated time.
//!
//! Production code: sender, watches, intake, ledgers, sessions, lanes, work queue. The rest is simulated.

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
