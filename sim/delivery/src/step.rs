//! What happens, counted and remembered.

use std::{collections::VecDeque, fmt};

/// Actions remembered for the report on a failure: those of a rest that is not reached, and as many before it.
const REMEMBERED: usize = 400;

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $name:ident = $word:literal,)+) => {
        /// The kinds of steps.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Kind { $($(#[doc = $doc])+ $name,)+ }

        impl Kind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// A word for it.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $(Self::$name => $word),+ }
            }
        }
    };
}

kinds! {
    /// An object is made.
    Create = "create",
    /// An object's spec changes.
    Update = "update",
    /// An object is deleted.
    Delete = "delete",
    /// An object is deleted and made again, with the generation it had.
    Recreate = "recreate",
    /// An object changes where nobody looks.
    Noise = "noise",
    /// A message (a connection, a request, an answer, a watch event) arrives.
    Delivered = "delivered",
    /// A message takes long.
    Slow = "slow",
    /// A request is lost before it is processed.
    RequestLost = "request-lost",
    /// The answer to a request that was processed is lost.
    AnswerLost = "answer-lost",
    /// A request arrives twice.
    Duplicated = "duplicated",
    /// A connection breaks.
    Reset = "reset",
    /// A TLS handshake fails.
    Handshake = "handshake",
    /// A message is swallowed by a partition.
    Partitioned = "partitioned",
    /// The certificate is refused.
    Certificate = "certificate",
    /// The receiver asks for patience.
    Overload = "overload",
    /// The wall clock jumps.
    ClockJump = "clock-jump",
    /// Time passes.
    Timer = "timer",
    /// A watch ends, and begins with a list.
    WatchEnded = "watch-ended",
    /// A watch tells nothing for a while.
    WatchStalled = "watch-stalled",
    /// A watch's version is too old: what happened meanwhile is lost, and a list begins.
    WatchExpired = "watch-410",
    /// A watch leaves an event out, and goes on.
    Swallowed = "swallowed",
    /// A list breaks off.
    ListBroken = "list-broken",
    /// An object that another manager hears of is deleted while the agent is down.
    DeletedDown = "deleted-down",
    /// An agent is killed, or ended.
    AgentCrash = "agent-crash",
    /// A runtime is restored from a backup.
    Restored = "restored",
    /// The control plane is restored from a backup.
    ControlRestored = "kcp-restored",
    /// A receiver is killed, or ended.
    ReceiverCrash = "receiver-crash",
    /// New connections go to the other receiver.
    Switch = "switch",
    /// A reconcile is dropped.
    WorkDropped = "work-dropped",
    /// A reconcile fails, and that is persisted.
    WorkFailed = "work-failed",
    /// A reconcile fails, and nobody is told.
    WorkLost = "work-lost",
    /// A reconcile is done.
    WorkDone = "work-done",
    /// Another manager's service does not answer.
    ServiceDead = "service-dead",
    /// Another manager's service takes long.
    ServiceSlow = "service-slow",
    /// Another manager's service answers anything but 200.
    ServiceRefused = "service-refused",
    /// Another manager's service has taken an event.
    Told = "told",
}

macro_rules! points {
    ($($(#[doc = $doc:literal])+ $name:ident = $word:literal,)+) => {
        /// Where a process may be killed: every await of its way.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Point { $($(#[doc = $doc])+ $name,)+ }

        impl Point {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// A word for it.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $(Self::$name => $word),+ }
            }
        }
    };
}

points! {
    /// The agent, at any time.
    AgentAnywhere = "agent: anywhere",
    /// The agent connects.
    AgentConnecting = "agent: connecting",
    /// The agent has written a request.
    AgentSent = "agent: request sent",
    /// The agent is about to read an answer.
    AgentAnswered = "agent: answer on its way",
    /// The agent has read a part of a list.
    AgentListing = "agent: in a list",
    /// The agent is about to read a watch event.
    AgentWatching = "agent: in a watch",
    /// The agent is about to store its digest.
    AgentStoring = "agent: storing the digest",
    /// The agent has stored its digest, and not said so.
    AgentStored = "agent: digest stored",
    /// The agent is about to store names.
    AgentNaming = "agent: storing names",
    /// The agent has stored names, and not said so.
    AgentNamed = "agent: names stored",
    /// The receiver, at any time.
    ReceiverAnywhere = "receiver: anywhere",
    /// The receiver has read a request.
    ReceiverRead = "receiver: request read",
    /// The receiver has processed a request and not answered.
    ReceiverProcessed = "receiver: request processed",
    /// A worker has begun and read nothing.
    WorkBegun = "receiver: reconcile begun",
    /// A worker has read the runtime and done nothing.
    WorkRead = "receiver: runtime read",
    /// A worker has applied and told nobody.
    WorkApplied = "receiver: applied",
    /// A worker has persisted a failure and told nobody.
    WorkPersisted = "receiver: failure persisted",
    /// The receiver is about to record its session or its mark.
    Recording = "receiver: recording its session",
    /// It has recorded that, and does not know.
    Recorded = "receiver: session recorded",
    /// A request to another manager is about to be made.
    Forwarding = "receiver: request to a manager",
    /// Another manager has answered, and nobody has looked.
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

/// How often what happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    steps: u64,
    kinds: Vec<u64>,
    crashes: Vec<u64>,
    /// Answers to an agent's claim to go on where an earlier run has ended.
    pub confirmed: u64,
    /// Those that asked for everything instead.
    pub refused: u64,
    /// Agents that had heard of more than a restored control plane knows, and have to tell everything.
    pub beyond: u64,
    /// Agents that had not; what failed since is looked at without them.
    pub within: u64,
    /// Objects that came and went while their watch told neither, found so at a rest.
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
    /// Steps in all.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Each kind and how often it happened.
    pub fn kinds(&self) -> impl Iterator<Item = (Kind, u64)> {
        Kind::ALL.iter().copied().zip(self.kinds.iter().copied())
    }

    /// Each place where processes were killed, and how often.
    pub fn crashes(&self) -> impl Iterator<Item = (Point, u64)> {
        Point::ALL.iter().copied().zip(self.crashes.iter().copied())
    }

    /// Kinds that are fewer than one step in a hundred.
    #[must_use]
    pub fn rare(&self) -> Vec<&'static str> {
        self.kinds().filter(|(_, n)| n * 100 < self.steps).map(|(kind, _)| kind.word()).collect()
    }

    /// Adds another run's.
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

/// The steps of a run.
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
