//! Mistakes made on purpose, around the production code: the simulation has to find each.

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// The receiver says `done` when it has taken an event.
    AcknowledgeOnReceipt,
    /// The receiver says `done` when the reconcile begins.
    AcknowledgeAtTheStart,
    /// Work that was dropped says `done`.
    DroppedWorkAcknowledges,
    /// A worker ends work without doing it.
    WorkIsSkipped,
    /// A reconcile works on what was there some time ago.
    StaleRead,
    /// The engine does not rebuild its queue from what is persisted.
    FailuresAreForgotten,
    /// Work that failed without a trace forgets who waits for it.
    LostWorkForgetsItsGuards,
    /// The agent does not send what the receiver says it does not know.
    UnknownIsIgnored,
    /// A request that got no answer is taken for one that did.
    FailedRequestIsForgotten,
    /// A new agent does not report what its first list finds.
    FirstListIsNotReported,
    /// A watch whose version is too old goes on without a list.
    ExpiredWatchGoesOn,
    /// A new agent goes on with the epoch of the old one.
    SameEpochAfterACrash,
    /// An agent may rely on whatever digest it finds.
    EveryClaimIsConfirmed,
    /// What an agent cannot name is not reconciled.
    ResyncIsIgnored,
    /// A new agent does not know whom other managers were told of.
    NamesAreForgotten,
    /// What other managers are told of is stored some time after they are told.
    NamesAreStoredLate,
    /// A receiver knows sessions, but not how far they went.
    MarksAreIgnored,
    /// Nobody lists beside a watch.
    WatchesAreTrusted,
    /// Another manager's number is done when its request waits to be made.
    WaitingIsTold,
    /// Whatever another manager answers, it has taken the event.
    RefusedIsTold,
    /// What changes while another manager is asked was told by that.
    UnderWayIsTold,
}

impl Mistake {
    /// Those that random runs find. `FailuresAreForgotten`, `NamesAreStoredLate` and `MarksAreIgnored` need more luck
    /// than that: scripts show them.
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
        Self::WaitingIsTold,
        Self::RefusedIsTold,
        Self::UnderWayIsTold,
    ];
}
