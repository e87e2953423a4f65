//! What goes into the dirty set and what comes out of it.

use std::sync::Arc;

use jiff::Timestamp;
use tidewatch_wire::{Seq, v3::Change};

use crate::Tick;

/// What is dirty: one object under one watch. Its strings are shared with whoever else knows the object, so that ten thousand
/// dirty keys cost little more than their numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Name of the configured watch.
    pub watch: Arc<str>,
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

/// One observed change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Observation {
    /// The object.
    pub key: Key,
    /// API group.
    pub group: Arc<str>,
    /// API version.
    pub version: Arc<str>,
    /// Kind.
    pub kind: Arc<str>,
    /// The object's uid, if known.
    pub uid: String,
    /// The resourceVersion at which it was seen.
    pub resource_version: String,
    /// What happened.
    pub change: Change,
    /// Whether it is part of a report of everything, and no change that anybody is known to have made.
    pub listed: bool,
    /// When, on the wall clock.
    pub at: Timestamp,
}

/// What an object contributes to the digest (see [`crate::digest::contribution`]), 0 while it is not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Moved {
    /// Before the change.
    pub before: u64,
    /// After it.
    pub after: u64,
}

/// Whether an observation made a key dirty or found it so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed {
    /// The key was clean.
    New(Seq),
    /// The key was dirty already; it has a new number now.
    Coalesced(Seq),
}

/// A key that every route has let go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    /// The key.
    pub key: Key,
    /// The number that was let go.
    pub seq: Seq,
    /// Since the key's first unreconciled change.
    pub since_observed: Tick,
    /// Since it was last sent.
    pub since_sent: Tick,
    /// Whether any route refused it.
    pub refused: bool,
}

/// What an answer did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Keys that are clean now.
    pub released: Vec<Released>,
    /// Numbers that must be sent again.
    pub to_resend: usize,
    /// How many of those for another reason than that their turn comes later, or that the receiver was restarted once.
    pub asked_again: usize,
    /// The receiver is another one than before (or has restarted).
    pub new_session: bool,
    /// The answer was for another epoch and changed nothing.
    pub ignored: bool,
    /// The receiver's wish to be left alone for this long.
    pub retry_after: Option<Tick>,
    /// The same for what is older than its session or part of a full report.
    pub older_after: Option<Tick>,
    /// The answer to the claim of [`Outbox::begin`](super::Outbox::begin): whether the digest may be relied on.
    pub confirmed: Option<bool>,
    /// Every object must be reported again. The digest is empty now.
    pub resync: bool,
}

/// Numbers sent in one request, to take back if the request fails.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct InFlight(pub(super) Vec<Seq>);

impl InFlight {
    /// Number of events.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the request carried no event.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What a watch has listed, where names are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// Everything that is there.
    pub objects: Vec<Key>,
    /// What to observe of an object that is not; only its key is missing.
    pub gone: Observation,
}
