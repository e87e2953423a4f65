//! Tests of the simulated API server.

mod access;
mod client;
mod faults;
mod limits;
mod robust;
