//! Object versions that each reconcile has read, written or deleted. An agent's event of such a version is an echo.
//!
//! Versions are compared for equality only; any other version is a change. Recorded versions count after the reconcile has ended well.
//! Events during a reconcile wait for its end, since agents are often faster than the answer to a write. If the reconcile leaves something
//! undone, an event that came before the read of its version is a change: the reconcile may wait for this event.

use std::{collections::HashMap, num::NonZeroUsize, time::Duration};

use lru::LruCache;
use parking_lot::Mutex;
use serde_json::Value;
use tidewatch_api::object::ObjectRef;
use tokio::time::Instant;

use crate::{
    key::{Guard, WorkKey},
    queue::{Push, Tick},
    trigger::Trigger,
};

/// Objects remembered, fleet-wide. A forgotten one costs a reconcile without changes.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(20_000).unwrap();
/// How long. Agents report within moments, and a restored backup reuses versions for other contents.
const FRESH: Duration = Duration::from_mins(1);
/// Events held per reconcile; further ones request another reconcile.
const WAITING: usize = 1_000;

/// The version of an object in an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version<'a> {
    /// The object exists.
    Is {
        /// Its uid; empty if unknown.
        uid: &'a str,
        /// Its resourceVersion; empty if unknown.
        resource_version: &'a str,
    },
    /// The object was deleted.
    Gone {
        /// Its last uid; empty if unknown.
        uid: &'a str,
    },
}

impl Version<'_> {
    /// `None` if unknown.
    fn hash(self) -> Option<u64> {
        let (uid, text) = match self {
            Self::Is { uid, resource_version: "" } => (uid, None),
            Self::Is { uid, resource_version } => (uid, Some(format!("{uid}\n{resource_version}"))),
            Self::Gone { uid } => (uid, Some(uid.to_owned())),
        };
        let text = text.filter(|_| !uid.is_empty())?;
        Some(xxhash_rust::xxh3::xxh3_64(text.as_bytes()))
    }
}

pub(crate) type Request = Push<Trigger, Guard>;

#[derive(Default)]
pub(crate) struct EchoFilter(Mutex<State>);

struct State {
    /// By key and object: the version seen by a successful reconcile, and when.
    done: LruCache<u64, (u64, Instant)>,
    running: HashMap<WorkKey, Running>,
}

#[derive(Default)]
struct Running {
    versions: HashMap<u64, Recorded>,
    waiting: Vec<Guard>,
    pending: Vec<PendingEvent>,
}

#[derive(Clone, Copy)]
struct Recorded {
    version: u64,
    generation: Option<i64>,
}

/// An event of a version that was unseen at that time.
struct PendingEvent {
    object: u64,
    version: u64,
    request: Request,
    since: Tick,
    /// Whether the reconcile has read the version since.
    is_read: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Read,
    /// It created the version.
    Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completeness {
    Complete,
    /// Everything seen was handled or is waited for.
    Waiting,
    /// Something seen may be left undone.
    Incomplete,
}

#[derive(Default)]
pub(crate) struct Released {
    pub(crate) waiting: Vec<Guard>,
    /// Changes, and when they came.
    pub(crate) changes: Vec<(Request, Tick)>,
}

#[must_use]
pub(crate) enum Filtered {
    /// An echo; its guards may be acknowledged.
    Echo(Vec<Guard>),
    /// Held until the reconcile ends.
    Held,
    Change(Request),
}

impl Default for State {
    fn default() -> Self {
        Self { done: LruCache::new(REMEMBERED), running: HashMap::new() }
    }
}

fn object_of(key: &WorkKey, object: &ObjectRef) -> u64 {
    let (group, kind, namespace, name) = object.identity();
    let text = format!("{}\n{key}\n{group}\n{kind}\n{namespace}\n{name}", key.kyma());
    xxhash_rust::xxh3::xxh3_64(text.as_bytes())
}

impl EchoFilter {
    /// Begins a reconcile. The caller must [end](Self::end) it before the key is leased again: until then its events are held.
    pub(crate) fn begin(&self, key: &WorkKey) {
        if key.has_echoes() {
            self.0.lock().running.insert(key.clone(), Running::default());
        }
    }

    pub(crate) fn record_read(&self, key: &WorkKey, object: &ObjectRef, live: &Value) {
        self.record_version(key, object, live, Source::Read);
    }

    pub(crate) fn record_write(&self, key: &WorkKey, object: &ObjectRef, live: &Value) {
        self.record_version(key, object, live, Source::Write);
    }

    /// Records a status read; it counts if the generation is unchanged.
    pub(crate) fn record_status_read(&self, key: &WorkKey, object: &ObjectRef, live: &Value) {
        let generation = live["metadata"]["generation"].as_i64();
        let before = {
            let state = self.0.lock();
            state.running.get(key).and_then(|running| running.versions.get(&object_of(key, object)).copied())
        };
        if before.is_some_and(|before| before.generation == generation) {
            self.record_read(key, object, live);
        }
    }

    fn record_version(&self, key: &WorkKey, object: &ObjectRef, live: &Value, source: Source) {
        let metadata = &live["metadata"];
        let text = |field: &str| metadata[field].as_str().unwrap_or_default();
        let version = Version::Is { uid: text("uid"), resource_version: text("resourceVersion") };
        self.record(key, object, version, (source, metadata["generation"].as_i64()));
    }

    pub(crate) fn deleted(&self, key: &WorkKey, object: &ObjectRef, uid: &str) {
        self.record(key, object, Version::Gone { uid }, (Source::Write, None));
    }

    fn record(
        &self,
        key: &WorkKey,
        object: &ObjectRef,
        version: Version<'_>,
        (source, generation): (Source, Option<i64>),
    ) {
        let Some(version) = version.hash() else { return };
        let object = object_of(key, object);
        let mut state = self.0.lock();
        let Some(running) = state.running.get_mut(key) else { return };
        running.versions.insert(object, Recorded { version, generation });
        let is_it = |event: &PendingEvent| (event.object, event.version) == (object, version);
        match source {
            Source::Read => {
                running
                    .pending
                    .iter_mut()
                    .filter(|event| is_it(event))
                    .for_each(|event| event.is_read = true);
            }
            Source::Write => {
                for event in running.pending.extract_if(.., |event| is_it(event)) {
                    running.waiting.extend(event.request.guards);
                }
            }
        }
    }

    /// Ends a reconcile. Returns the events that came during it.
    pub(crate) fn end(&self, key: &WorkKey, end: Completeness) -> Released {
        let mut state = self.0.lock();
        let Some(Running { versions, waiting, pending }) = state.running.remove(key) else {
            return Released::default();
        };
        let now = Instant::now();
        for (object, Recorded { version, .. }) in versions {
            if end == Completeness::Incomplete {
                state.done.pop(&object);
            } else {
                state.done.put(object, (version, now));
            }
        }
        let mut released = Released { waiting, changes: Vec::new() };
        for PendingEvent { request, since, is_read, .. } in pending {
            if is_read && end == Completeness::Complete {
                released.waiting.extend(request.guards);
            } else {
                released.changes.push((request, since));
            }
        }
        released
    }

    pub(crate) fn forget(&self) {
        self.0.lock().done.clear();
    }

    /// Decides about an event that came at `since`.
    pub(crate) fn filter(
        &self,
        key: &WorkKey,
        object: &ObjectRef,
        version: Version<'_>,
        request: Request,
        since: Tick,
    ) -> Filtered {
        let Some(version) = version.hash() else { return Filtered::Change(request) };
        let object = object_of(key, object);
        let mut state = self.0.lock();
        let fresh = state.done.get(&object).is_some_and(|(v, at)| *v == version && at.elapsed() < FRESH);
        let Some(Running { versions, waiting, pending }) = state.running.get_mut(key) else {
            return if fresh { Filtered::Echo(request.guards) } else { Filtered::Change(request) };
        };
        let recorded = versions.get(&object).map(|recorded| recorded.version);
        if recorded.is_none() && fresh {
            return Filtered::Echo(request.guards);
        }
        if waiting.len() + pending.len() >= WAITING {
            return Filtered::Change(request);
        }
        if recorded == Some(version) {
            waiting.extend(request.guards);
        } else {
            pending.push(PendingEvent { object, version, request, since, is_read: false });
        }
        Filtered::Held
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use serde_json::json;
    use tidewatch_api::object::Gvk;

    use super::*;
    use crate::{key::Acknowledge, queue::Class};

    struct Waiter(Arc<AtomicUsize>);

    impl Acknowledge for Waiter {
        fn finished(self: Box<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    struct World {
        echoes: EchoFilter,
        done: Arc<AtomicUsize>,
        object: ObjectRef,
    }

    const SINCE: Tick = Tick::from_secs(5);

    fn is(version: &'static str) -> Version<'static> {
        Version::Is { uid: "u", resource_version: version }
    }

    fn live(version: &str, generation: i64) -> Value {
        json!({"metadata": {"uid": "u", "resourceVersion": version, "generation": generation}})
    }

    impl World {
        fn new() -> Self {
            let gvk = Gvk::of("v1", "ConfigMap");
            let object = ObjectRef { gvk, namespace: "n".into(), name: "a".into() };
            Self { echoes: EchoFilter::default(), done: Arc::default(), object }
        }

        fn record_read(&self, key: &WorkKey, version: &str) {
            self.echoes.record_read(key, &self.object, &live(version, 1));
        }

        fn record_write(&self, key: &WorkKey, version: &str) {
            self.echoes.record_write(key, &self.object, &live(version, 1));
        }

        fn guard(&self) -> Guard {
            Box::new(Waiter(Arc::clone(&self.done)))
        }

        /// Whether an event is an echo or held.
        fn filters(&self, key: &WorkKey, version: Version<'_>) -> bool {
            let request = Push { class: Class::UserEdit, trigger: None, guards: vec![self.guard()] };
            match self.echoes.filter(key, &self.object, version, request, SINCE) {
                Filtered::Echo(guards) => {
                    guards.into_iter().for_each(Acknowledge::finished);
                    true
                }
                Filtered::Held => true,
                Filtered::Change(_) => false,
            }
        }

        /// Whether an event is an echo at once.
        fn is_echo(&self, key: &WorkKey, version: Version<'_>) -> bool {
            let before = self.finished();
            self.filters(key, version) && self.finished() > before
        }

        /// Ends a reconcile and acknowledges echoes. Returns the numbers of echoes and changes.
        fn end(&self, key: &WorkKey, end: Completeness) -> (usize, usize) {
            let Released { waiting, changes } = self.echoes.end(key, end);
            let counts = (waiting.len(), changes.len());
            for (request, since) in changes {
                assert_eq!((request.class, request.guards.len(), since), (Class::UserEdit, 1, SINCE));
            }
            waiting.into_iter().for_each(Acknowledge::finished);
            counts
        }

        fn finished(&self) -> usize {
            self.done.load(Ordering::SeqCst)
        }
    }

    fn key(kyma: &str) -> WorkKey {
        WorkKey::Manifest { kyma: kyma.into(), name: "m".into() }
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_exact_observed_version_is_an_echo() {
        let world = World::new();
        let harbour = key("harbour");
        assert!(!world.filters(&harbour, is("7")), "nothing is known");
        world.echoes.begin(&harbour);
        world.record_read(&harbour, "6");
        world.record_read(&harbour, "7");
        // Overwritten since; seen; another writer's change, or several merged.
        for version in ["6", "7", "8"] {
            assert!(world.filters(&harbour, is(version)));
        }
        assert_eq!(world.finished(), 0, "the work goes on");
        assert_eq!(world.end(&harbour, Completeness::Complete), (1, 2));
        assert!(world.is_echo(&harbour, is("7")));
        for changes in [
            is("8"),
            is(""),
            Version::Is { uid: "v", resource_version: "7" },
            Version::Is { uid: "", resource_version: "7" },
            Version::Gone { uid: "u" },
            Version::Gone { uid: "" },
        ] {
            assert!(!world.filters(&harbour, changes), "{changes:?}");
        }
        assert!(!world.filters(&key("lagoon"), is("7")), "another runtime");
        tokio::time::advance(FRESH).await;
        assert!(!world.filters(&harbour, is("7")), "after so long it may be anything");
        assert_eq!(world.finished(), 2);
        world.echoes.begin(&harbour);
        world.record_read(&harbour, "7");
        assert_eq!(world.end(&harbour, Completeness::Complete), (0, 0));
        world.echoes.forget();
        assert!(!world.filters(&harbour, is("7")));
    }

    /// Agents are often faster than the answer to a write, or than a read that an earlier event caused.
    #[tokio::test(start_paused = true)]
    async fn an_early_event_is_decided_when_the_reconcile_ends() {
        for (is_written, end, counts) in [
            (true, Completeness::Complete, (2, 1)),
            (true, Completeness::Waiting, (2, 1)),
            (true, Completeness::Incomplete, (2, 1)),
            (false, Completeness::Complete, (2, 1)),
            // The reconcile may wait for it.
            (false, Completeness::Waiting, (0, 3)),
            (false, Completeness::Incomplete, (0, 3)),
        ] {
            let world = World::new();
            let harbour = key("harbour");
            world.echoes.begin(&harbour);
            for version in ["7", "8", "9"] {
                assert!(world.filters(&harbour, is(version)));
            }
            assert!(!world.filters(&harbour, is("")), "of no version it could not be said later");
            // Overwritten versions were seen, too.
            for version in ["7", "8"] {
                if is_written {
                    world.record_write(&harbour, version);
                } else {
                    world.record_read(&harbour, version);
                }
            }
            assert_eq!(world.finished(), 0, "the work goes on");
            assert_eq!(world.end(&harbour, end), counts, "{is_written} {end:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn observed_versions_stay_echoes_for_the_next_reconcile() {
        let world = World::new();
        let harbour = key("harbour");
        world.echoes.begin(&harbour);
        world.record_read(&harbour, "7");
        world.end(&harbour, Completeness::Complete);
        world.echoes.begin(&harbour);
        assert!(world.is_echo(&harbour, is("7")));
        world.record_read(&harbour, "8");
        assert!(
            world.filters(&harbour, is("7")) && world.finished() == 1,
            "it has changed back, or was told late"
        );
        assert_eq!(world.end(&harbour, Completeness::Complete), (0, 1));
    }

    /// The spec would have to be compared.
    #[tokio::test(start_paused = true)]
    async fn a_status_read_does_not_observe_another_spec() {
        for (generation, is_seen) in [(1, true), (2, false)] {
            let world = World::new();
            let harbour = key("harbour");
            world.echoes.begin(&harbour);
            world.record_write(&harbour, "7");
            world.echoes.record_status_read(&harbour, &world.object, &live("8", generation));
            assert!(world.filters(&harbour, is("8")));
            assert_eq!(world.end(&harbour, Completeness::Complete), if is_seen { (1, 0) } else { (0, 1) });
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_event_of_an_own_deletion_is_an_echo() {
        let world = World::new();
        let catalog = WorkKey::Catalog { kyma: "harbour".into() };
        world.echoes.begin(&catalog);
        world.record_read(&catalog, "7");
        assert!(world.filters(&catalog, Version::Gone { uid: "u" }));
        world.echoes.deleted(&catalog, &world.object, "u");
        assert!(world.filters(&catalog, is("9")), "somebody has made it again");
        assert_eq!(world.end(&catalog, Completeness::Complete), (1, 1));
        assert!(world.is_echo(&catalog, Version::Gone { uid: "u" }));
        for changes in [Version::Gone { uid: "v" }, is("7"), is("9")] {
            assert!(!world.filters(&catalog, changes), "{changes:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn versions_observed_by_a_failed_reconcile_are_changes() {
        let world = World::new();
        let harbour = key("harbour");
        world.echoes.begin(&harbour);
        world.record_read(&harbour, "7");
        assert_eq!(world.end(&harbour, Completeness::Complete), (0, 0));
        world.echoes.begin(&harbour);
        world.record_read(&harbour, "7");
        assert!(world.filters(&harbour, is("7")));
        assert_eq!(
            world.echoes.end(&harbour, Completeness::Incomplete).waiting.len(),
            1,
            "it waits for the next try"
        );
        assert!(!world.filters(&harbour, is("7")));
        assert_eq!(world.finished(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_events_per_reconcile_are_bounded() {
        let world = World::new();
        let harbour = key("harbour");
        world.echoes.begin(&harbour);
        world.record_read(&harbour, "0");
        for n in 0..WAITING {
            assert!(world.filters(&harbour, is(if n % 2 == 0 { "0" } else { "1" })));
        }
        assert!(!world.filters(&harbour, is("0")) && !world.filters(&harbour, is("1")));
        assert_eq!(world.end(&harbour, Completeness::Complete), (WAITING / 2, WAITING / 2));
    }
}
