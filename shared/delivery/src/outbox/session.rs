use tidewatch_wire::SessionId;

use super::aside::Aside;

/// The receiver's session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Session {
    /// Session of the last answer.
    pub(super) id: Option<SessionId>,
    /// Highest mark of that session.
    pub(super) mark: u64,
    /// Consecutive sessions without acknowledgement, including the present one.
    fruitless: Aside<u32>,
    /// Session that caused a resync.
    resynced: Option<SessionId>,
}

impl Session {
    /// Records the session of an answer. Returns whether it differs from the last one.
    pub(super) fn enter(&mut self, id: SessionId) -> bool {
        if self.id == Some(id) {
            return false;
        }
        (self.id, self.mark) = (Some(id), 0);
        self.fruitless.0 = self.fruitless.0.saturating_add(1);
        true
    }

    pub(super) fn raise_mark(&mut self, mark: u64) {
        self.mark = self.mark.max(mark);
    }

    pub(super) fn fruitless(&self) -> u32 {
        self.fruitless.0
    }

    pub(super) fn acknowledged(&mut self) {
        self.fruitless.0 = 0;
    }

    /// Records a resync. Returns false if this session has caused one already.
    pub(super) fn resync(&mut self) -> bool {
        let first = self.resynced != self.id;
        self.resynced = self.id;
        first
    }
}
