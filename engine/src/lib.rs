//! The lifecycle engine: installs, upgrades, repairs and removes modules in runtime clusters.
//!
//! The only crate that knows both the control plane (KCP) and the runtimes. Decisions are made in `tidewatch-planner` and
//! `tidewatch-deployer`, which are pure; the engine reads their input, and writes their result idempotently. It needs no receiver: whatever pushes
//! into its queue drives it.
//!
//! | module | content |
//! |---|---|
//! | [`queue`], [`key`] | which work is next |
//! | [`index`], [`watch`] | what is known of KCP, and which change asks for which reconcile |
//! | [`clusters`] | clients of runtime clusters, and the limits that protect the fleet from one of them |
//! | `reconcile` | one module for each kind of work |
//! | `kcp` | writes to KCP: objects, statuses, Events |
//! | [`gate`] | whether writes are allowed at all: live, paused, standby, dry run |
//! | [`compat`] | what only a take-over from the Go manager needs |
//! | [`history`], [`stages`] | the last reconciles, for `explain` |

mod alike;
pub mod clusters;
pub mod compat;
mod config;
mod engine;
mod error;
mod events;
pub mod gate;
pub mod history;
pub mod index;
mod kcp;
pub mod key;
mod lines;
mod lists;
mod outcome;
mod pace;
pub mod queue;
mod reconcile;
#[cfg(test)]
mod scripted;
pub mod stages;
mod texts;
pub mod trigger;
pub mod watch;

pub use config::EngineConfig;
pub use engine::Engine;
pub use key::{Acknowledge, Guard, OutcomeKind, WorkKey};
pub use reconcile::Version;
pub use trigger::Trigger;
