//! How an object is kept, and how its metadata is read.

pub(crate) mod intern;
pub(crate) mod meta;
pub(crate) mod stored;

pub use intern::{Shared, shared};
pub(crate) use stored::Stored;
