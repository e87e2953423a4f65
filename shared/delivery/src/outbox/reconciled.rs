//! The reconciled state, and which digest of it is stored.

use tidewatch_wire::v3::{Response, Resume};

use super::{aside::Aside, session::Session, types::Revision};
use crate::digest::Digest;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Reconciled {
    pub(super) digest: Digest,
    /// Earlier run's claim and digest, until answered.
    claim: Option<(Resume, Digest)>,
    /// Last number covered by the stored digest.
    pub(super) stored: Option<u64>,
    revision: Aside<Revision>,
}

/// Answer to a claim, or a demand to report every object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ClaimAnswer {
    pub(super) confirmed: Option<bool>,
    pub(super) resync: bool,
}

impl Reconciled {
    pub(super) fn begin(&mut self, claim: Resume, digest: Digest) {
        self.claim = Some((claim, digest));
    }

    pub(super) fn claim(&self) -> Option<Resume> {
        self.claim.as_ref().map(|(claim, _)| *claim)
    }

    pub(super) fn revision(&self) -> Revision {
        self.revision.0
    }

    /// Counts a change that a stored digest must cover.
    pub(super) fn changed(&mut self) {
        self.revision.0.counted += 1;
    }

    /// Counts a change without a report.
    pub(super) fn changed_quietly(&mut self) {
        self.revision.0.quiet += 1;
    }

    /// Confirms or drops the digest. A session demands one resync at most.
    pub(super) fn answered(&mut self, response: &Response, session: &mut Session) -> ClaimAnswer {
        if let Some((_, digest)) = self.claim.take() {
            if response.resync {
                session.resync();
            } else {
                self.digest = digest;
            }
            return ClaimAnswer { confirmed: Some(!response.resync), resync: false };
        }
        if !response.resync || !session.resync() {
            return ClaimAnswer::default();
        }
        self.digest = Digest::new();
        self.changed();
        ClaimAnswer { confirmed: None, resync: true }
    }
}
