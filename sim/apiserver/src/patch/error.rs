//! Errors of patches.

use crate::json::DEEPEST;

/// Operations of a JSON patch.
pub(super) const MAX_OPERATIONS: usize = 10_000;

#[derive(Debug, thiserror::Error)]
pub(crate) enum PatchError {
    #[error("the patch cannot be read: {0}")]
    Malformed(String),
    #[error("the server rejected our request due to an error in our request")]
    Inapplicable,
    /// Directive and its map.
    #[error("unknown patch type: {0} in map: {1}")]
    Directive(String, String),
    /// List item and the merge key that it lacks.
    #[error("map: {0} does not contain declared merge key: {1}")]
    Keyless(String, String),
    #[error(
        "Request entity too large: The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {0}"
    )]
    TooLarge(usize),
    /// Deeper objects cannot be read back.
    #[error("the patched object would nest deeper than {DEEPEST} levels")]
    TooDeep,
}
