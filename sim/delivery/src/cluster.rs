//! Simulated API server of a runtime, with a watch like `kube`'s.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use futures::{Stream, stream};
use kube::{api::ObjectMeta, core::Status, runtime::watcher};
use tidewatch_agent::{
    digest::Snapshot,
    observe::{condition::Conditions, watch::Metadata},
};
use tidewatch_delivery::names::Listed;
use tokio::{sync::Notify, time::Instant};

use crate::{
    mistake::Mistake,
    oracle::{Object, WATCHES, number, object_name},
    step::{Kind, Point},
    world::{Process, World},
};

/// Log entries; a real server keeps some minutes.
const LOG: usize = 12;

/// Dropped events per 1,000.
const SWALLOWED: u64 = 180;
/// Bookmark interval.
const BOOKMARK: Duration = Duration::from_mins(1);

type Event = watcher::Result<watcher::Event<Metadata>>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Stored {
    uid: u64,
    generation: i64,
    version: u64,
}

#[derive(Clone, Debug)]
struct Logged {
    version: u64,
    object: usize,
    stored: Stored,
    gone: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    pub(crate) digest: Option<Snapshot>,
    pub(crate) names: BTreeMap<Arc<str>, Listed>,
}

impl Kept {
    pub(crate) fn names_object(&self, object: usize) -> bool {
        let named = self.names.values().flat_map(|listed| &listed.objects);
        named.map(|(_, name)| number(name)).any(|named| named == object)
    }
}

#[derive(Debug)]
pub(crate) struct Cluster {
    version: u64,
    objects: BTreeMap<usize, Stored>,
    log: VecDeque<Logged>,
    /// Last version that has left the log.
    floor: u64,
    backup: BTreeMap<usize, Stored>,
    /// Silent until then.
    pub(crate) stalled: Instant,
    /// The log is lost after the stall.
    pub(crate) expiring: bool,
    pub(crate) ending: bool,
    /// Received by the running agent.
    pub(crate) shown: BTreeSet<usize>,
    /// Existing, by list and watch.
    known: BTreeSet<usize>,
    /// Both events dropped, and the change's number. No list shows them.
    pub(crate) unnoticed: BTreeMap<usize, u64>,
    /// Deleted before a watch showed them; `unnoticed` if the agent ends.
    unreported: BTreeSet<usize>,
    /// Whether the agent has a list. It reports a `resync` after further ones.
    listed: bool,
    pub(crate) changed: Arc<Notify>,
}

impl Cluster {
    pub(crate) fn new() -> Self {
        Self {
            version: 1,
            objects: BTreeMap::new(),
            log: VecDeque::new(),
            floor: 0,
            backup: BTreeMap::new(),
            stalled: Instant::now(),
            expiring: false,
            ending: false,
            shown: BTreeSet::new(),
            known: BTreeSet::new(),
            unnoticed: BTreeMap::new(),
            unreported: BTreeSet::new(),
            listed: false,
            changed: Arc::default(),
        }
    }

    /// Keeps `unnoticed`: a new agent may not know these objects either.
    pub(crate) fn forgotten(&mut self) {
        self.shown.clear();
        self.listed = false;
    }

    pub(crate) fn exists(&self, object: usize) -> bool {
        self.objects.contains_key(&object)
    }

    fn log(&mut self, object: usize, stored: Stored, gone: bool) {
        self.log.push_back(Logged { version: self.version, object, stored, gone });
        if self.log.len() > LOG
            && let Some(dropped) = self.log.pop_front()
        {
            self.floor = dropped.version;
        }
        self.changed.notify_waiters();
    }

    fn put(&mut self, object: usize, uid: u64, generation: i64) {
        self.version += 1;
        let stored = Stored { uid, generation, version: self.version };
        self.objects.insert(object, stored.clone());
        self.unreported.remove(&object);
        self.log(object, stored, false);
    }

    pub(crate) fn create(&mut self, object: usize) {
        self.put(object, self.version + 1, 1);
    }

    pub(crate) fn update(&mut self, object: usize) {
        if let Some(stored) = self.objects.get(&object).cloned() {
            self.put(object, stored.uid, stored.generation + 1);
        }
    }

    /// Changes an object outside its spec.
    pub(crate) fn touch(&mut self, object: usize) {
        if let Some(stored) = self.objects.get(&object).cloned() {
            self.put(object, stored.uid, stored.generation);
        }
    }

    pub(crate) fn delete(&mut self, object: usize) {
        if let Some(stored) = self.objects.remove(&object) {
            self.version += 1;
            if !self.known.contains(&object) {
                self.unreported.insert(object);
            }
            let stored = Stored { version: self.version, ..stored };
            self.log(object, stored, true);
        }
    }

    /// Recreates an object with another uid.
    pub(crate) fn recreate(&mut self, object: usize) {
        if let Some(stored) = self.objects.get(&object).cloned() {
            self.delete(object);
            self.put(object, self.version + 1, stored.generation);
        }
    }

    /// Drops the log: watches that lag get 410.
    fn compact(&mut self) {
        self.version += 1;
        self.floor = self.version;
        self.log.clear();
        self.changed.notify_waiters();
    }

    pub(crate) fn back_up(&mut self) {
        self.backup = self.objects.clone();
    }

    /// Returns the changed objects and whether they exist.
    pub(crate) fn restore(&mut self) -> Vec<(usize, bool)> {
        let before = std::mem::replace(&mut self.objects, self.backup.clone());
        self.compact();
        let all = before.keys().chain(self.objects.keys()).copied().collect::<BTreeSet<_>>();
        let state =
            |objects: &BTreeMap<usize, Stored>, n: usize| objects.get(&n).map(|o| (o.uid, o.generation));
        let changed = all.into_iter().filter(|n| state(&before, *n) != state(&self.objects, *n));
        changed.map(|n| (n, self.exists(n))).collect()
    }

    fn list(&self) -> VecDeque<Metadata> {
        self.objects.iter().map(|(object, stored)| metadata(*object, stored)).collect()
    }
}

fn metadata(object: usize, stored: &Stored) -> Metadata {
    let metadata = ObjectMeta {
        name: Some(object_name(object)),
        namespace: Some("n".into()),
        uid: Some(stored.uid.to_string()),
        generation: Some(stored.generation),
        resource_version: Some(stored.version.to_string()),
        ..ObjectMeta::default()
    };
    Metadata { metadata }
}

fn refused(code: u16) -> Box<Status> {
    Box::new(Status { code, message: "simulated".into(), ..Status::default() })
}

enum Phase {
    Start,
    Listing { left: VecDeque<Metadata>, version: u64, listed: BTreeSet<usize> },
    Watching { version: u64 },
}

enum Next {
    Event(Box<Event>),
    End,
    Wait(Arc<Notify>, Instant),
}

#[derive(Clone, Debug)]
pub(crate) struct Watch {
    pub(crate) runtime: usize,
    pub(crate) number: usize,
    pub(crate) conditions: Conditions,
}

impl Watch {
    fn record_activity(&self) {
        self.conditions.received(WATCHES[self.number]);
    }
}

pub(crate) fn watch(world: Arc<World>, watch: Watch) -> impl Stream<Item = Event> + Unpin {
    let state = (world, watch, Phase::Start);
    Box::pin(stream::unfold(state, move |(world, watch, mut phase)| async move {
        let event = next(&world, &watch, &mut phase).await?;
        Some((event, (world, watch, phase)))
    }))
}

pub(crate) async fn list(world: &Arc<World>, runtime: usize, watch: usize) -> Option<Vec<Metadata>> {
    let delay = world.lock().rng.millis(1, 200);
    tokio::time::sleep(delay).await;
    if world.happens(runtime, Kind::ListBroken, 60) {
        return None;
    }
    world.step(Kind::Delivered, runtime, 1_000_000);
    Some(world.lock().runtimes[runtime].watched[watch].list().into())
}

async fn next(world: &Arc<World>, watch: &Watch, phase: &mut Phase) -> Option<Event> {
    match phase {
        Phase::Start => Some(Ok(start_list(world, watch, phase).await)),
        Phase::Listing { .. } => Some(next_listed(world, watch, phase).await),
        Phase::Watching { .. } => next_watched(world, watch, phase).await,
    }
}

async fn start_list(world: &World, watch: &Watch, phase: &mut Phase) -> watcher::Event<Metadata> {
    let runtime = watch.runtime;
    let delay = world.lock().rng.millis(1, 50);
    tokio::time::sleep(delay).await;
    let state = &mut *world.lock();
    let cluster = &mut state.runtimes[runtime].watched[watch.number];
    if !cluster.listed {
        let change = |number: &usize| (*number, state.oracle.actual(Object { runtime, number: *number }));
        cluster.unnoticed.extend(cluster.unreported.iter().map(change));
    }
    let listed = cluster.objects.keys().copied().collect();
    *phase = Phase::Listing { left: cluster.list(), version: cluster.version, listed };
    watcher::Event::Init
}

async fn next_listed(world: &Arc<World>, watch: &Watch, phase: &mut Phase) -> Event {
    let runtime = watch.runtime;
    world.point(Point::AgentListing, Process::Agent(runtime), 3).await;
    if world.happens(runtime, Kind::ListBroken, 55) {
        let delay = world.lock().rng.millis(500, 5_000);
        tokio::time::sleep(delay).await;
        *phase = Phase::Start;
        return Err(watcher::Error::InitialListFailed(kube::Error::Api(refused(500))));
    }
    let Phase::Listing { left, version, listed } = phase else { return Ok(watcher::Event::InitDone) };
    let cluster = &mut world.lock().runtimes[runtime].watched[watch.number];
    if let Some(object) = left.pop_front() {
        cluster.shown.insert(number(object.metadata.name.as_deref().unwrap_or_default()));
        return Ok(watcher::Event::InitApply(object));
    }
    if std::mem::replace(&mut cluster.listed, true) {
        cluster.unnoticed.clear();
        cluster.unreported.clear();
    }
    cluster.known = std::mem::take(listed);
    *phase = Phase::Watching { version: *version };
    Ok(watcher::Event::InitDone)
}

async fn next_watched(world: &Arc<World>, watch: &Watch, phase: &mut Phase) -> Option<Event> {
    let mut is_bookmark_due = false;
    loop {
        let (changed, stalled) = match step(world, watch, phase) {
            Next::Event(event) => {
                watch.record_activity();
                world.point(Point::AgentWatching, Process::Agent(watch.runtime), 10).await;
                return Some(*event);
            }
            Next::End => return None,
            Next::Wait(changed, stalled) => (changed, stalled),
        };
        let now = Instant::now();
        if stalled <= now && std::mem::take(&mut is_bookmark_due) {
            watch.record_activity();
        }
        let changed = changed.notified();
        tokio::select! {
            biased;
            () = changed => {}
            () = tokio::time::sleep_until(stalled), if stalled > now => {}
            () = tokio::time::sleep(BOOKMARK), if stalled <= now => is_bookmark_due = true,
        }
        let delay = world.lock().rng.millis(1, 5);
        tokio::time::sleep(delay).await;
    }
}

fn step(world: &World, watch: &Watch, phase: &mut Phase) -> Next {
    let runtime = watch.runtime;
    let mut state = world.lock();
    let state = &mut *state;
    let cluster = &mut state.runtimes[runtime].watched[watch.number];
    let Phase::Watching { version } = phase else { return Next::End };
    let now = Instant::now();
    if cluster.stalled > now {
        return Next::Wait(Arc::clone(&cluster.changed), cluster.stalled);
    }
    if std::mem::take(&mut cluster.expiring) {
        cluster.compact();
    }
    if std::mem::take(&mut cluster.ending) {
        return Next::End;
    }
    if cluster.floor > *version {
        if world.mistake == Some(Mistake::ExpiredWatchGoesOn) {
            *version = cluster.version;
            return Next::Wait(Arc::clone(&cluster.changed), now + Duration::from_millis(10));
        }
        *phase = Phase::Start;
        return Next::Event(Box::new(Err(watcher::Error::WatchError(refused(410)))));
    }
    let logged = loop {
        let Some(logged) = cluster.log.iter().find(|logged| logged.version > *version).cloned() else {
            return Next::Wait(Arc::clone(&cluster.changed), now);
        };
        *version = logged.version;
        let expired = world.mistake == Some(Mistake::ExpiredWatchGoesOn);
        let swallowed =
            if state.quiet { state.directed.swallows } else { !expired && state.rng.per_mille(SWALLOWED) };
        if !swallowed {
            break logged;
        }
        if logged.gone && !cluster.known.contains(&logged.object) {
            cluster
                .unnoticed
                .insert(logged.object, state.oracle.actual(Object { runtime, number: logged.object }));
        }
        state.trace.add(world.at_ms(), Kind::Swallowed, runtime, logged.version);
    };
    cluster.unnoticed.remove(&logged.object);
    // No digest has an object whose creation was swallowed: an agent that ends before it has sent the deletion leaves no trace of it.
    if !logged.gone || cluster.known.contains(&logged.object) {
        cluster.unreported.remove(&logged.object);
    }
    if logged.gone {
        cluster.known.remove(&logged.object);
    } else {
        cluster.shown.insert(logged.object);
        cluster.known.insert(logged.object);
    }
    let object = metadata(logged.object, &logged.stored);
    state.trace.add(world.at_ms(), Kind::Delivered, runtime, logged.version);
    let event = if logged.gone { watcher::Event::Delete(object) } else { watcher::Event::Apply(object) };
    Next::Event(Box::new(Ok(event)))
}
