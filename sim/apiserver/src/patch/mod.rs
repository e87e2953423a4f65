//! JSON, merge and strategic merge patches. Server-side apply is in [`crate::fields::apply`].

mod error;
mod json;
mod merge;
mod strategic;

pub(crate) use error::PatchError;
pub(crate) use json::json;
pub(crate) use merge::merge;
pub(crate) use strategic::strategic;
