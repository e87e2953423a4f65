//! Infrastructure of end-to-end tests and demo: control planes, an OCI registry and the product's processes,
//! on free ports and with a guaranteed end. Control planes and registry are real or fake ([`Backend`]).
//!
//! [`Harness`] holds paths and lifetimes. It starts [`Etcd`], [`ControlPlane`] and [`Registry`].
//! [`env::shared`] is one environment per test binary.

pub mod aggregated;
pub mod backend;
pub mod bench;
pub mod binaries;
pub mod buoys;
pub mod by_hand;
pub mod censor;
pub mod cert_manager;
pub mod chart;
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
pub mod prometheus;
pub mod promtool;
pub mod registry;
pub mod runtime_pool;
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
