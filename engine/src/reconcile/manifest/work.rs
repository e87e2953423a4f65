//! One reconcile of a Manifest.

use super::passed::{Mark, Only};
use crate::key::WorkKey;

/// The parameters of one pass.
pub(super) struct Work<'a> {
    pub(super) key: &'a WorkKey,
    pub(super) kyma: &'a str,
    /// Identifies the Manifest's wanted state.
    pub(super) mark: Mark,
    /// The objects to look at; `None`: all.
    pub(super) only: Option<Only>,
    /// Whether this is a retry after a failure.
    pub(super) again: bool,
    /// Whether an event reported a kind's definition.
    pub(super) defined: bool,
}
