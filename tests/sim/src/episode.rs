//! One run from a seed: faults, then quiet, then faults again.

use crate::{
    mistake::Mistake,
    oracle::OBJECTS,
    step::{Action, Counts, Kind, Point},
    world::{Certificate, Process, RECEIVERS, RUNTIMES, World},
};
use std::{fmt, sync::Arc, time::Duration};
use tidewatch_agent::{metrics::Metrics, observe::condition::Conditions};
use tidewatch_telemetry::{BuildInfo, metrics::Registry};
use tokio::time::Instant;

/// After the last fault, everything must be reconciled and let go within this (of simulated time).
pub const REST_WITHIN: Duration = Duration::from_mins(10);
/// Steps with faults between two rests.
const FAULTY: u64 = 800;
/// Rests in an episode.
const RESTS: usize = 4;

/// What an episode did.
#[derive(Debug)]
pub struct Report {
    /// Its steps.
    pub counts: Counts,
    /// The same for the same seed, and for no other.
    pub hash: u64,
}

/// A rule was broken.
#[derive(Debug)]
pub struct Failure {
    /// The seed that shows it again.
    pub seed: u64,
    /// What was found.
    pub what: String,
    /// The steps until then.
    pub counts: Counts,
    /// The last of them.
    pub last: Vec<Action>,
    /// See [`Report::hash`].
    pub hash: u64,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, what, counts, last, hash: _ } = self;
        writeln!(f, "TIDEWATCH_SEED={seed} fails at step {}: {what}", counts.steps())?;
        last.iter().try_for_each(|action| writeln!(f, "{action}"))
    }
}

/// Plays the episode of a seed.
pub fn play(seed: u64, mistake: Option<Mistake>) -> anyhow::Result<Result<Report, Failure>> {
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
    // Every task ends before what it looks at.
    drop(clock);
    let state = world.lock();
    let (counts, hash) = (state.trace.counts.clone(), state.trace.hash());
    Ok(match state.violation.clone() {
        None => Ok(Report { counts, hash }),
        Some(what) => Err(Failure { seed, what, counts, last: state.trace.last(), hash }),
    })
}

async fn run(world: &Arc<World>) {
    for number in 0..RECEIVERS {
        world.start(Process::Receiver(number));
    }
    for runtime in 0..RUNTIMES {
        world.start(Process::Agent(runtime));
    }
    for _ in 0..RESTS {
        world.lock().quiet = false;
        let until = world.lock().trace.counts.steps() + FAULTY;
        while world.lock().trace.counts.steps() < until {
            act(world);
            let pause = pause(world);
            tokio::time::sleep(pause).await;
            world.heal_what_is_due();
            if world.lock().violation.is_some() {
                return;
            }
        }
        rest(world).await;
        restarts(world).await;
        rest(world).await;
        if world.lock().violation.is_some() {
            return;
        }
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

/// One thing that happens, or begins.
fn act(world: &Arc<World>) {
    let (choice, runtime, object, more) = {
        let mut state = world.lock();
        let rng = &mut state.rng;
        (
            rng.below(1000),
            rng.index(RUNTIMES),
            rng.index(OBJECTS),
            if rng.per_mille(850) { rng.below(4_000) } else { rng.below(45_000) },
        )
    };
    let lasts = Duration::from_millis(more);
    let until = Instant::now() + lasts;
    match choice {
        380..=439 => {
            world.step(Kind::Timer, runtime, more);
        }
        440..=479 => {
            world.step(Kind::ClockJump, runtime, more);
            world.jump_clock();
            if more % 4 == 0 {
                // As after a night in which nothing ran.
                let own = &mut world.lock().runtimes[runtime];
                own.resumed.send_modify(|pauses| *pauses += 1);
                own.cluster.ending = true;
                own.cluster.changed.notify_waiters();
            }
        }
        480..=519 => {
            world.step(Kind::WatchEnded, runtime, more);
            let cluster = &mut world.lock().runtimes[runtime].cluster;
            cluster.ending = true;
            cluster.changed.notify_waiters();
        }
        520..=564 => {
            world.step(Kind::WatchStalled, runtime, more);
            world.lock().runtimes[runtime].cluster.stalled = until;
        }
        565..=609 => {
            world.step(Kind::WatchExpired, runtime, more);
            let cluster = &mut world.lock().runtimes[runtime].cluster;
            (cluster.stalled, cluster.expiring) = (until + lasts * 2, true);
            cluster.changed.notify_waiters();
        }
        610..=649 => {
            world.step(Kind::Switch, runtime, more);
            world.switch();
        }
        650..=669 => {
            world.step(Kind::Overload, runtime, more);
            world.lock().overloaded = Some(until.min(Instant::now() + Duration::from_secs(3)));
        }
        670..=694 => {
            world.step(Kind::Partitioned, runtime, more);
            world.partition(runtime, lasts);
        }
        695..=719 => {
            world.step(Kind::Slow, runtime, more);
            world.lock().runtimes[runtime].slow = Some(until);
        }
        720..=744 => {
            let certificate = match more % 4 {
                0 => Certificate::Distrusted,
                1 => Certificate::Missing,
                2 => Certificate::OtherDomain,
                _ => Certificate::Good,
            };
            world.step(Kind::Certificate, runtime, more % 4);
            let own = &mut world.lock().runtimes[runtime];
            (own.certificate, own.refused) = (certificate, Some(until));
            own.material += 1;
            own.renewed.send_replace(());
        }
        745..=759 => world.crash(Point::AgentAnywhere, Process::Agent(runtime)),
        760..=779 => world.restart_agent(runtime),
        780..=799 => world.crash(Point::ReceiverAnywhere, Process::Receiver(runtime % RECEIVERS)),
        800..=819 => world.restart_receiver(runtime % RECEIVERS),
        820..=874 => restore(world, runtime, more),
        _ => change(world, runtime, object, choice % 11),
    }
}

/// A backup is made, or a runtime or the control plane is restored from one.
fn restore(world: &Arc<World>, runtime: usize, more: u64) {
    match more % 16 {
        0..=3 => {
            world.step(Kind::Timer, runtime, more);
            world.lock().runtimes[runtime].cluster.back_up();
        }
        4..=14 => {
            world.step(Kind::Restored, runtime, more);
            // Everything in it begins anew.
            world.crash(Point::AgentAnywhere, Process::Agent(runtime));
            let mut state = world.lock();
            for (object, exists) in state.runtimes[runtime].cluster.restore() {
                state.oracle.changed((runtime, object), exists);
            }
        }
        _ => {
            world.step(Kind::Restored, 9, more);
            world.restore_control_plane();
        }
    }
}

fn change(world: &World, runtime: usize, object: usize, what: u64) {
    let at = world.at_ms();
    let mut state = world.lock();
    let state = &mut *state;
    let cluster = &mut state.runtimes[runtime].cluster;
    let (kind, changes): (_, &[bool]) = match what {
        _ if !cluster.exists(object) => (Kind::Create, &[true]),
        0..=4 => (Kind::Update, &[true]),
        5 | 6 => (Kind::Delete, &[false]),
        7 | 8 => (Kind::Recreate, &[false, true]),
        _ => (Kind::Noise, &[]),
    };
    match kind {
        Kind::Create => cluster.create(object),
        Kind::Update => cluster.update(object),
        Kind::Delete => cluster.delete(object),
        Kind::Recreate => cluster.recreate(object),
        _ => cluster.touch(object),
    }
    state.trace.add(at, kind, runtime, object as u64);
    for exists in changes {
        state.oracle.changed((runtime, object), *exists);
    }
}

/// Agents end when nothing is open, and something happens, or nothing, before they are there again.
async fn restarts(world: &Arc<World>) {
    let pause = world.lock().rng.millis(0, 90_000);
    tokio::time::sleep(pause).await;
    for runtime in 0..RUNTIMES {
        let (how, changes) = {
            let rng = &mut world.lock().rng;
            (rng.below(3), [None, None, Some((rng.index(OBJECTS), rng.below(10)))][rng.index(3)])
        };
        // A backup from a calm hour has a digest that was confirmed once.
        let backup = world.lock().rng.below(4);
        match backup {
            0 => world.lock().runtimes[runtime].cluster.back_up(),
            1 => restore(world, runtime, 4),
            _ => {}
        }
        match how {
            0 => {}
            1 => world.crash(Point::AgentAnywhere, Process::Agent(runtime)),
            _ => world.restart_agent(runtime),
        }
        if let Some((object, what)) = changes {
            change(world, runtime, object, what);
        }
    }
    tokio::time::sleep(Duration::from_secs(9)).await;
}

/// Nothing goes wrong any more: all must come to rest.
async fn rest(world: &Arc<World>) {
    world.lock().quiet = true;
    world.heal_what_is_due();
    for number in 0..RECEIVERS {
        world.start(Process::Receiver(number));
    }
    for runtime in 0..RUNTIMES {
        world.start(Process::Agent(runtime));
    }
    let begun = Instant::now();
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        if world.lock().violation.is_some() {
            return;
        }
        let open = open(world);
        if open.is_empty() {
            return;
        }
        if begun.elapsed() > REST_WITHIN {
            return world.violated(|| format!("does not come to rest: {}", open.join("; ")));
        }
    }
}

fn open(world: &World) -> Vec<String> {
    let state = world.lock();
    let shown = |(runtime, object): (usize, usize)| state.runtimes[runtime].cluster.shown.contains(&object);
    let mut open = state.oracle.behind(shown);
    for (number, runtime) in state.runtimes.iter().enumerate() {
        match &runtime.agent {
            None => open.push(format!("agent {number} does not run")),
            Some(agent) if agent.dirty() > 0 => {
                open.push(format!("agent {number}: {} dirty", agent.dirty()));
            }
            Some(_) => {}
        }
    }
    open.extend(state.receivers.iter().flatten().filter_map(|receiver| receiver.open()));
    open
}
