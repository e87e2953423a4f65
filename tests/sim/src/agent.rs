//! An agent: the production sender and the production watcher, with a transport and a watch of ours.

use crate::{
    cluster,
    mistake::Mistake,
    net::Net,
    step::{Kind, Point},
    world::{Process, Tasks, World, clock, jitter},
};
use kube::api::ApiResource;
use parking_lot::Mutex;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tidewatch_agent::{
    config::{self, Field},
    digest::{self, Found, Shelf},
    observe::{
        condition::Conditions,
        resolve::Resolved,
        told::Told,
        watch::{Shared, Watcher},
    },
    send::{Progress, Sender, Settings},
};
use tidewatch_delivery::outbox::{KeepNames, Outbox};
use tidewatch_drain::Drain;
use tidewatch_telemetry::Readiness;
use tidewatch_wire::Epoch;
use tokio::sync::mpsc;

/// Changes between watch and sender; few, so that the watch has to wait.
const CHANNEL: usize = 2;
const WATCH: &str = "things";
/// For the watch to list before the digest is claimed.
const LISTING: Duration = Duration::from_secs(10);

pub(crate) struct Agent {
    tasks: Tasks,
    drain: Drain,
    progress: Arc<Mutex<Progress>>,
}

impl Agent {
    pub(crate) fn start(world: &Arc<World>, runtime: usize) {
        let (epoch, max_dirty, metrics, resumed) = {
            let mut state = world.lock();
            let state = &mut *state;
            let own = &mut state.runtimes[runtime];
            if own.agent.is_some() {
                return;
            }
            let fresh = Epoch::from_bits(state.rng.bits());
            let kept = own.epoch.filter(|_| world.mistake == Some(Mistake::SameEpochAfterACrash));
            if let Some(old) = own.epoch {
                state.oracle.epoch_ended(old);
            }
            let epoch = kept.unwrap_or(fresh);
            own.epoch = Some(epoch);
            own.cluster.shown.clear();
            let max_dirty = if state.rng.per_mille(250) { 2 } else { 1_000_000 };
            (epoch, max_dirty, own.metrics.clone(), own.resumed.subscribe())
        };
        let readiness = Readiness::new();
        let (changes, taken) = mpsc::channel(CHANNEL);
        let net = Net::new(world, runtime);
        let settings = Settings { max_dirty, ..Settings::default() };
        let outbox = Outbox::new(epoch, BTreeMap::new());
        let guard = readiness.register("receiver");
        let told = resumed.clone();
        let sender = Sender::new(outbox, taken, net, settings, metrics.clone(), clock, guard, told);
        let (shelf, memory) = digest::memory();
        let sender = sender.with_jitter(jitter).with_memory(memory, KeepNames::OfOthers);
        let conditions = Conditions::new();
        let baseline = sender.baseline();
        let agent = Self { tasks: Tasks::default(), drain: Drain::new(), progress: sender.progress() };
        agent.tasks.spawn(sender.run(agent.drain.watch()));
        agent.tasks.spawn(keep(Arc::clone(world), runtime, conditions.clone(), shelf));
        let changes = match world.mistake {
            Some(Mistake::FirstListIsNotReported) => after_the_first_list(&agent.tasks, changes),
            _ => changes,
        };
        let keep_names = KeepNames::OfOthers;
        let shared = Shared { changes, baseline, conditions, keep_names, metrics, clock, resumed };
        let watcher = Watcher::new(spec(), 1_000, shared, readiness.register(WATCH));
        agent.tasks.spawn(watch(Arc::clone(world), runtime, watcher));
        world.lock().runtimes[runtime].agent = Some(agent);
    }

    /// Ends at the next await, whatever it waits for.
    pub(crate) fn kill(&self) {
        self.tasks.kill();
    }

    /// Is asked to end, as before an update.
    pub(crate) fn end(&self) {
        self.drain.begin();
    }

    /// Keys that are not acknowledged.
    pub(crate) fn dirty(&self) -> usize {
        self.progress.lock().dirty
    }
}

async fn watch(world: Arc<World>, runtime: usize, mut watcher: Watcher) {
    let resolved = Resolved { resource: resource(), namespaced: true };
    while watcher.feed(cluster::watch(Arc::clone(&world), runtime), &resolved).await {
        let pause = world.lock().rng.millis(500, 2_000);
        tokio::time::sleep(pause).await;
    }
}

/// The digest's keeper, on a ConfigMap of ours.
async fn keep(world: Arc<World>, runtime: usize, conditions: Conditions, shelf: Shelf) {
    let Shelf { found, mut snapshots, stored, .. } = shelf;
    let delay = world.lock().rng.millis(1, 100);
    tokio::time::sleep(delay).await;
    let left = world.lock().runtimes[runtime].cluster.digest.clone();
    let listed = async {
        while !conditions.settled() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let _in_time = tokio::time::timeout(LISTING, listed).await;
    if found.send(Found { digest: left, ..Found::default() }).is_err() {
        return;
    }
    while snapshots.changed().await.is_ok() {
        let Some(snapshot) = snapshots.borrow_and_update().clone() else { continue };
        world.point(Point::AgentStoring, Process::Agent(runtime), 30).await;
        let (delay, again) = {
            let mut state = world.lock();
            let refused = !state.quiet && state.rng.per_mille(200);
            (state.rng.millis(5, 500), refused.then(|| state.rng.millis(500, 5_000)))
        };
        tokio::time::sleep(delay + again.unwrap_or_default()).await;
        world.lock().runtimes[runtime].cluster.digest = Some((*snapshot).clone());
        world.point(Point::AgentStored, Process::Agent(runtime), 30).await;
        tokio::time::sleep(delay).await;
        stored.send_replace(Some(snapshot.0.serial));
    }
}

/// Swallows what comes in the first half second.
fn after_the_first_list(tasks: &Tasks, changes: mpsc::Sender<Told>) -> mpsc::Sender<Told> {
    let (shim, mut first) = mpsc::channel::<Told>(CHANNEL);
    let open = tokio::time::Instant::now() + Duration::from_millis(500);
    tasks.spawn(async move {
        while let Some(told) = first.recv().await {
            if tokio::time::Instant::now() >= open && changes.send(told).await.is_err() {
                return;
            }
        }
    });
    shim
}

fn spec() -> config::Watch {
    config::Watch {
        name: WATCH.into(),
        route: "engine".into(),
        group: "g.example".into(),
        version: "*".into(),
        resource: "things".into(),
        field: Field::Spec,
        labels: BTreeMap::new(),
        namespace: None,
    }
}

fn resource() -> ApiResource {
    ApiResource {
        group: "g.example".into(),
        version: "v1".into(),
        api_version: "g.example/v1".into(),
        kind: "Thing".into(),
        plural: "things".into(),
    }
}

impl World {
    /// Asks an agent to end, and starts it again.
    pub(crate) fn restart_agent(self: &Arc<Self>, runtime: usize) {
        let (agent, pause) = {
            let mut state = self.lock();
            (state.runtimes[runtime].agent.take(), state.rng.millis(1, 3_000))
        };
        let Some(agent) = agent else { return };
        self.step(Kind::AgentCrash, runtime, 100);
        agent.end();
        let world = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            agent.kill();
            world.start(Process::Agent(runtime));
        });
    }
}
