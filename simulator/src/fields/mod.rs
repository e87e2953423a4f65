//! Who owns which field: sets of fields, server-side apply, `managedFields`.

pub(crate) mod apply;
pub(crate) mod managed;
pub(crate) mod merge;
pub(crate) mod set;
