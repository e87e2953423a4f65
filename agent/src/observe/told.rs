//! What the watches and the sender say to each other.

use std::{collections::BTreeMap, sync::Arc};
use tidewatch_delivery::{
    digest::{Digest, Section},
    outbox::{Key, Moved, Observation, Present},
};

/// What a watch tells the sender, in the order in which it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// A change to report.
    Changed(Observation, Moved),
    /// An object contributes another number to the digest, without a change that counts.
    Moved(Key, Moved),
    /// A watch was listed as a whole, of whose objects the names are kept.
    Listed(String, Present),
    /// The watch was compared with the [`Baseline`]. The objects in the section's stale buckets follow as changes.
    Compared {
        /// The watch.
        watch: String,
        /// The sums of what was listed, and the buckets that differ.
        section: Section,
        /// For what may be gone and cannot be named, if any bucket differs.
        unnamed: Option<Observation>,
    },
}

impl From<Observation> for Told {
    fn from(observation: Observation) -> Self {
        Self::Changed(observation, Moved::default())
    }
}

/// What to compare the watches' objects with. Until there is one, nothing is reported.
#[derive(Clone, Debug, Default)]
pub struct Baseline {
    /// 0: not known yet. Each later one means comparing again.
    pub round: u64,
    /// What is known to be reconciled; empty when everything has to be reported.
    pub digest: Arc<Digest>,
    /// Version and kind of the objects whose names an earlier run has kept, by watch.
    pub kinds: Arc<BTreeMap<String, (String, String)>>,
}

impl Baseline {
    /// The first round, in which everything is reported.
    pub fn nothing_known() -> Self {
        Self { round: 1, ..Self::default() }
    }
}
