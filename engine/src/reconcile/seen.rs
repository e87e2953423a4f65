//! Object versions that each reconcile has read, written or deleted. An agent's event of such a version is an echo.
//!
//! Versions are compared for equality only; any other version is a change. Recorded versions count after the reconcile has ended well.
//! Events during a reconcile wait for its end, since agents are often faster than the answer to a write. If the reconcile leaves something
//! undone, an event that came before its read is a change: the reconcile may wait for it.

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

pub(crate) type Ask = Push<Trigger, Guard>;

#[derive(Default)]
pub(crate) struct Seen(Mutex<Book>);

struct Book {
    /// By key and object: the version seen by a successful reconcile, and when.
    done: LruCache<u64, (u64, Instant)>,
    in_hand: HashMap<WorkKey, Meanwhile>,
}

#[derive(Default)]
struct Meanwhile {
    versions: HashMap<u64, Noted>,
    waiting: Vec<Guard>,
    undecided: Vec<Undecided>,
}

#[derive(Clone, Copy)]
struct Noted {
    version: u64,
    generation: Option<i64>,
}

/// An event of a version that was unseen at that time.
struct Undecided {
    object: u64,
    version: u64,
    ask: Ask,
    since: Tick,
    /// Whether the reconcile has read the version since.
    is_read: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Read,
    /// It created the version.
    Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Done,
    /// Everything seen was handled or is waited for.
    Waiting,
    /// Something seen may be left undone.
    Failed,
}

#[derive(Default)]
pub(crate) struct Come {
    pub(crate) waiting: Vec<Guard>,
    /// Changes, and when they came.
    pub(crate) news: Vec<(Ask, Tick)>,
}

#[must_use]
pub(crate) enum Taken {
    /// An echo; its guards may be acknowledged.
    NoNews(Vec<Guard>),
    /// Held until the reconcile ends.
    Held,
    Change(Ask),
}

impl Default for Book {
    fn default() -> Self {
        Self { done: LruCache::new(REMEMBERED), in_hand: HashMap::new() }
    }
}

fn object_of(key: &WorkKey, object: &ObjectRef) -> u64 {
    let (group, kind, namespace, name) = object.identity();
    let text = format!("{}\n{key}\n{group}\n{kind}\n{namespace}\n{name}", key.kyma());
    xxhash_rust::xxh3::xxh3_64(text.as_bytes())
}

impl Seen {
    /// Begins a reconcile. The caller must [end](Self::end) it before the key is leased again: until then its events are held.
    pub(crate) fn begin(&self, key: &WorkKey) {
        // Other kinds record nothing.
        if matches!(key, WorkKey::Manifest { .. } | WorkKey::Kyma { .. } | WorkKey::Catalog { .. }) {
            self.0.lock().in_hand.insert(key.clone(), Meanwhile::default());
        }
    }

    pub(crate) fn saw(&self, key: &WorkKey, object: &ObjectRef, live: &Value) {
        self.has(key, object, live, By::Read);
    }

    pub(crate) fn wrote(&self, key: &WorkKey, object: &ObjectRef, live: &Value) {
        self.has(key, object, live, By::Write);
    }

    /// Records a status read; it counts if the generation is unchanged.
    pub(crate) fn saw_status(&self, key: &WorkKey, object: &ObjectRef, live: &Value) {
        let generation = live["metadata"]["generation"].as_i64();
        let before = {
            let book = self.0.lock();
            book.in_hand.get(key).and_then(|in_hand| in_hand.versions.get(&object_of(key, object)).copied())
        };
        if before.is_some_and(|before| before.generation == generation) {
            self.saw(key, object, live);
        }
    }

    fn has(&self, key: &WorkKey, object: &ObjectRef, live: &Value, by: By) {
        let metadata = &live["metadata"];
        let text = |field: &str| metadata[field].as_str().unwrap_or_default();
        let version = Version::Is { uid: text("uid"), resource_version: text("resourceVersion") };
        self.note(key, object, version, (by, metadata["generation"].as_i64()));
    }

    pub(crate) fn deleted(&self, key: &WorkKey, object: &ObjectRef, uid: &str) {
        self.note(key, object, Version::Gone { uid }, (By::Write, None));
    }

    fn note(
        &self,
        key: &WorkKey,
        object: &ObjectRef,
        version: Version<'_>,
        (by, generation): (By, Option<i64>),
    ) {
        let Some(version) = version.hash() else { return };
        let object = object_of(key, object);
        let mut book = self.0.lock();
        let Some(in_hand) = book.in_hand.get_mut(key) else { return };
        in_hand.versions.insert(object, Noted { version, generation });
        let is_it = |event: &Undecided| (event.object, event.version) == (object, version);
        match by {
            By::Read => {
                in_hand
                    .undecided
                    .iter_mut()
                    .filter(|event| is_it(event))
                    .for_each(|event| event.is_read = true);
            }
            By::Write => {
                for event in in_hand.undecided.extract_if(.., |event| is_it(event)) {
                    in_hand.waiting.extend(event.ask.guards);
                }
            }
        }
    }

    /// Ends a reconcile. Returns the events that came during it.
    pub(crate) fn end(&self, key: &WorkKey, end: End) -> Come {
        let mut book = self.0.lock();
        let Some(Meanwhile { versions, waiting, undecided }) = book.in_hand.remove(key) else {
            return Come::default();
        };
        let now = Instant::now();
        for (object, Noted { version, .. }) in versions {
            if end == End::Failed {
                book.done.pop(&object);
            } else {
                book.done.put(object, (version, now));
            }
        }
        let mut come = Come { waiting, news: Vec::new() };
        for Undecided { ask, since, is_read, .. } in undecided {
            if is_read && end == End::Done {
                come.waiting.extend(ask.guards);
            } else {
                come.news.push((ask, since));
            }
        }
        come
    }

    pub(crate) fn forget(&self) {
        self.0.lock().done.clear();
    }

    /// Decides about an event that came at `since`.
    pub(crate) fn take(
        &self,
        key: &WorkKey,
        object: &ObjectRef,
        version: Version<'_>,
        ask: Ask,
        since: Tick,
    ) -> Taken {
        let Some(version) = version.hash() else { return Taken::Change(ask) };
        let object = object_of(key, object);
        let mut book = self.0.lock();
        let fresh = book.done.get(&object).is_some_and(|(v, at)| *v == version && at.elapsed() < FRESH);
        let Some(Meanwhile { versions, waiting, undecided }) = book.in_hand.get_mut(key) else {
            return if fresh { Taken::NoNews(ask.guards) } else { Taken::Change(ask) };
        };
        let noted = versions.get(&object).map(|noted| noted.version);
        if noted.is_none() && fresh {
            return Taken::NoNews(ask.guards);
        }
        if waiting.len() + undecided.len() >= WAITING {
            return Taken::Change(ask);
        }
        if noted == Some(version) {
            waiting.extend(ask.guards);
        } else {
            undecided.push(Undecided { object, version, ask, since, is_read: false });
        }
        Taken::Held
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
        seen: Seen,
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
            Self { seen: Seen::default(), done: Arc::default(), object }
        }

        fn saw(&self, key: &WorkKey, version: &str) {
            self.seen.saw(key, &self.object, &live(version, 1));
        }

        fn wrote(&self, key: &WorkKey, version: &str) {
            self.seen.wrote(key, &self.object, &live(version, 1));
        }

        fn guard(&self) -> Guard {
            Box::new(Waiter(Arc::clone(&self.done)))
        }

        /// Whether an event is an echo or held.
        fn takes(&self, key: &WorkKey, version: Version<'_>) -> bool {
            let ask = Push { class: Class::UserEdit, cause: None, guards: vec![self.guard()] };
            match self.seen.take(key, &self.object, version, ask, SINCE) {
                Taken::NoNews(guards) => {
                    guards.into_iter().for_each(Acknowledge::finished);
                    true
                }
                Taken::Held => true,
                Taken::Change(_) => false,
            }
        }

        /// Whether an event is an echo at once.
        fn is_no_news(&self, key: &WorkKey, version: Version<'_>) -> bool {
            let before = self.finished();
            self.takes(key, version) && self.finished() > before
        }

        /// Ends a reconcile and acknowledges echoes. Returns the numbers of echoes and changes.
        fn end(&self, key: &WorkKey, end: End) -> (usize, usize) {
            let Come { waiting, news } = self.seen.end(key, end);
            let counts = (waiting.len(), news.len());
            for (ask, since) in news {
                assert_eq!((ask.class, ask.guards.len(), since), (Class::UserEdit, 1, SINCE));
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
    async fn only_the_very_version_that_was_seen_is_no_news() {
        let world = World::new();
        let harbour = key("harbour");
        assert!(!world.takes(&harbour, is("7")), "nothing is known");
        world.seen.begin(&harbour);
        world.saw(&harbour, "6");
        world.saw(&harbour, "7");
        // Overwritten since; seen; another writer's change, or several merged.
        for version in ["6", "7", "8"] {
            assert!(world.takes(&harbour, is(version)));
        }
        assert_eq!(world.finished(), 0, "the work goes on");
        assert_eq!(world.end(&harbour, End::Done), (1, 2));
        assert!(world.is_no_news(&harbour, is("7")));
        for news in [
            is("8"),
            is(""),
            Version::Is { uid: "v", resource_version: "7" },
            Version::Is { uid: "", resource_version: "7" },
            Version::Gone { uid: "u" },
            Version::Gone { uid: "" },
        ] {
            assert!(!world.takes(&harbour, news), "{news:?}");
        }
        assert!(!world.takes(&key("lagoon"), is("7")), "another runtime");
        tokio::time::advance(FRESH).await;
        assert!(!world.takes(&harbour, is("7")), "after so long it may be anything");
        assert_eq!(world.finished(), 2);
        world.seen.begin(&harbour);
        world.saw(&harbour, "7");
        assert_eq!(world.end(&harbour, End::Done), (0, 0));
        world.seen.forget();
        assert!(!world.takes(&harbour, is("7")));
    }

    /// Agents are often faster than the answer to a write, or than a read that an earlier event caused.
    #[tokio::test(start_paused = true)]
    async fn what_is_told_before_it_is_seen_is_decided_on_when_the_work_ends() {
        for (is_written, end, counts) in [
            (true, End::Done, (2, 1)),
            (true, End::Waiting, (2, 1)),
            (true, End::Failed, (2, 1)),
            (false, End::Done, (2, 1)),
            // The reconcile may wait for it.
            (false, End::Waiting, (0, 3)),
            (false, End::Failed, (0, 3)),
        ] {
            let world = World::new();
            let harbour = key("harbour");
            world.seen.begin(&harbour);
            for version in ["7", "8", "9"] {
                assert!(world.takes(&harbour, is(version)));
            }
            assert!(!world.takes(&harbour, is("")), "of no version it could not be said later");
            // Overwritten versions were seen, too.
            for version in ["7", "8"] {
                if is_written { world.wrote(&harbour, version) } else { world.saw(&harbour, version) }
            }
            assert_eq!(world.finished(), 0, "the work goes on");
            assert_eq!(world.end(&harbour, end), counts, "{is_written} {end:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_work_has_seen_is_no_news_to_the_next_which_does_not_look() {
        let world = World::new();
        let harbour = key("harbour");
        world.seen.begin(&harbour);
        world.saw(&harbour, "7");
        world.end(&harbour, End::Done);
        world.seen.begin(&harbour);
        assert!(world.is_no_news(&harbour, is("7")));
        world.saw(&harbour, "8");
        assert!(
            world.takes(&harbour, is("7")) && world.finished() == 1,
            "it has changed back, or was told late"
        );
        assert_eq!(world.end(&harbour, End::Done), (0, 1));
    }

    /// The spec would have to be compared.
    #[tokio::test(start_paused = true)]
    async fn a_look_at_the_status_sees_no_other_spec() {
        for (generation, is_seen) in [(1, true), (2, false)] {
            let world = World::new();
            let harbour = key("harbour");
            world.seen.begin(&harbour);
            world.wrote(&harbour, "7");
            world.seen.saw_status(&harbour, &world.object, &live("8", generation));
            assert!(world.takes(&harbour, is("8")));
            assert_eq!(world.end(&harbour, End::Done), if is_seen { (1, 0) } else { (0, 1) });
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_what_was_deleted_is_no_news() {
        let world = World::new();
        let catalog = WorkKey::Catalog { kyma: "harbour".into() };
        world.seen.begin(&catalog);
        world.saw(&catalog, "7");
        assert!(world.takes(&catalog, Version::Gone { uid: "u" }));
        world.seen.deleted(&catalog, &world.object, "u");
        assert!(world.takes(&catalog, is("9")), "somebody has made it again");
        assert_eq!(world.end(&catalog, End::Done), (1, 1));
        assert!(world.is_no_news(&catalog, Version::Gone { uid: "u" }));
        for news in [Version::Gone { uid: "v" }, is("7"), is("9")] {
            assert!(!world.takes(&catalog, news), "{news:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_work_has_seen_that_did_not_end_well_is_news() {
        let world = World::new();
        let harbour = key("harbour");
        world.seen.begin(&harbour);
        world.saw(&harbour, "7");
        assert_eq!(world.end(&harbour, End::Done), (0, 0));
        world.seen.begin(&harbour);
        world.saw(&harbour, "7");
        assert!(world.takes(&harbour, is("7")));
        assert_eq!(world.seen.end(&harbour, End::Failed).waiting.len(), 1, "it waits for the next try");
        assert!(!world.takes(&harbour, is("7")));
        assert_eq!(world.finished(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_than_so_many_wait_for_one_piece_of_work() {
        let world = World::new();
        let harbour = key("harbour");
        world.seen.begin(&harbour);
        world.saw(&harbour, "0");
        for n in 0..WAITING {
            assert!(world.takes(&harbour, is(if n % 2 == 0 { "0" } else { "1" })));
        }
        assert!(!world.takes(&harbour, is("0")) && !world.takes(&harbour, is("1")));
        assert_eq!(world.end(&harbour, End::Done), (WAITING / 2, WAITING / 2));
    }
}
