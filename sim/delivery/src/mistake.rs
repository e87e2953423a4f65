//! Deliberate bugs around production code, which the simulation must find.

/// A deliberate bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// Acknowledgement on receipt.
    AcknowledgeOnReceipt,
    /// Acknowledgement at the start of the reconcile.
    AcknowledgeAtTheStart,
    /// Acknowledgement of dropped work.
    DroppedWorkAcknowledges,
    /// Skipped reconcile.
    WorkIsSkipped,
    /// Reconcile with outdated state.
    StaleRead,
    /// Persisted failures ignored by a new engine.
    FailuresAreForgotten,
    /// Guards lost when a reconcile fails without a record.
    LostWorkForgetsItsGuards,
    /// Unknown numbers not resent.
    UnknownIsIgnored,
    /// Unanswered request taken as answered.
    FailedRequestIsForgotten,
    /// First list of a new agent not reported.
    FirstListIsNotReported,
    /// No list after 410.
    ExpiredWatchGoesOn,
    /// Epoch reused by a new agent.
    SameEpochAfterACrash,
    /// Every digest claim confirmed.
    EveryClaimIsConfirmed,
    /// `resync` events ignored.
    ResyncIsIgnored,
    /// Stored names ignored by a new agent.
    NamesAreForgotten,
    /// Names stored after the notification.
    NamesAreStoredLate,
    /// Marks ignored.
    MarksAreIgnored,
    /// No lists check the watches.
    WatchesAreTrusted,
    /// Acknowledgement of a queued request.
    WaitingCountsAsNotified,
    /// Any answer of another manager taken as acceptance.
    RefusalCountsAsNotified,
    /// Request in flight taken to cover a later change.
    InFlightCountsAsNotified,
}

impl Mistake {
    /// Bugs found by random runs. The rest (`FailuresAreForgotten`, `NamesAreStoredLate`, `MarksAreIgnored`)
    /// have scripts.
    pub const ALL: &[Self] = &[
        Self::AcknowledgeOnReceipt,
        Self::AcknowledgeAtTheStart,
        Self::DroppedWorkAcknowledges,
        Self::WorkIsSkipped,
        Self::StaleRead,
        Self::LostWorkForgetsItsGuards,
        Self::UnknownIsIgnored,
        Self::FailedRequestIsForgotten,
        Self::FirstListIsNotReported,
        Self::ExpiredWatchGoesOn,
        Self::SameEpochAfterACrash,
        Self::EveryClaimIsConfirmed,
        Self::ResyncIsIgnored,
        Self::NamesAreForgotten,
        Self::WatchesAreTrusted,
        Self::WaitingCountsAsNotified,
        Self::RefusalCountsAsNotified,
        Self::InFlightCountsAsNotified,
    ];
}
