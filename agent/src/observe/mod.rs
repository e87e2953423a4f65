//! What happens in the runtime: one task per configured watch.
//!
//! [`fingerprint`] and [`index`] are pure and decide what is a change; [`resolve`] and [`watch`] talk to the API
//! server; [`supervisor`] starts and ends watches; [`condition`] keeps what to say about each watch.

pub mod condition;
pub mod fingerprint;
pub mod index;
pub mod resolve;
pub mod supervisor;
pub mod watch;
