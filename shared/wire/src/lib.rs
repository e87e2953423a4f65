//! The event contract between agent and receiver: bodies, limits and verdicts.
//!
//! - [`v3`]: batches of sequenced events and acknowledgements between agent and receiver;
//! - [`v2`]: the Go watcher's one-event body, for interoperability.
//!
//! This crate has no I/O. Parsing bounds all input.

mod error_body;
pub mod header_fields;
mod ids;
pub mod limits;
mod seqset;
mod size;
pub mod v2;
pub mod v3;

pub use error_body::{ErrorBody, ISSUED_BEFORE_REGISTRATION};
pub use ids::{Epoch, Route, Seq, SessionId};
pub use seqset::{SeqSet, SeqSetError};
