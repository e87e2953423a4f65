//! One reconcile of a Manifest.

use super::scope::{Inputs, SyncScope};
use crate::key::WorkKey;

/// The parameters of one pass.
pub(super) struct Work<'a> {
    pub(super) key: &'a WorkKey,
    pub(super) kyma: &'a str,
    pub(super) inputs: Inputs,
    /// The objects to read; `None`: all.
    pub(super) scope: Option<SyncScope>,
    /// Whether this is a retry after a failure.
    pub(super) is_retry: bool,
    /// Whether an event reported a kind's definition.
    pub(super) definitions_changed: bool,
}
