//! The agent reports a runtime's changes to the receiver until they are acknowledged.
//!
//! ```text
//! observe (one task per watch) ──bounded channel──► send (owns the dirty set and the one connection)
//! ```
//! Objects are kept as fingerprints only. Secrets are never watched.

pub mod app;
pub mod args;
pub mod canary;
mod check;
mod client;
pub mod config;
mod config_maps;
pub mod digest;
mod enrolment;
mod jitter;
mod known;
pub mod live;
pub mod metrics;
mod names;
pub mod observe;
mod pause;
pub mod send;
mod start_error;
mod status;

/// Exit code for a wrong configuration or command line.
pub const EXIT_USAGE: u8 = 2;
