//! Logs, metrics and admin endpoint.
//!
//! Only the log subscriber is global. Tests may have several [`Registry`](metrics::Registry)s and [`Readiness`]es.

pub mod admin;
pub mod build;
pub mod chain;
pub mod logging;
pub mod metrics;
pub mod readiness;
pub mod reply;
pub mod stdio;

pub use build::BuildInfo;
pub use chain::chain;
pub use prometheus;
pub use readiness::Readiness;
pub use reply::Reply;
