//! What the end-to-end tests and the demo stand on: control planes, an OCI registry, and the
//! processes of Tidewatch itself, started on free ports and ended for certain. Control planes
//! and registry are real programs, or the fake API server of this project ([`Backend`]).
//!
//! [`Harness`] knows where programs, logs and files are and how long processes live;
//! [`Etcd`], [`ControlPlane`] and [`Registry`] are what it starts. [`env::shared`] is one
//! such world for a whole test binary.

pub mod aggregated;
pub mod backend;
pub mod bench;
pub mod berths;
pub mod binaries;
pub mod buoys;
pub mod censor;
pub mod cluster;
pub mod corpus;
pub mod env;
pub mod etcd;
mod fake;
pub mod faulty;
pub mod fleet;
pub mod gomanager;
pub mod harness;
pub mod idle;
pub mod kcp;
#[cfg(test)]
mod layout;
#[cfg(test)]
mod ledger;
#[cfg(test)]
mod logs;
pub mod modules;
pub mod mtls;
pub mod observed;
pub mod oci_faults;
pub mod ports;
pub mod promtool;
pub mod registry;
pub mod solo;
pub mod spare;
pub mod story;
pub mod tools;
pub mod verdicts;

pub use tidewatch_demo::{fixtures, http, process, report, snapshot, wait};

pub use backend::Backend;
pub use cluster::{ControlPlane, Options, User};
pub use etcd::Etcd;
pub use harness::Harness;
pub use process::{Lifetime, Process, Spec};
pub use registry::Registry;
pub use tools::Tools;
