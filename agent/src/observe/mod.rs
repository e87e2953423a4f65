//! Observes the runtime, with a task per watch.
//!
//! Reports wait until the receiver has confirmed or rejected the stored digest.

pub mod condition;
pub mod fingerprint;
pub mod index;
pub mod message;
pub mod resolve;
pub mod supervisor;
mod tap;
pub mod watch;
