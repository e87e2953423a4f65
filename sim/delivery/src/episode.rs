//! One run of a seed: rounds of faults and rests.

use std::{fmt, sync::Arc, time::Duration};

use tidewatch_agent::{metrics::Metrics, observe::condition::Conditions};
use tidewatch_telemetry::{BuildInfo, metrics::Registry};
use tokio::time::Instant;

use crate::{
    cluster::Cluster,
    mistake::Mistake,
    oracle::{OBJECTS, OWN, Object, watch_of},
    step::{Action, Counts, Kind, Point},
    world::{Certificate, Process, RECEIVERS, RUNTIMES, State, World},
};

/// Limit to finish all work after the faults, in simulated time.
pub const REST_WITHIN: Duration = Duration::from_mins(10);
/// Steps of a round.
const FAULTY: u64 = 1_200;
/// Steps without receiver restarts before a restore.
const STEADY: u64 = 150;
/// Rounds of an episode.
const RESTS: usize = 4;

/// Result of an episode.
#[derive(Debug)]
pub struct Report {
    /// Step counts.
    pub counts: Counts,
    /// Hash of all steps.
    pub hash: u64,
}

/// A violated rule.
#[derive(Debug)]
pub struct Failure {
    /// Seed that reproduces it.
    pub seed: u64,
    /// The violated rule.
    pub violation: String,
    /// Steps until then.
    pub counts: Counts,
    /// Last steps.
    pub last: Vec<Action>,
    /// See [`Report::hash`].
    pub hash: u64,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, violation, counts, last, hash: _ } = self;
        writeln!(f, "TIDEWATCH_SEED={seed} fails at step {}: {violation}", counts.steps())?;
        last.iter().try_for_each(|action| writeln!(f, "{action}"))
    }
}

/// Plays the episode of a seed.
pub fn play(seed: u64, mistake: Option<Mistake>) -> anyhow::Result<Result<Report, Failure>> {
    simulate(seed, mistake, run)
}

pub(crate) fn simulate(
    seed: u64,
    mistake: Option<Mistake>,
    run: impl AsyncFnOnce(&Arc<World>),
) -> anyhow::Result<Result<Report, Failure>> {
    let clock = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    let build = BuildInfo::new("sim", "0");
    let agents =
        (0..RUNTIMES).map(|_| Ok(Metrics::register(&Registry::new("sim", build)?, &Conditions::new())?));
    let agents = agents.collect::<anyhow::Result<Vec<_>>>()?;
    let listener = tidewatch_listener::Metrics::register(&Registry::new("sim", build)?)?;
    let world = clock.block_on(async {
        let world = World::new(seed, mistake, agents, listener);
        run(&world).await;
        world
    });
    // Ends tasks before the world.
    drop(clock);
    let state = world.lock();
    let (counts, hash) = (state.trace.counts.clone(), state.trace.hash());
    Ok(match state.violation.clone() {
        None => Ok(Report { counts, hash }),
        Some(violation) => Err(Failure { seed, violation, counts, last: state.trace.last(), hash }),
    })
}

async fn run(world: &Arc<World>) {
    start(world);
    for _ in 0..RESTS {
        {
            let mut state = world.lock();
            // Not always: resyncs after a restore hide other losses.
            (state.quiet, state.restoring) = (false, state.rng.per_mille(550));
        }
        faults(world, FAULTY).await;
        if world.lock().restoring {
            // Only the mark reveals failures hidden by a backup of the current session.
            world.lock().steady = true;
            world.back_up_control_plane();
            faults(world, STEADY).await;
            world.step(Kind::ControlRestored, 9, 0);
            world.lock().steady = false;
            world.restore_control_plane(true);
        }
        rest(world).await;
        // Later steps would hide the cause.
        if world.lock().violation.is_some() {
            return;
        }
        restarts(world).await;
        rest(world).await;
        if world.lock().violation.is_some() {
            return;
        }
    }
}

fn start(world: &Arc<World>) {
    for number in 0..RECEIVERS {
        world.start(Process::Receiver(number));
    }
    for runtime in 0..RUNTIMES {
        world.start(Process::Agent(runtime));
    }
}

async fn faults(world: &Arc<World>, steps: u64) {
    let until = world.lock().trace.counts.steps() + steps;
    while world.lock().trace.counts.steps() < until && world.lock().violation.is_none() {
        act(world);
        let pause = pause(world);
        tokio::time::sleep(pause).await;
        world.heal_expired_faults();
    }
}

fn pause(world: &World) -> Duration {
    let rng = &mut world.lock().rng;
    match rng.below(100) {
        0..=69 => rng.millis(0, 300),
        70..=97 => rng.millis(300, 3_000),
        _ => rng.millis(3_000, 45_000),
    }
}

/// Random choices of one action.
#[derive(Clone, Copy)]
struct Draw {
    /// From 0 to 999.
    action: u64,
    runtime: usize,
    object: usize,
    /// Duration of a fault in milliseconds; also decides between variants.
    detail: u64,
}

impl Draw {
    fn new(world: &World) -> Self {
        let rng = &mut world.lock().rng;
        Self {
            action: rng.below(1000),
            runtime: rng.index(RUNTIMES),
            object: rng.index(OBJECTS),
            detail: if rng.per_mille(850) { rng.below(4_000) } else { rng.below(45_000) },
        }
    }

    fn duration(self) -> Duration {
        Duration::from_millis(self.detail)
    }

    fn until(self) -> Instant {
        Instant::now() + self.duration()
    }
}

fn act(world: &Arc<World>) {
    let draw = Draw::new(world);
    let Draw { action, runtime, object, detail } = draw;
    let (restoring, steady) = {
        let state = world.lock();
        (state.restoring && !state.steady, state.steady)
    };
    match action {
        0..=54 | 860..=909 if restoring => restore_control(world, detail),
        385..=424 => world.step(Kind::Timer, runtime, detail),
        425..=468 => jump_clock(world, draw),
        469..=603 => disturb_watch(world, draw),
        604..=649 | 774..=804 if steady => world.step(Kind::Timer, runtime, detail),
        604..=649 => {
            world.step(Kind::Switch, runtime, detail);
            world.switch();
        }
        650..=746 => disturb_network(world, draw),
        747..=756 => world.crash(Point::AgentAnywhere, Process::Agent(runtime)),
        757..=773 => world.restart_agent(runtime),
        774..=789 => world.crash(Point::ReceiverAnywhere, Process::Receiver(runtime % RECEIVERS)),
        790..=804 => world.restart_receiver(runtime % RECEIVERS),
        805..=859 if detail % 8 == 0 => {
            world.step(Kind::Timer, runtime, detail);
            back_up(world, runtime);
        }
        805..=859 => restore_runtime(world, runtime, detail),
        910..=957 => delete_unseen(world, runtime, object),
        958..=972 => {
            world.step(Kind::ServiceDead, 9, detail);
            world.lock().service.dead = Some(draw.until());
        }
        973..=987 => {
            world.step(Kind::ServiceSlow, 9, detail);
            world.lock().service.slow = Some(draw.until());
        }
        _ => change(world, runtime, object, action % 12),
    }
}

fn jump_clock(world: &World, draw: Draw) {
    world.step(Kind::ClockJump, draw.runtime, draw.detail);
    world.jump_clock();
    if draw.detail.is_multiple_of(4) {
        // The machine was suspended.
        let own = &mut world.lock().runtimes[draw.runtime];
        own.resumed.send_modify(|pauses| *pauses += 1);
        for cluster in &mut own.watched {
            cluster.ending = true;
            cluster.changed.notify_waiters();
        }
    }
}

fn disturb_watch(world: &World, draw: Draw) {
    let kind = match draw.action {
        469..=516 => Kind::WatchEnded,
        517..=561 => Kind::WatchStalled,
        _ => Kind::WatchExpired,
    };
    world.step(kind, draw.runtime, draw.detail);
    let cluster = &mut world.lock().runtimes[draw.runtime].watched[watch_of(draw.object)];
    match kind {
        Kind::WatchEnded => cluster.ending = true,
        Kind::WatchStalled => {
            cluster.stalled = draw.until();
            return;
        }
        _ => (cluster.stalled, cluster.expiring) = (draw.until() + draw.duration() * 2, true),
    }
    cluster.changed.notify_waiters();
}

fn disturb_network(world: &Arc<World>, draw: Draw) {
    let Draw { runtime, detail, .. } = draw;
    match draw.action {
        650..=669 => {
            world.step(Kind::Overload, runtime, detail);
            world.lock().overloaded = Some(draw.until().min(Instant::now() + Duration::from_secs(3)));
        }
        670..=694 => {
            world.step(Kind::Partitioned, runtime, detail);
            world.partition(runtime, draw.duration());
        }
        695..=715 => {
            world.step(Kind::Slow, runtime, detail);
            world.lock().runtimes[runtime].slow = Some(draw.until());
        }
        _ => {
            let certificate = match detail % 4 {
                0 => Certificate::Distrusted,
                1 => Certificate::Missing,
                2 => Certificate::OtherDomain,
                _ => Certificate::Good,
            };
            world.step(Kind::Certificate, runtime, detail % 4);
            let own = &mut world.lock().runtimes[runtime];
            (own.certificate, own.refused) = (certificate, Some(draw.until()));
            own.material += 1;
            own.renewed.send_replace(());
        }
    }
}

/// Restores the last backup, or a new one after up to 2 minutes.
fn restore_control(world: &Arc<World>, detail: u64) {
    if detail.is_multiple_of(6) {
        world.step(Kind::ControlRestored, 9, detail);
        return world.restore_control_plane(!detail.is_multiple_of(3));
    }
    world.step(Kind::Timer, 9, detail);
    world.back_up_control_plane();
    let after = world.lock().rng.millis(1, 120_000);
    let world = Arc::clone(world);
    tokio::spawn(async move {
        tokio::time::sleep(after).await;
        let continues = {
            let state = world.lock();
            !state.quiet && !state.steady
        };
        if continues {
            world.step(Kind::ControlRestored, 9, detail);
            world.restore_control_plane(!detail.is_multiple_of(3));
        }
    });
}

fn back_up(world: &World, runtime: usize) {
    let own = &mut world.lock().runtimes[runtime];
    own.backup = own.kept.clone();
    own.watched.iter_mut().for_each(Cluster::back_up);
}

fn restore_runtime(world: &Arc<World>, runtime: usize, detail: u64) {
    world.step(Kind::Restored, runtime, detail);
    world.crash(Point::AgentAnywhere, Process::Agent(runtime));
    let mut state = world.lock();
    let State { runtimes, oracle, .. } = &mut *state;
    let own = &mut runtimes[runtime];
    own.kept = own.backup.clone();
    for cluster in &mut own.watched {
        for (number, exists) in cluster.restore() {
            oracle.changed(Object { runtime, number }, exists);
        }
    }
    oracle.names_restored(runtime, |object| own.kept.names_object(object));
}

/// Deletes another manager's object while the agent is down.
fn delete_unseen(world: &Arc<World>, runtime: usize, object: usize) {
    world.crash(Point::AgentAnywhere, Process::Agent(runtime));
    let parts = OBJECTS - OWN;
    let exists = |n: &usize| world.lock().runtimes[runtime].watched[watch_of(*n)].exists(*n);
    let found = (0..parts).map(|n| OWN + (object + n) % parts).find(exists);
    // Change 5 is a deletion.
    change(world, runtime, found.unwrap_or(OWN + object % parts), 5);
}

/// `choice`: from 0 to 11; 0 is an update, 5 a deletion.
pub(crate) fn change(world: &World, runtime: usize, object: usize, choice: u64) {
    let at = world.at_ms();
    let mut state = world.lock();
    let state = &mut *state;
    let down = state.runtimes[runtime].agent.is_none() && watch_of(object) > 0;
    let cluster = &mut state.runtimes[runtime].watched[watch_of(object)];
    let (kind, changes): (_, &[bool]) = match choice {
        _ if !cluster.exists(object) => (Kind::Create, &[true]),
        0..=2 => (Kind::Update, &[true]),
        3..=5 if down => (Kind::DeletedDown, &[false]),
        3..=5 => (Kind::Delete, &[false]),
        6..=8 => (Kind::Recreate, &[false, true]),
        _ => (Kind::Noise, &[]),
    };
    match kind {
        Kind::Create => cluster.create(object),
        Kind::Update => cluster.update(object),
        Kind::Delete | Kind::DeletedDown => cluster.delete(object),
        Kind::Recreate => cluster.recreate(object),
        _ => cluster.touch(object),
    }
    state.trace.add(at, kind, runtime, object as u64);
    for exists in changes {
        state.oracle.changed(Object { runtime, number: object }, *exists);
    }
}

async fn restarts(world: &Arc<World>) {
    let pause = world.lock().rng.millis(0, 90_000);
    tokio::time::sleep(pause).await;
    for runtime in 0..RUNTIMES {
        let (restart, changes) = {
            let rng = &mut world.lock().rng;
            (rng.below(5), [None, None, Some((rng.index(OBJECTS), rng.below(10)))][rng.index(3)])
        };
        // A backup at rest holds a confirmed digest.
        let backup = world.lock().rng.below(4);
        match backup {
            0 => back_up(world, runtime),
            1 => restore_runtime(world, runtime, 4),
            _ => {}
        }
        match restart {
            0 => {}
            1 | 2 => world.crash(Point::AgentAnywhere, Process::Agent(runtime)),
            _ => world.restart_agent(runtime),
        }
        if let Some((object, choice)) = changes {
            change(world, runtime, object, choice);
        }
    }
    tokio::time::sleep(Duration::from_secs(9)).await;
}

/// Ends all faults and requires all work to finish.
pub(crate) async fn rest(world: &Arc<World>) {
    world.lock().quiet = true;
    world.heal_expired_faults();
    start(world);
    let (begun, after) = (Instant::now(), world.lock().trace.counts.steps());
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        if world.lock().violation.is_some() {
            return;
        }
        let unfinished = unfinished(world);
        if unfinished.is_empty() {
            let mut state = world.lock();
            // Objects that no agent could observe.
            let unnoticed = state.oracle.behind(shown(&state), |_, _| false).len();
            state.trace.counts.unnoticed += unnoticed as u64;
            return;
        }
        if begun.elapsed() > REST_WITHIN {
            return world
                .violated(|| format!("does not come to rest after step {after}: {}", unfinished.join("; ")));
        }
    }
}

fn shown(state: &State) -> impl Fn(Object) -> bool {
    |Object { runtime, number }| state.runtimes[runtime].watched[watch_of(number)].shown.contains(&number)
}

fn unfinished(world: &World) -> Vec<String> {
    let state = world.lock();
    let unnoticed = |object: Object, change: u64| {
        let Object { runtime, number } = object;
        state.runtimes[runtime].watched[watch_of(number)].unnoticed.get(&number) == Some(&change)
    };
    let mut unfinished = state.oracle.behind(shown(&state), unnoticed);
    for (number, runtime) in state.runtimes.iter().enumerate() {
        match &runtime.agent {
            None => unfinished.push(format!("agent {number} does not run")),
            Some(agent) if agent.dirty() > 0 => {
                unfinished.push(format!("agent {number}: {} dirty", agent.dirty()));
            }
            Some(_) => {}
        }
    }
    unfinished.extend(state.receivers.iter().flatten().filter_map(|receiver| receiver.unfinished()));
    unfinished
}
