//! `tidewatch`: the command line for operators and module teams.

pub mod args;
mod certificate_status;
mod certs;
mod explain;
mod files;
mod generate;
mod lint;
mod module;
mod output;
mod progress;
mod revocation;

pub use args::{Args, run};
