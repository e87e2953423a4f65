//! State of the simulation and its faults.

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

pub(crate) const RUNTIMES: usize = 3;
pub(crate) const RECEIVERS: usize = 2;
/// Time until pings detect a dead connection.
const PINGS: Duration = Duration::from_secs(30);
/// Initial wall clock, in Unix seconds.
const EPOCH: i64 = 1_900_000_000;

thread_local! {
    static START: Cell<Option<Instant>> = const { Cell::new(None) };
    static JUMPED: Cell<i64> = const { Cell::new(0) };
    static JITTER: RefCell<Rng> = RefCell::new(Rng::new(0));
}

pub(crate) fn clock() -> Timestamp {
    let passed = START.get().map_or(0, |start| i64::try_from(start.elapsed().as_millis()).unwrap_or(0));
    Timestamp::from_millisecond(EPOCH * 1000 + passed + JUMPED.get() * 1000).unwrap_or(Timestamp::UNIX_EPOCH)
}

pub(crate) fn jitter() -> f64 {
    JITTER.with_borrow_mut(Rng::unit)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Certificate {
    Good,
    /// The handshake fails.
    Distrusted,
    /// 401.
    Missing,
    /// 403: another domain is registered.
    OtherDomain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Process {
    Agent(usize),
    Receiver(usize),
}

pub(crate) struct Runtime {
    pub(crate) watched: [Cluster; WATCHES.len()],
    pub(crate) kept: Kept,
    pub(crate) backup: Kept,
    pub(crate) agent: Option<Agent>,
    /// Cut off until then.
    pub(crate) partitioned: Option<Instant>,
    pub(crate) slow: Option<Instant>,
    pub(crate) certificate: Certificate,
    /// Bad certificate until then.
    pub(crate) refused: Option<Instant>,
    /// Number of the certificate.
    pub(crate) material: u64,
    pub(crate) renewed: watch::Sender<()>,
    /// Suspensions of the machine.
    pub(crate) resumed: watch::Sender<u64>,
    pub(crate) wires: Vec<Weak<Wire>>,
    pub(crate) epoch: Option<Epoch>,
    /// From answers that the running agent received.
    pub(crate) last_answer: Option<LastAnswer>,
    pub(crate) metrics: Metrics,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct LastAnswer {
    pub(crate) session: SessionId,
    /// The session's highest mark.
    pub(crate) mark: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Directed {
    /// Watches drop events.
    pub(crate) swallows: bool,
    /// Reconciles fail and persist their failures.
    pub(crate) fails: bool,
}

pub(crate) struct State {
    pub(crate) rng: Rng,
    pub(crate) trace: Trace,
    pub(crate) oracle: Oracle,
    /// Only directed faults happen.
    pub(crate) quiet: bool,
    pub(crate) directed: Directed,
    /// The control plane is restored in this round.
    pub(crate) restoring: bool,
    /// Receivers stay alive.
    pub(crate) steady: bool,
    pub(crate) violation: Option<String>,
    pub(crate) runtimes: Vec<Runtime>,
    pub(crate) receivers: [Option<Arc<Receiver>>; RECEIVERS],
    /// Receiver of new connections.
    pub(crate) active: usize,
    /// No capacity until then.
    pub(crate) overloaded: Option<Instant>,
    pub(crate) control: Control,
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
            last_answer: None,
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

    /// Decides whether a fault happens. A fault is a step.
    pub(crate) fn happens(&self, runtime: usize, kind: Kind, per_mille: u64) -> bool {
        let at = self.at_ms();
        let mut state = self.lock();
        let hit = !state.quiet && state.rng.per_mille(per_mille);
        if hit {
            state.trace.add(at, kind, runtime, 0);
        }
        hit
    }

    pub(crate) fn violated(&self, violation: impl FnOnce() -> String) {
        let mut state = self.lock();
        if state.violation.is_none() {
            state.violation = Some(violation());
        }
    }

    pub(crate) fn jump_clock(&self) {
        let mut state = self.lock();
        let range = [2, 90, 4_000, 3_000_000][state.rng.index(4)];
        let by = i64::try_from(state.rng.below(2 * range)).unwrap_or(0) - i64::try_from(range).unwrap_or(0);
        // Stays in `Timestamp`'s range.
        JUMPED.set((JUMPED.get() + by) % 100_000_000);
    }

    /// Never returns if the process is killed.
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

    /// Kills a process for up to 8 s.
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
        // Outside the lock: destructors may take it.
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

    pub(crate) fn start(self: &Arc<Self>, process: Process) {
        match process {
            Process::Agent(n) => Agent::start(self, n),
            Process::Receiver(n) => Receiver::start(self, n),
        }
    }

    /// Breaks connections, after the pings if partitioned.
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

    pub(crate) fn partition(self: &Arc<Self>, runtime: usize, duration: Duration) {
        let until = Instant::now() + duration;
        let mut state = self.lock();
        state.runtimes[runtime].partitioned = Some(until);
        if duration > PINGS {
            for wire in state.runtimes[runtime].wires.iter().filter_map(Weak::upgrade) {
                break_later(wire, true);
            }
        }
    }

    pub(crate) fn heal_expired_faults(&self) {
        let now = Instant::now();
        let mut state = self.lock();
        let quiet = state.quiet;
        let still = |until: Option<Instant>| until.filter(|until| *until > now && !quiet);
        for runtime in &mut state.runtimes {
            runtime.partitioned = still(runtime.partitioned);
            runtime.slow = still(runtime.slow);
            runtime.refused = still(runtime.refused);
            if runtime.refused.is_none() {
                runtime.certificate = Certificate::Good;
            }
            for cluster in runtime.watched.iter_mut().filter(|_| quiet) {
                cluster.stalled = cluster.stalled.min(now);
                cluster.changed.notify_waiters();
            }
        }
        state.overloaded = still(state.overloaded);
        state.service.dead = still(state.service.dead);
        state.service.slow = still(state.service.slow);
    }

    pub(crate) fn is_partitioned(&self, runtime: usize) -> bool {
        self.lock().runtimes[runtime].partitioned.is_some()
    }
}

fn break_later(wire: Arc<Wire>, is_partitioned: bool) {
    if is_partitioned {
        tokio::spawn(async move {
            tokio::time::sleep(PINGS).await;
            wire.break_now();
        });
    } else {
        wire.break_now();
    }
}

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
