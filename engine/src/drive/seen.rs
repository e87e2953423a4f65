//! Which version of an object each piece of work has seen, by its own read or in the answer to its own write. The runtime's agent
//! tells of that version a moment later, and it is no news then.
//!
//! Versions are compared for equality only: an event about another one, as where a watch has put several changes into one, is news.
//! What was seen counts once the work has ended well; an event that comes before waits for that end, as for any other work.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    key::{Guard, WorkKey},
    lru::Lru,
    plan::object::ObjectRef,
};

/// Objects remembered, of the whole fleet. One that is forgotten costs a look that finds nothing.
const REMEMBERED: u64 = 20_000;
/// For how long. An agent tells within moments; and a runtime whose data is restored from a backup gives the same versions to other
/// contents.
const FRESH: Duration = Duration::from_mins(1);
/// Events that wait for one piece of work in hand, at most; more of them ask for another one.
const WAITING: usize = 1_000;

/// See the module.
#[derive(Default)]
pub(super) struct Seen(Mutex<Book>);

struct Book {
    /// By work and object: the version that work has seen which ended well, and when.
    done: Lru<u64, (u64, Instant)>,
    in_hand: HashMap<WorkKey, InHand>,
}

#[derive(Default)]
struct InHand {
    /// By work and object.
    versions: HashMap<u64, u64>,
    waiting: Vec<Guard>,
}

impl Default for Book {
    fn default() -> Self {
        Self { done: Lru::new(REMEMBERED), in_hand: HashMap::new() }
    }
}

fn object_of(key: &WorkKey, object: &ObjectRef) -> u64 {
    let (group, kind, namespace, name) = object.identity();
    let text = format!("{}\n{key}\n{group}\n{kind}\n{namespace}\n{name}", key.kyma());
    xxhash_rust::xxh3::xxh3_64(text.as_bytes())
}

fn version_of(uid: &str, resource_version: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(format!("{uid}\n{resource_version}").as_bytes())
}

impl Seen {
    /// Work begins. Returns what has waited for the same work that never ended, as after a panic.
    pub(super) fn begin(&self, key: &WorkKey) -> Vec<Guard> {
        // Of the others nothing is noted.
        if !matches!(key, WorkKey::Manifest { .. } | WorkKey::Kyma { .. } | WorkKey::Catalog { .. }) {
            return Vec::new();
        }
        let before = self.0.lock().in_hand.insert(key.clone(), InHand::default());
        before.map(|before| before.waiting).unwrap_or_default()
    }

    /// The work has this object in hand, as it was read or came back from a write.
    pub(super) fn saw(&self, key: &WorkKey, object: &ObjectRef, live: &Value) {
        let metadata = &live["metadata"];
        let (Some(uid), Some(version)) = (metadata["uid"].as_str(), metadata["resourceVersion"].as_str())
        else {
            return;
        };
        if let Some(in_hand) = self.0.lock().in_hand.get_mut(key) {
            in_hand.versions.insert(object_of(key, object), version_of(uid, version));
        }
    }

    /// Work has ended; `well`: everything was done about what it has seen, or is waited for. Returns what has waited for it.
    pub(super) fn end(&self, key: &WorkKey, well: bool) -> Vec<Guard> {
        let mut book = self.0.lock();
        let Some(InHand { versions, waiting }) = book.in_hand.remove(key) else { return Vec::new() };
        let now = Instant::now();
        for (object, version) in versions {
            if well {
                book.done.insert(object, (version, now), 1);
            } else {
                book.done.remove(&object);
            }
        }
        waiting
    }

    /// Forgets what work has seen that has ended.
    pub(super) fn forget(&self) {
        self.0.lock().done = Lru::new(REMEMBERED);
    }

    /// Takes an event that says nothing new to this work: its guard is let go, or waits for the end of the work in hand. Gives the
    /// guard back if the event is news.
    pub(super) fn take(
        &self,
        key: &WorkKey,
        object: &ObjectRef,
        (uid, resource_version): (&str, &str),
        guard: Guard,
    ) -> Result<(), Guard> {
        if uid.is_empty() || resource_version.is_empty() {
            return Err(guard);
        }
        let (object, version) = (object_of(key, object), version_of(uid, resource_version));
        let mut book = self.0.lock();
        if let Some(in_hand) = book.in_hand.get_mut(key)
            && let Some(seen) = in_hand.versions.get(&object)
        {
            if *seen != version || in_hand.waiting.len() >= WAITING {
                return Err(guard);
            }
            in_hand.waiting.push(guard);
            return Ok(());
        }
        let fresh = book.done.get(&object).is_some_and(|(v, at)| *v == version && at.elapsed() < FRESH);
        // What a guard does when it is finished is not ours to wait for.
        drop(book);
        if !fresh {
            return Err(guard);
        }
        guard.finished();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use serde_json::json;

    use super::*;
    use crate::{key::Acknowledge, plan::object::Gvk};

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

    impl World {
        fn new() -> Self {
            let gvk = Gvk::of("v1", "ConfigMap");
            let object = ObjectRef { gvk, namespace: "n".into(), name: "a".into() };
            Self { seen: Seen::default(), done: Arc::default(), object }
        }

        fn saw(&self, key: &WorkKey, version: &str) {
            let live = json!({"metadata": {"uid": "u", "resourceVersion": version}});
            self.seen.saw(key, &self.object, &live);
        }

        /// Whether an event about this version was no news.
        fn takes(&self, key: &WorkKey, version: (&str, &str)) -> bool {
            let guard: Guard = Box::new(Waiter(Arc::clone(&self.done)));
            self.seen.take(key, &self.object, version, guard).is_ok()
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
        assert!(!world.takes(&harbour, ("u", "7")), "nothing is known");
        assert!(world.seen.begin(&harbour).is_empty());
        world.saw(&harbour, "6");
        world.saw(&harbour, "7");
        assert!(!world.takes(&harbour, ("u", "6")), "it was written since");
        assert!(!world.takes(&harbour, ("u", "8")), "somebody else's change, or several in one");
        assert!(world.takes(&harbour, ("u", "7")));
        assert_eq!(world.finished(), 0, "the work goes on");
        let waiting = world.seen.end(&harbour, true);
        assert_eq!(waiting.len(), 1);
        for guard in waiting {
            guard.finished();
        }
        assert!(world.takes(&harbour, ("u", "7")));
        assert_eq!(world.finished(), 2, "at once, by now");
        for news in [("u", "8"), ("v", "7"), ("", "7"), ("u", "")] {
            assert!(!world.takes(&harbour, news), "{news:?}");
        }
        assert!(!world.takes(&key("lagoon"), ("u", "7")), "another runtime");
        tokio::time::advance(FRESH).await;
        assert!(!world.takes(&harbour, ("u", "7")), "after so long it may be anything");
        assert_eq!(world.finished(), 2);
        world.seen.begin(&harbour);
        world.saw(&harbour, "7");
        world.seen.end(&harbour, true);
        world.seen.forget();
        assert!(!world.takes(&harbour, ("u", "7")));
    }

    #[tokio::test(start_paused = true)]
    async fn what_work_has_seen_that_did_not_end_well_is_news() {
        let world = World::new();
        let harbour = key("harbour");
        world.seen.begin(&harbour);
        world.saw(&harbour, "7");
        assert!(world.seen.end(&harbour, true).is_empty());
        world.seen.begin(&harbour);
        world.saw(&harbour, "7");
        assert!(world.takes(&harbour, ("u", "7")));
        assert_eq!(world.seen.end(&harbour, false).len(), 1, "it waits for the next try");
        assert!(!world.takes(&harbour, ("u", "7")));
        assert_eq!(world.finished(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_for_work_that_is_lost_waits_for_the_next() {
        let world = World::new();
        let harbour = key("harbour");
        world.seen.begin(&harbour);
        world.saw(&harbour, "7");
        assert!(world.takes(&harbour, ("u", "7")));
        assert_eq!(world.seen.begin(&harbour).len(), 1, "a panic");
        assert!(!world.takes(&harbour, ("u", "7")));
    }
}
