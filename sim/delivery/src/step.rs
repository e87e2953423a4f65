//! Kinds, counts and history of steps.

use std::{collections::VecDeque, fmt};

/// Steps in a failure report: the failed rest and as many before it.
const REMEMBERED: usize = 400;

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $name:ident = $word:literal,)+) => {
        /// Kinds of steps.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Kind { $($(#[doc = $doc])+ $name,)+ }

        impl Kind {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// Returns the label.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $(Self::$name => $word),+ }
            }
        }
    };
}

kinds! {
    /// Object created.
    Create = "create",
    /// Spec changed.
    Update = "update",
    /// Object deleted.
    Delete = "delete",
    /// Object recreated with its generation.
    Recreate = "recreate",
    /// Change outside the spec.
    Noise = "noise",
    /// Message arrived.
    Delivered = "delivered",
    /// Message slow.
    Slow = "slow",
    /// Request lost.
    RequestLost = "request-lost",
    /// Answer lost.
    AnswerLost = "answer-lost",
    /// Request duplicated.
    Duplicated = "duplicated",
    /// Connection reset.
    Reset = "reset",
    /// TLS handshake failed.
    Handshake = "handshake",
    /// Message lost in a partition.
    Partitioned = "partitioned",
    /// Certificate refused.
    Certificate = "certificate",
    /// Receiver overloaded.
    Overload = "overload",
    /// Wall clock jumped.
    ClockJump = "clock-jump",
    /// Time passed.
    Timer = "timer",
    /// Watch restarted with a list.
    WatchEnded = "watch-ended",
    /// Watch stalled.
    WatchStalled = "watch-stalled",
    /// Watch got 410.
    WatchExpired = "watch-410",
    /// Watch dropped an event.
    Swallowed = "swallowed",
    /// List failed midway.
    ListBroken = "list-broken",
    /// Object deleted while the agent is down.
    DeletedDown = "deleted-down",
    /// Agent ended.
    AgentCrash = "agent-crash",
    /// Runtime restored.
    Restored = "restored",
    /// Control plane restored.
    ControlRestored = "kcp-restored",
    /// Receiver ended.
    ReceiverCrash = "receiver-crash",
    /// Receiver switched.
    Switch = "switch",
    /// Reconcile dropped.
    WorkDropped = "work-dropped",
    /// Reconcile failed, persisted.
    WorkFailed = "work-failed",
    /// Reconcile failed without a record.
    WorkLost = "work-lost",
    /// Reconcile succeeded.
    WorkDone = "work-done",
    /// Service silent.
    ServiceDead = "service-dead",
    /// Service slow.
    ServiceSlow = "service-slow",
    /// Service refused.
    ServiceRefused = "service-refused",
    /// Service accepted an event.
    Notified = "told",
}

macro_rules! points {
    ($($(#[doc = $doc:literal])+ $name:ident = $word:literal,)+) => {
        /// Kill points: each await of a process.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Point { $($(#[doc = $doc])+ $name,)+ }

        impl Point {
            /// All points.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// Returns the label.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $(Self::$name => $word),+ }
            }
        }
    };
}

points! {
    /// At any time.
    AgentAnywhere = "agent: anywhere",
    /// Before connecting.
    AgentConnecting = "agent: connecting",
    /// Request sent.
    AgentSent = "agent: request sent",
    /// Before reading an answer.
    AgentAnswered = "agent: answer on its way",
    /// Within a list.
    AgentListing = "agent: in a list",
    /// Before a watch event.
    AgentWatching = "agent: in a watch",
    /// Before storing the digest.
    AgentStoring = "agent: storing the digest",
    /// Digest stored.
    AgentStored = "agent: digest stored",
    /// Before storing names.
    AgentNaming = "agent: storing names",
    /// Names stored.
    AgentNamed = "agent: names stored",
    /// At any time.
    ReceiverAnywhere = "receiver: anywhere",
    /// Request read.
    ReceiverRead = "receiver: request read",
    /// Request processed.
    ReceiverProcessed = "receiver: request processed",
    /// Before reading the runtime.
    WorkBegun = "receiver: reconcile begun",
    /// Runtime read.
    WorkRead = "receiver: runtime read",
    /// Applied.
    WorkApplied = "receiver: applied",
    /// Failure persisted.
    WorkPersisted = "receiver: failure persisted",
    /// Before recording session or mark.
    Recording = "receiver: recording its session",
    /// Session or mark recorded.
    Recorded = "receiver: session recorded",
    /// Before a request to a manager.
    Forwarding = "receiver: request to a manager",
    /// Manager answered.
    Forwarded = "receiver: answer of a manager",
}

/// One step.
#[derive(Clone, Copy, Debug)]
pub struct Action {
    step: u64,
    at_ms: u64,
    kind: Kind,
    runtime: usize,
    detail: u64,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, at_ms, kind, runtime, detail } = self;
        let (seconds, millis) = (at_ms / 1000, at_ms % 1000);
        write!(f, "{step:>7} {seconds:>6}.{millis:03} s  {:<14} {runtime} {detail}", kind.word())
    }
}

/// Counts of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    steps: u64,
    kinds: Vec<u64>,
    crashes: Vec<u64>,
    /// Confirmed digest claims.
    pub confirmed: u64,
    /// Refused digest claims.
    pub refused: u64,
    /// Agents that know more than a restored control plane.
    pub beyond: u64,
    /// Agents that do not.
    pub within: u64,
    /// Objects that no agent could observe, at rests.
    pub unnoticed: u64,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            steps: 0,
            kinds: vec![0; Kind::ALL.len()],
            crashes: vec![0; Point::ALL.len()],
            confirmed: 0,
            refused: 0,
            beyond: 0,
            within: 0,
            unnoticed: 0,
        }
    }
}

impl Counts {
    /// Number of steps.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Number of each kind.
    pub fn kinds(&self) -> impl Iterator<Item = (Kind, u64)> {
        Kind::ALL.iter().copied().zip(self.kinds.iter().copied())
    }

    /// Number of crashes at each point.
    pub fn crashes(&self) -> impl Iterator<Item = (Point, u64)> {
        Point::ALL.iter().copied().zip(self.crashes.iter().copied())
    }

    /// Kinds below 1 % of all steps.
    #[must_use]
    pub fn rare(&self) -> Vec<&'static str> {
        self.kinds().filter(|(_, n)| n * 100 < self.steps).map(|(kind, _)| kind.word()).collect()
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.confirmed += other.confirmed;
        self.refused += other.refused;
        self.beyond += other.beyond;
        self.within += other.within;
        self.unnoticed += other.unnoticed;
        for (a, b) in self.kinds.iter_mut().zip(&other.kinds) {
            *a += b;
        }
        for (a, b) in self.crashes.iter_mut().zip(&other.crashes) {
            *a += b;
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "steps={}", self.steps)?;
        self.kinds().try_for_each(|(kind, n)| write!(f, " {}={n}", kind.word()))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Trace {
    pub(crate) counts: Counts,
    last: VecDeque<Action>,
    hash: u64,
}

impl Trace {
    pub(crate) fn add(&mut self, at_ms: u64, kind: Kind, runtime: usize, detail: u64) {
        self.counts.steps += 1;
        if let Some(count) = self.counts.kinds.get_mut(kind as usize) {
            *count += 1;
        }
        for word in [at_ms, kind as u64, runtime as u64, detail] {
            self.hash = (self.hash ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
        }
        if self.last.len() == REMEMBERED {
            self.last.pop_front();
        }
        self.last.push_back(Action { step: self.counts.steps, at_ms, kind, runtime, detail });
    }

    pub(crate) fn crashed(&mut self, point: Point) {
        if let Some(count) = self.counts.crashes.get_mut(point as usize) {
            *count += 1;
        }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn last(&self) -> Vec<Action> {
        self.last.iter().copied().collect()
    }
}
