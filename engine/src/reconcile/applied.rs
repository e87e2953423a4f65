//! The applied state of each reconcile key: one record of all that later reconciles may rely on.

use std::{collections::HashSet, num::NonZeroUsize, time::Duration};

use jiff::{SignedDuration, Timestamp};
use lru::LruCache;
use parking_lot::Mutex;
use tidewatch_api::object::{ObjectId, ObjectRef};
use tidewatch_deployer::history::ApplyHistory;

use super::manifest::scope::LastSync;
use crate::key::WorkKey;

/// Records in the fleet. A key whose record was evicted gets a full look.
const RECORDS: NonZeroUsize = NonZeroUsize::new(50_000).unwrap();
/// Longest delay of a status.
const STATUS_DELAY: SignedDuration = SignedDuration::from_secs(5);

/// The applied states of all Manifests, and of the engine's own objects in the runtimes.
#[derive(Debug)]
pub(crate) struct AppliedStates(Mutex<LruCache<WorkKey, AppliedState>>);

#[derive(Debug, Default)]
struct AppliedState {
    /// The last complete sync; `None`: the next one looks at everything.
    last_sync: Option<LastSync>,
    history: ApplyHistory,
    /// Since when the status of a Manifest in progress is delayed.
    status_delayed_since: Option<Timestamp>,
}

impl Default for AppliedStates {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(RECORDS)))
    }
}

impl AppliedStates {
    /// Removes and returns the last sync, because the new one may not finish.
    pub(super) fn take_last_sync(&self, key: &WorkKey) -> Option<LastSync> {
        self.0.lock().get_mut(key)?.last_sync.take()
    }

    /// Keeps a complete sync. The history of other objects than those of the inventory goes.
    pub(super) fn put_last_sync(&self, key: &WorkKey, sync: LastSync, inventory: &[ObjectRef]) {
        let objects: HashSet<ObjectId> = inventory.iter().map(ObjectId::from).collect();
        self.change(key, |state| {
            state.history.retain(|object| objects.contains(&object));
            state.last_sync = Some(sync);
        });
    }

    /// Forgets all that is known of a key whose object is gone.
    pub(super) fn forget(&self, key: &WorkKey) {
        self.0.lock().pop(key);
    }

    /// Forgets the last sync of a key: the next one looks at everything.
    pub(super) fn forget_sync(&self, key: &WorkKey) {
        self.take_last_sync(key);
    }

    /// Forgets all last syncs. The history of conflicts stays.
    pub(crate) fn forget_syncs(&self) {
        self.0.lock().iter_mut().for_each(|(_, state)| state.last_sync = None);
    }

    /// Reads the history of a key's objects.
    pub(super) fn history<T>(&self, key: &WorkKey, read: impl FnOnce(&ApplyHistory) -> T) -> T {
        match self.0.lock().get(key) {
            Some(state) => read(&state.history),
            None => read(&ApplyHistory::default()),
        }
    }

    /// Changes the history of a key's objects.
    pub(super) fn change_history(&self, key: &WorkKey, change: impl FnOnce(&mut ApplyHistory)) {
        self.change(key, |state| change(&mut state.history));
    }

    /// When the delay of a Manifest's status began.
    pub(super) fn status_delayed_since(&self, key: &WorkKey) -> Option<Timestamp> {
        self.0.lock().get(key)?.status_delayed_since
    }

    /// Returns how long a status may still be delayed; `None`: write it. Ends the delay then.
    pub(super) fn delay_status(&self, key: &WorkKey, may_delay: bool, now: Timestamp) -> Option<Duration> {
        self.change(key, |state| {
            // A clock that was set back restarts the delay.
            let since = state.status_delayed_since.filter(|since| *since <= now);
            let left = STATUS_DELAY - since.map_or(SignedDuration::ZERO, |since| now.duration_since(since));
            let left = Duration::try_from(left).ok().filter(|left| may_delay && !left.is_zero());
            state.status_delayed_since = left.and(since.or(Some(now)));
            left
        })
    }

    fn change<T>(&self, key: &WorkKey, change: impl FnOnce(&mut AppliedState) -> T) -> T {
        change(self.0.lock().get_or_insert_mut(key.clone(), AppliedState::default))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> WorkKey {
        WorkKey::Manifest { kyma: "k".into(), name: name.into() }
    }

    #[test]
    fn a_sync_is_taken_once_and_forgotten_with_all_others() {
        let states = AppliedStates::default();
        let (a, b) = (key("a"), key("b"));
        states.put_last_sync(&a, LastSync::default(), &[]);
        assert_eq!(states.take_last_sync(&b), None);
        assert_eq!(states.take_last_sync(&a), Some(LastSync::default()));
        assert_eq!(states.take_last_sync(&a), None, "the sync that has begun may fail");
        states.put_last_sync(&a, LastSync::default(), &[]);
        states.forget_syncs();
        assert_eq!(states.take_last_sync(&a), None);
    }

    #[test]
    fn a_status_is_written_at_least_every_five_seconds() {
        const DELAY: Duration = Duration::from_secs(5);
        let states = AppliedStates::default();
        let (u, v) = (key("u"), key("v"));
        let delay = |key, may_delay, millis| {
            states.delay_status(key, may_delay, Timestamp::from_millisecond(millis).unwrap())
        };
        assert_eq!(delay(&u, true, 10_000), Some(DELAY));
        assert_eq!(delay(&u, true, 12_500), Some(DELAY / 2));
        assert_eq!(delay(&v, true, 12_500), Some(DELAY));
        assert_eq!(delay(&u, true, 15_000), None, "now it is written");
        assert_eq!(delay(&u, true, 15_000), Some(DELAY), "the next one waits again");
        assert_eq!(delay(&u, false, 15_000), None);
        assert_eq!(delay(&u, true, 16_000), Some(DELAY), "one was written meanwhile");
        assert_eq!(delay(&u, true, 17_000), Some(Duration::from_secs(4)));
        assert_eq!(delay(&u, true, 2_000), Some(DELAY), "the clock was set back");
        assert_eq!(delay(&u, true, 7_000), None);
    }
}
