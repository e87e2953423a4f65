//! Input and output of the dirty set.

use std::sync::Arc;

use jiff::Timestamp;
use tidewatch_wire::{Seq, v3::Change};

use crate::Tick;

/// Dirty object of a watch. Shared strings keep ten thousand keys small.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Watch.
    pub watch: Arc<str>,
    /// Empty if cluster-scoped.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

/// An observed change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Observation {
    /// Object.
    pub key: Key,
    /// API group.
    pub group: Arc<str>,
    /// API version.
    pub version: Arc<str>,
    /// Kind.
    pub kind: Arc<str>,
    /// Uid, if known.
    pub uid: String,
    /// Observed resourceVersion.
    pub resource_version: String,
    /// Kind of change.
    pub change: Change,
    /// Part of a full report, not a known change.
    pub listed: bool,
    /// Wall-clock time.
    pub at: Timestamp,
}

/// Contributions ([`crate::digest::contribution`]); 0 means absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Moved {
    /// Before the change.
    pub before: u64,
    /// After it.
    pub after: u64,
}

/// Whether the key was dirty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed {
    /// It was clean.
    New(Seq),
    /// It was dirty and has a new number.
    Coalesced(Seq),
}

/// A key acknowledged by every route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    /// Key.
    pub key: Key,
    /// Acknowledged number.
    pub seq: Seq,
    /// Time since the first unreconciled change.
    pub since_observed: Tick,
    /// Time since the last send.
    pub since_sent: Tick,
    /// Whether any route refused it.
    pub refused: bool,
}

/// Effects of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Keys that became clean.
    pub released: Vec<Released>,
    /// Numbers to resend.
    pub to_resend: usize,
    /// Numbers asked for again, except for deferred older ones and after a first restart.
    pub asked_again: usize,
    /// The receiver is another or has restarted.
    pub new_session: bool,
    /// The answer was for another epoch.
    pub ignored: bool,
    /// Requested delay.
    pub retry_after: Option<Tick>,
    /// Delay for older or full-report events.
    pub older_after: Option<Tick>,
    /// Answer to [`Outbox::begin`](super::Outbox::begin): whether the digest is reliable.
    pub confirmed: Option<bool>,
    /// Report every object again; the digest is empty.
    pub resync: bool,
}

/// Numbers of one request, to return on failure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct InFlight(pub(super) Vec<Seq>);

impl InFlight {
    /// Number of events.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Listed objects of a watch with names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// Present objects.
    pub objects: Vec<Key>,
    /// Observation of a missing object, without its key.
    pub gone: Observation,
}

/// Watches that keep names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeepNames {
    /// Watches for other routes than the engine.
    OfOthers,
    /// All, because the listener understands only names.
    OfAll,
}

/// Counts changes of the digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Revision {
    /// Changes, acknowledgements, sessions.
    pub counted: u64,
    /// Unreported changes. A digest without them is correct, and costs a report of those objects.
    pub quiet: u64,
}
