//! The agent: watches a runtime and tells the receiver what changed, until the receiver has acknowledged it.
//!
//! ```text
//! observe (one task per watch) ──bounded channel──► send (owns the dirty set and the one connection)
//! ```
//! Bodies of objects are never kept, only a fingerprint each; Secrets are never watched.

pub mod app;
pub mod args;
pub mod canary;
mod check;
mod client;
pub mod config;
pub mod digest;
mod jitter;
mod known;
pub mod live;
pub mod metrics;
mod names;
pub mod observe;
mod pause;
pub mod send;
mod status;

/// Exit code for a wrong configuration or command line, as of all programs of Tidewatch.
pub const EXIT_USAGE: u8 = 2;
