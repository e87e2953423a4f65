//! The demo: a module's whole life, told once for people who watch and for tests that check, and played on real
//! control planes or on simulated ones.
//!
//! [`story`] needs only Kubernetes clients and the admin URLs of receiver and agents; who starts those is a
//! [`story::Cast`]. [`simulated`] is the one that needs nothing else installed.

pub mod command;
pub mod files;
pub mod fixtures;
pub mod fleet;
pub mod http;
pub mod kept;
pub mod pki;
pub mod process;
pub mod report;
pub mod simulated;
pub mod snapshot;
pub mod story;
pub mod wait;
