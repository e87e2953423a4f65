//! One reconcile of a Manifest.

use super::passed::{Mark, Only};
use crate::key::WorkKey;

/// A pass.
pub(super) struct Work<'a> {
    pub(super) key: &'a WorkKey,
    pub(super) kyma: &'a str,
    /// Of what the Manifest asks for.
    pub(super) mark: Mark,
    /// What it looks at, if not at everything.
    pub(super) only: Option<Only>,
    /// Whether the one before has failed.
    pub(super) again: bool,
    /// Whether the definition of a kind was heard of.
    pub(super) defined: bool,
}
