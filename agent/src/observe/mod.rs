//! What happens in the runtime: one task per configured watch.
//!
//! [`fingerprint`] and [`index`] are pure and decide what is a change; [`resolve`] and [`watch`] talk to the API
//! server; [`supervisor`] starts and ends watches; [`condition`] keeps what to say about each watch. [`told`] is what goes to the sender and comes from it:
//! after a start nothing is reported before the receiver has said whether the stored digest may be relied on, and
//! then only what differs from it.

pub mod condition;
pub mod fingerprint;
pub mod index;
pub mod resolve;
pub mod supervisor;
mod tap;
pub mod told;
pub mod watch;
