//! Tests of the simulated API server.

mod access;
mod certificates;
mod client;
mod faults;
mod limits;
mod robust;
mod tokens;
