//! What every Tidewatch process shows of itself: logs, metrics and the admin endpoint.
//!
//! Nothing here is global except the log subscriber: a metrics [`Registry`](metrics::Registry) and a
//! [`Readiness`] belong to the process that made them, so a test can run several processes' worth in one.

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
