//! The simulated API server as its clients meet it, in one test binary.

mod access;
mod client;
mod faults;
mod limits;
mod robust;
