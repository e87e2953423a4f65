//! A demo of a module's lifecycle: [`story`] plays it, [`simulated`] provides clusters in this process.

pub mod command;
pub mod files;
pub mod fixtures;
pub mod fleet;
pub mod http;
pub mod kept;
pub mod pki;
pub mod pod;
pub mod process;
pub mod report;
pub mod simulated;
pub mod snapshot;
pub mod story;
pub mod wait;
