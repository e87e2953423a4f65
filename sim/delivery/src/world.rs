//! Everything there is: the runtimes, the agents, the receivers, and what can go wrong with them.

use std::{
    cell::{Cell, RefCell},
    collections::HashSet,
    sync::{Arc, Weak},
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use tidewatch_agent::metrics::Metrics;
use tidewatch_wire::{Epoch, Seq, SessionId};
use tokio::{sync::watch, task::AbortHandle, time::Instant};

use crate::{
    agent::Agent,
    cluster::{Cluster, Kept},
    control::Control,
    forward::Service,
    mistake::Mistake,
    net::Wire,
    oracle::{Oracle, WATCHES},
    receiver::Receiver,
    rng::Rng,
    step::{Kind, Point, Trace},
};

/// Runtimes, and receivers.
pub(crate) const RUNTIMES: usize = 3;
pub(crate) const RECEIVERS: usize = 2;
/// A dead path is noticed within this, by pings.
const PINGS: Duration = Duration::from_secs(30);
/// What the wall clock shows when a run begins.
const EPOCH: i64 = 1_900_000_000;

thread_local! {
    static START: Cell<Option<Instant>> = const { Cell::new(None) };
    static JUMPED: Cell<i64> = const { Cell::new(0) };
    static JITTER: RefCell<Rng> = RefCell::new(Rng::new(0));
}

/// The wall clock, which jumps.
pub(crate) fn clock() -> Timestamp {
    let passed = START.get().map_or(0, |start| i64::try_from(start.elapsed().as_millis()).unwrap_or(0));
    Timestamp::from_millisecond(EPOCH * 1000 + passed + JUMPED.get() * 1000).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// The agents' randomness.
pub(crate) fn jitter() -> f64 {
    JITTER.with_borrow_mut(Rng::unit)
}

/// What the receivers think of a runtime's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Certificate {
    Good,
    /// The handshake fails.
    Distrusted,
    /// 401.
    Missing,
    /// 403: the registered domain is another one.
    OtherDomain,
}

/// A process that may be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Process {
    Agent(usize),
    Receiver(usize),
}

pub(crate) struct Runtime {
    /// What each watch shows.
    pub(crate) watched: [Cluster; WATCHES.len()],
    /// What the agent has stored.
    pub(crate) kept: Kept,
    pub(crate) backup: Kept,
    pub(crate) agent: Option<Agent>,
    /// Cut off from the receivers until then.
    pub(crate) partitioned: Option<Instant>,
    /// Its link is slow until then.
    pub(crate) slow: Option<Instant>,
    pub(crate) certificate: Certificate,
    /// It is good again then.
    pub(crate) refused: Option<Instant>,
    /// Which certificate is in use, and who hears of another one.
    pub(crate) material: u64,
    pub(crate) renewed: watch::Sender<()>,
    /// Tells the agent that it did not run for a while.
    pub(crate) resumed: watch::Sender<u64>,
    pub(crate) wires: Vec<Weak<Wire>>,
    pub(crate) epoch: Option<Epoch>,
    /// The session, and the highest mark of it, that the present agent was answered with last.
    pub(crate) heard: Option<(SessionId, u64)>,
    pub(crate) metrics: Metrics,
}

/// What goes wrong while all is quiet, because a script says so.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Directed {
    /// Watches leave out what happens.
    pub(crate) swallows: bool,
    /// Reconciles fail, and their failures are persisted.
    pub(crate) fails: bool,
}

pub(crate) struct State {
    pub(crate) rng: Rng,
    pub(crate) trace: Trace,
    pub(crate) oracle: Oracle,
    /// Nothing goes wrong any more, but what is directed.
    pub(crate) quiet: bool,
    pub(crate) directed: Directed,
    /// Whether the control plane is restored from backups, while things go wrong.
    pub(crate) restoring: bool,
    /// Whether receivers do not end.
    pub(crate) steady: bool,
    pub(crate) violation: Option<String>,
    pub(crate) runtimes: Vec<Runtime>,
    pub(crate) receivers: [Option<Arc<Receiver>>; RECEIVERS],
    /// Which one new connections go to.
    pub(crate) active: usize,
    /// The receivers have no room until then.
    pub(crate) overloaded: Option<Instant>,
    /// What is persisted in the control plane.
    pub(crate) control: Control,
    /// The other manager's.
    pub(crate) service: Service,
    /// For [`Mistake::FailedRequestIsForgotten`].
    pub(crate) forgotten: HashSet<(Epoch, Seq)>,
}

pub(crate) struct World {
    state: Mutex<State>,
    start: Instant,
    pub(crate) mistake: Option<Mistake>,
    pub(crate) listener: tidewatch_listener::Metrics,
}

impl World {
    pub(crate) fn new(
        seed: u64,
        mistake: Option<Mistake>,
        agents: Vec<Metrics>,
        listener: tidewatch_listener::Metrics,
    ) -> Arc<Self> {
        let start = Instant::now();
        START.set(Some(start));
        JUMPED.set(0);
        JITTER.set(Rng::new(seed ^ 0x5eed));
        let runtimes = agents.into_iter().map(|metrics| Runtime {
            watched: [Cluster::new(), Cluster::new()],
            kept: Kept::default(),
            backup: Kept::default(),
            agent: None,
            partitioned: None,
            slow: None,
            certificate: Certificate::Good,
            refused: None,
            material: 0,
            renewed: watch::Sender::new(()),
            resumed: watch::Sender::new(0),
            wires: Vec::new(),
            epoch: None,
            heard: None,
            metrics,
        });
        let state = State {
            rng: Rng::new(seed),
            trace: Trace::default(),
            oracle: Oracle::default(),
            quiet: true,
            directed: Directed::default(),
            restoring: false,
            steady: false,
            violation: None,
            runtimes: runtimes.collect(),
            receivers: [None, None],
            active: 0,
            overloaded: None,
            control: Control::default(),
            service: Service::default(),
            forgotten: HashSet::new(),
        };
        Arc::new(Self { state: Mutex::new(state), start, mistake, listener })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn at_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn step(&self, kind: Kind, runtime: usize, detail: u64) {
        let at = self.at_ms();
        self.lock().trace.add(at, kind, runtime, detail);
    }

    /// Whether this goes wrong now, in so many of a thousand cases. It is a step if it does.
    pub(crate) fn rolls(&self, runtime: usize, kind: Kind, per_mille: u64) -> bool {
        let at = self.at_ms();
        let mut state = self.lock();
        let hit = !state.quiet && state.rng.per_mille(per_mille);
        if hit {
            state.trace.add(at, kind, runtime, 0);
        }
        hit
    }

    pub(crate) fn violated(&self, what: impl FnOnce() -> String) {
        let mut state = self.lock();
        if state.violation.is_none() {
            state.violation = Some(what());
        }
    }

    pub(crate) fn jump_clock(&self) {
        let mut state = self.lock();
        let far = [2, 90, 4_000, 3_000_000][state.rng.index(4)];
        let by = i64::try_from(state.rng.below(2 * far)).unwrap_or(0) - i64::try_from(far).unwrap_or(0);
        // Kept within what a clock can show, however often it jumps.
        JUMPED.set((JUMPED.get() + by) % 100_000_000);
    }

    /// A place where the process may be killed, in so many of a thousand cases. It does not return then.
    pub(crate) async fn point(self: &Arc<Self>, point: Point, process: Process, per_mille: u64) {
        let hit = {
            let mut state = self.lock();
            let steady = state.steady && matches!(process, Process::Receiver(_));
            !state.quiet && !steady && state.rng.per_mille(per_mille)
        };
        if hit {
            self.crash(point, process);
            std::future::pending::<()>().await;
        }
    }

    /// Kills a process where it stands. Somebody starts it again later.
    pub(crate) fn crash(self: &Arc<Self>, point: Point, process: Process) {
        let at = self.at_ms();
        let mut state = self.lock();
        let (kind, number) = match process {
            Process::Agent(n) => (Kind::AgentCrash, n),
            Process::Receiver(n) => (Kind::ReceiverCrash, n),
        };
        let agent = match process {
            Process::Agent(n) => state.runtimes[n].agent.take(),
            Process::Receiver(_) => None,
        };
        let receiver = match process {
            Process::Receiver(n) => state.receivers[n].take(),
            Process::Agent(_) => None,
        };
        if agent.is_none() && receiver.is_none() {
            return;
        }
        state.trace.add(at, kind, number, point as u64);
        state.trace.crashed(point);
        let pause = state.rng.millis(1, 8_000);
        let wires = match process {
            Process::Agent(n) => std::mem::take(&mut state.runtimes[n].wires),
            Process::Receiver(_) => Vec::new(),
        };
        drop(state);
        drop(wires);
        // Outside of the lock: what ends there may want it.
        if let Some(agent) = agent {
            agent.kill();
        }
        if let Some(receiver) = receiver {
            receiver.kill();
            self.lost_receiver(&receiver);
        }
        let world = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            world.start(process);
        });
    }

    /// Starts a process, if it does not run.
    pub(crate) fn start(self: &Arc<Self>, process: Process) {
        match process {
            Process::Agent(n) => Agent::start(self, n),
            Process::Receiver(n) => Receiver::start(self, n),
        }
    }

    /// Agents see at once that a receiver has ended, or after the pings of a connection that is cut.
    pub(crate) fn lost_receiver(&self, receiver: &Arc<Receiver>) {
        let state = self.lock();
        for runtime in &state.runtimes {
            for wire in runtime.wires.iter().filter_map(Weak::upgrade) {
                if wire.leads_to(receiver) {
                    break_later(wire, runtime.partitioned.is_some());
                }
            }
        }
    }

    /// Cuts a runtime off; connections die of it when it lasts.
    pub(crate) fn partition(self: &Arc<Self>, runtime: usize, lasts: Duration) {
        let until = Instant::now() + lasts;
        let mut state = self.lock();
        state.runtimes[runtime].partitioned = Some(until);
        if lasts > PINGS {
            for wire in state.runtimes[runtime].wires.iter().filter_map(Weak::upgrade) {
                break_later(wire, true);
            }
        }
    }

    /// Ends what was to last until now.
    pub(crate) fn heal_what_is_due(&self) {
        let now = Instant::now();
        let mut state = self.lock();
        let quiet = state.quiet;
        let over = |until: Option<Instant>| until.filter(|until| *until > now && !quiet);
        for runtime in &mut state.runtimes {
            runtime.partitioned = over(runtime.partitioned);
            runtime.slow = over(runtime.slow);
            runtime.refused = over(runtime.refused);
            if runtime.refused.is_none() {
                runtime.certificate = Certificate::Good;
            }
            for cluster in runtime.watched.iter_mut().filter(|_| quiet) {
                cluster.stalled = cluster.stalled.min(now);
                cluster.changed.notify_waiters();
            }
        }
        state.overloaded = over(state.overloaded);
        state.service.dead = over(state.service.dead);
        state.service.slow = over(state.service.slow);
    }

    pub(crate) fn is_partitioned(&self, runtime: usize) -> bool {
        self.lock().runtimes[runtime].partitioned.is_some()
    }
}

fn break_later(wire: Arc<Wire>, cut_off: bool) {
    if cut_off {
        tokio::spawn(async move {
            tokio::time::sleep(PINGS).await;
            wire.break_now();
        });
    } else {
        wire.break_now();
    }
}

/// The tasks of a process, which end with it.
#[derive(Default)]
pub(crate) struct Tasks(Mutex<Vec<AbortHandle>>);

impl Tasks {
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let handle = tokio::spawn(task).abort_handle();
        let mut tasks = self.0.lock();
        if tasks.len() > 64 {
            tasks.retain(|task| !task.is_finished());
        }
        tasks.push(handle);
    }

    pub(crate) fn kill(&self) {
        for task in self.0.lock().drain(..) {
            task.abort();
        }
    }
}
