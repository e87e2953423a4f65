//! Who owns which field: sets of fields, server-side apply, `managedFields`.

pub(crate) mod apply;
pub(crate) mod last_applied;
pub(crate) mod managed;
pub(crate) mod merge;
pub(crate) mod said;
pub(crate) mod set;
