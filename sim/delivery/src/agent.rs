//! Production sender and watcher with simulated transport and watch.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::FutureExt;
use kube::api::ApiResource;
use parking_lot::Mutex;
use tidewatch_agent::{
    config::{self, Field},
    digest,
    observe::{
        condition::Conditions,
        message::{Baseline, Message},
        resolve::Resolved,
        watch::{Beside, Shared, Watcher},
    },
    send::{Progress, Sender, Settings},
};
use tidewatch_delivery::outbox::{KeepNames, Outbox};
use tidewatch_drain::Drain;
use tidewatch_telemetry::Readiness;
use tidewatch_wire::{Epoch, Route};
use tokio::sync::{
    mpsc,
    watch::{self, Receiver},
};

use crate::{
    cluster::{self, Cluster, Watch},
    keep::keep,
    mistake::Mistake,
    net::Net,
    oracle::{MANAGER, WATCHES},
    step::Kind,
    world::{Process, Tasks, World, clock, jitter},
};

/// Small, so that the watch must wait.
const CHANNEL: usize = 2;
/// Interval of checking lists.
const CHECK: Duration = Duration::from_mins(1);

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
            let reused = own.epoch.filter(|_| world.mistake == Some(Mistake::SameEpochAfterACrash));
            if let Some(old) = own.epoch {
                state.oracle.epoch_ended(old);
            }
            let epoch = reused.unwrap_or(fresh);
            own.epoch = Some(epoch);
            own.last_answer = None;
            own.watched.iter_mut().for_each(Cluster::forgotten);
            let max_dirty = if state.rng.per_mille(250) { 2 } else { 1_000_000 };
            (epoch, max_dirty, own.metrics.clone(), own.resumed.subscribe())
        };
        let readiness = Readiness::new();
        let (changes, received) = mpsc::channel(CHANNEL);
        let net = Net::new(world, runtime);
        let settings = Settings { max_dirty, ..Settings::default() };
        let outbox =
            Outbox::new(epoch, BTreeMap::from([(WATCHES[1].to_owned(), vec![Route::manager(MANAGER)])]));
        let guard = readiness.register("receiver");
        let sender_resumed = resumed.clone();
        let sender =
            Sender::new(outbox, received, net, settings, metrics.clone(), clock, guard, sender_resumed);
        let (shelf, memory) = digest::memory();
        let conditions = Conditions::new();
        let observed = conditions.clone();
        let sender = sender.with_watches(move |watch| observed.get(watch)?.last_data);
        let sender = sender.with_jitter(jitter).with_memory(memory, KeepNames::OfOthers);
        let baseline = sender.baseline();
        let agent = Self { tasks: Tasks::default(), drain: Drain::new(), progress: sender.progress() };
        agent.tasks.spawn(sender.run(agent.drain.watch()));
        // Register both before one is ready.
        let unready = WATCHES.map(|watch| readiness.register(watch));
        let keep_names = KeepNames::OfOthers;
        let changes = match world.mistake {
            Some(Mistake::FirstListIsNotReported) => after_the_first_list(&agent.tasks, changes),
            _ => changes,
        };
        let shared = Shared {
            changes,
            baseline,
            conditions: conditions.clone(),
            keep_names,
            metrics,
            clock,
            check_every: CHECK,
            resumed,
        };
        let baselines = one_per_watch(&agent.tasks, shared.baseline.clone());
        for (number, (unready, baseline)) in unready.into_iter().zip(baselines).enumerate() {
            let shared = Shared { baseline, ..shared.clone() };
            let watcher = Watcher::new(spec(number), 1_000, shared, unready);
            let watch = Watch { runtime, number, conditions: conditions.clone() };
            agent.tasks.spawn(observe(Arc::clone(world), watch, watcher));
        }
        // Waits for the watches above.
        agent.tasks.spawn(keep(Arc::clone(world), runtime, conditions, shelf));
        world.lock().runtimes[runtime].agent = Some(agent);
    }

    pub(crate) fn kill(&self) {
        self.tasks.kill();
    }

    pub(crate) fn end(&self) {
        self.drain.begin();
    }

    pub(crate) fn dirty(&self) -> usize {
        self.progress.lock().dirty
    }
}

async fn observe(world: Arc<World>, watch: Watch, mut watcher: Watcher) {
    let Watch { runtime, number, .. } = watch;
    let resolved = Resolved { resource: resource(number), namespaced: true };
    loop {
        let lister = Arc::downgrade(&world);
        let list = move || {
            let world = lister.upgrade();
            async move { cluster::list(&world?, runtime, number).await }.boxed()
        };
        // A list would find the events lost by `ExpiredWatchGoesOn`.
        let trusted = matches!(world.mistake, Some(Mistake::WatchesAreTrusted | Mistake::ExpiredWatchGoesOn));
        let beside = (!trusted).then(|| Beside { list: Box::new(list), jitter });
        let events = cluster::watch(Arc::clone(&world), watch.clone());
        if !watcher.feed(events, &resolved, beside).await {
            return;
        }
        let pause = world.lock().rng.millis(500, 2_000);
        tokio::time::sleep(pause).await;
    }
}

/// One channel per watch: a shared one wakes receivers in any order, so runs would differ.
fn one_per_watch(tasks: &Tasks, mut all: Receiver<Baseline>) -> [Receiver<Baseline>; WATCHES.len()] {
    let senders = WATCHES.map(|_| watch::Sender::new(Baseline::default()));
    let own = senders.each_ref().map(watch::Sender::subscribe);
    tasks.spawn(async move {
        loop {
            let baseline = all.borrow_and_update().clone();
            for sender in &senders {
                sender.send_replace(baseline.clone());
            }
            if all.changed().await.is_err() {
                return;
            }
        }
    });
    own
}

/// Drops changes of the first 500 ms.
fn after_the_first_list(tasks: &Tasks, changes: mpsc::Sender<Message>) -> mpsc::Sender<Message> {
    let (shim, mut first) = mpsc::channel::<Message>(CHANNEL);
    let open = tokio::time::Instant::now() + Duration::from_millis(500);
    tasks.spawn(async move {
        while let Some(report) = first.recv().await {
            if tokio::time::Instant::now() >= open && changes.send(report).await.is_err() {
                return;
            }
        }
    });
    shim
}

fn spec(number: usize) -> config::Watch {
    config::Watch {
        name: WATCHES[number].into(),
        route: ["engine", MANAGER][number].into(),
        group: "g.example".into(),
        version: "*".into(),
        resource: WATCHES[number].into(),
        field: Field::Spec,
        labels: BTreeMap::new(),
        namespace: None,
    }
}

fn resource(number: usize) -> ApiResource {
    ApiResource {
        group: "g.example".into(),
        version: "v1".into(),
        api_version: "g.example/v1".into(),
        kind: ["Thing", "Part"][number].into(),
        plural: WATCHES[number].into(),
    }
}

impl World {
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
