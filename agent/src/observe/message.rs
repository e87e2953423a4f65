//! Messages between watches and sender.

use std::{collections::BTreeMap, sync::Arc};
use tidewatch_delivery::{
    digest::{Digest, Section},
    outbox::{Key, Moved, Observation, Present},
};

/// Message from a watch, in observed order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A change to report.
    Changed(Observation, Moved),
    /// A changed contribution without a relevant change.
    Moved(Key, Moved),
    /// A complete list of a watch with kept names.
    Listed(String, Present),
    /// A comparison with the [`Baseline`]. Objects in stale buckets follow as changes.
    Compared {
        /// The watch.
        watch: String,
        /// Listed sums; differing buckets are stale.
        section: Section,
        /// A resync for deletions without names.
        unnamed: Option<Observation>,
    },
}

impl From<Observation> for Message {
    fn from(observation: Observation) -> Self {
        Self::Changed(observation, Moved::default())
    }
}

/// State to compare with; nothing is reported before the first.
#[derive(Clone, Debug, Default)]
pub struct Baseline {
    /// Each increase demands a comparison; 0 is none.
    pub round: u64,
    /// The reconciled state; empty to report everything.
    pub digest: Arc<Digest>,
    /// Version and kind of stored names, by watch.
    pub kinds: Arc<BTreeMap<String, (String, String)>>,
}

impl Baseline {
    /// The first round, which reports everything.
    pub fn nothing_known() -> Self {
        Self { round: 1, ..Self::default() }
    }
}
