use smallvec::SmallVec;
use tidewatch_wire::{Route, v3};

use super::types::{Moved, Observation};
use crate::Tick;

/// A dirty key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    pub(super) seen: Observation,
    pub(super) first_observed: Tick,
    pub(super) sent: Option<Tick>,
    /// Never empty.
    pub(super) pending: SmallVec<[Route; 1]>,
    pub(super) refused: bool,
    /// `before` stays the last reconciled contribution.
    pub(super) moved: Moved,
}

impl Entry {
    pub(super) fn is_canary(&self) -> bool {
        &*self.seen.key.watch == v3::CANARY
    }
}
