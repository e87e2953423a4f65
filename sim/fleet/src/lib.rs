//! `tidewatch simulate`: plays a scenario on simulated runtimes and reports the result.
//!
//! ```text
//! this process: simulated KCP and runtimes (one HTTPS listener), registry, scenario, oracle
//! a child:      the real receiver, alone, so that its CPU time and memory are its own
//! a child:      the agents, the agent's own code thousands of times, each with its identity and connections
//! ```

pub mod agents;
pub mod command;
pub mod fleet;
pub mod kubelet;
pub mod metrics;
pub mod modules;
pub mod names;
pub mod oracle;
pub mod progress;
pub mod receiver;
pub mod report;
pub mod role;
pub mod run;
pub mod scenario;
pub mod usage;
