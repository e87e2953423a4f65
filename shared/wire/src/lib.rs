//! The event contract between agent and receiver: bodies, limits and verdicts.
//!
//! Two versions are spoken:
//! - [`v3`]: batches of sequenced events and explicit acknowledgements, between our agent and our receiver;
//! - [`v2`]: the one-event body of the Go watcher, accepted (and sent) for interoperability.
//!
//! This crate has no I/O. Everything that comes from outside is bounded here, while it is parsed.

mod error_body;
mod ids;
pub mod limits;
mod seqset;
mod size;
pub mod standing;
pub mod v2;
pub mod v3;

pub use error_body::ErrorBody;
pub use ids::{Epoch, Route, Seq, SessionId};
pub use seqset::{SeqSet, SeqSetError};
