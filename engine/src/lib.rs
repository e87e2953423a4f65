//! The lifecycle engine: installs, upgrades, repairs and removes modules in runtime clusters.
//!
//! Two layers that do not mix:
//! - [`plan`] is pure: values in, plan out. No client, clock, runtime or I/O.
//! - [`drive`] reads what a plan needs and writes what it says, idempotently.
//!
//! Around them: [`queue`] (what is done next), [`kcp`] (what is known of the control plane), [`oci`]
//! (modules in registries) and [`runtime`] (clients of runtime clusters). The engine needs no receiver:
//! whatever pushes into its queue drives it.

mod alike;
pub mod drive;
pub mod history;
pub mod kcp;
pub mod key;
pub mod legacy_watcher;
mod lines;
mod lists;
mod lru;
pub mod queue;
pub mod runtime;
pub mod stages;
mod texts;

pub use drive::{Engine, EngineConfig};
pub use key::{Acknowledge, Cause, Guard, Outcome, WorkKey};
