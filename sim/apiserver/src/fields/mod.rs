//! Field ownership and server-side apply.

pub(crate) mod apply;
pub(crate) mod given;
pub(crate) mod last_applied;
pub(crate) mod managed;
pub(crate) mod merge;
pub(crate) mod set;
