//! The lifecycle engine: installs, upgrades, repairs and removes modules in runtime clusters.
//!
//! The only crate that knows both the control plane (KCP) and the runtimes. `tidewatch-planner` and `tidewatch-deployer`, which are pure, decide;
//! the engine reads their input and writes their result idempotently. It needs no receiver: any caller can push into its queue.
//!
//! | module | content |
//! |---|---|
//! | [`Engine`], [`EngineConfig`] | the engine, its settings, requests from outside |
//! | [`queue`], [`key`], [`trigger`] | which key is next, and why |
//! | [`index`], [`watch`] | the projection of KCP, and the watches that queue keys |
//! | [`clusters`] | clients of runtimes, calls for objects, and limits that protect the fleet from one runtime |
//! | `kcp`, `events` | writes to KCP: objects and statuses; Events for users |
//! | [`gate`] | the mode: live, paused, standby or dry run |
//! | `reconcile` | one reconciler for each kind of key, and the dispatcher that calls them |
//! | `outcome`, `error`, `pace` | how a reconcile ends, and when its key is due again |
//! | [`history`], [`stages`] | the last reconciles, for `explain` |
//! | [`spans`] | tracing spans of events and reconciles |
//! | [`compat`] | the take-over from the Go manager |

mod agent_upgrades;
mod authority;
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
mod outcome;
mod pace;
mod pool;
pub mod queue;
mod reconcile;
#[cfg(test)]
mod scripted;
pub mod spans;
pub mod stages;
pub mod trigger;
pub mod watch;

pub use authority::{Authority, Issuer};
pub use config::{AgentInstall, EngineConfig, ReconcileLimits};
pub use engine::Engine;
pub use key::{Acknowledge, Guard, OutcomeKind, WorkKey};
pub use reconcile::Version;
pub use trigger::Trigger;
