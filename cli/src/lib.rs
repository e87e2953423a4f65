//! `tidewatch`: the command line for operators and module teams.

pub mod args;
mod certificate_status;
mod certs;
mod clusters;
mod doctor;
mod explain;
mod files;
mod generate;
mod lint;
mod module;
mod output;
mod progress;
mod revocation;
mod rights;
mod runtime;

pub use args::{Args, run};
