//! Writes to KCP: objects and statuses that differ, and Events for users.

pub(crate) mod events;
pub(crate) mod writes;
