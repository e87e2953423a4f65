//! Stored objects and their metadata.

pub(crate) mod intern;
pub(crate) mod meta;
pub(crate) mod stored;

pub use intern::{Shared, shared};
pub(crate) use stored::Stored;
