//! Names of objects, for routes that need more than sums.
//!
//! After a restart the [digest](crate::digest) shows that an object is gone, but not which one. The engine reconciles
//! by kind, but another manager needs the name. So these names outlive the agent.
//!
//! A name is *stored before its object is reported*, and removed some time after the object's end was acknowledged. So
//! the stored names cover every object that a manager may know. Those missing from a list are reported as gone; a
//! surplus name costs one event. The delay covers a manager that finds a recreated object: until the watch shows it,
//! only the name records that the manager knows it.
//!
//! Beyond an optional limit, names are left out. The end of such an object is missed while the agent is down.

use std::{collections::BTreeMap, sync::Arc};

use crate::{Tick, outbox::Key};

/// Stored objects of one watch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Listed {
    /// Watched API version.
    pub version: Arc<str>,
    /// Kind.
    pub kind: Arc<str>,
    /// Namespace (empty if cluster-scoped) and name, sorted.
    pub objects: Vec<(Arc<str>, Arc<str>)>,
}

/// All names to store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Revision for [`Names::stored`].
    pub revision: u64,
    /// By watch.
    pub watches: BTreeMap<Arc<str>, Listed>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Kept {
    version: Arc<str>,
    kind: Arc<str>,
    objects: BTreeMap<(Arc<str>, Arc<str>), NameState>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct NameState {
    /// Revision that added it.
    added: u64,
    /// Time of the acknowledged deletion.
    deleted: Option<Tick>,
}

/// Names that a manager may know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Names {
    watches: BTreeMap<Arc<str>, Kept>,
    count: usize,
    /// Limit of additions.
    max: Option<usize>,
    left_out: u64,
    revision: u64,
    stored: u64,
}

impl Names {
    /// Names of an earlier run.
    #[must_use]
    pub fn found(watches: BTreeMap<Arc<str>, Listed>) -> Self {
        let kept = |listed: Listed| Kept {
            version: listed.version,
            kind: listed.kind,
            objects: listed.objects.into_iter().map(|object| (object, NameState::default())).collect(),
        };
        let watches: BTreeMap<_, _> =
            watches.into_iter().map(|(watch, listed)| (watch, kept(listed))).collect();
        Self { count: count(&watches), watches, ..Self::default() }
    }

    /// Limits additions to `max` names; present ones stay.
    #[must_use]
    pub fn within(self, max: usize) -> Self {
        Self { max: Some(max), ..self }
    }

    /// Number of objects reported or listed without capacity for the name.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Counts additions and removals.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Number of names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.watches.is_empty()
    }

    /// Watch, version and kind.
    pub fn kinds(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.watches.iter().map(|(watch, kept)| (&**watch, &*kept.version, &*kept.kind))
    }

    /// Adds a name. Returns true if the report need not wait: the name is stored, or never will be.
    pub fn add(&mut self, key: &Key, version: &Arc<str>, kind: &Arc<str>) -> bool {
        if self.max.is_some_and(|max| self.count >= max) && !self.contains(key) {
            self.left_out += 1;
            return true;
        }
        let kept = self.watches.entry(Arc::clone(&key.watch)).or_default();
        if kept.version != *version || kept.kind != *kind {
            (kept.version, kept.kind) = (Arc::clone(version), Arc::clone(kind));
            self.revision += 1;
        }
        let (revision, count) = (&mut self.revision, &mut self.count);
        let state = kept.objects.entry(object(key)).or_insert_with(|| {
            *revision += 1;
            *count += 1;
            NameState { added: *revision, deleted: None }
        });
        state.deleted = None;
        state.added <= self.stored
    }

    /// Records an acknowledged deletion.
    pub fn deletion_acknowledged(&mut self, key: &Key, now: Tick) {
        let kept = self.watches.get_mut(&key.watch);
        if let Some(state) = kept.and_then(|kept| kept.objects.get_mut(&object(key))) {
            state.deleted = Some(now);
        }
    }

    /// Removes names whose deletion was acknowledged by `until(watch)`, the time up to which the watch has shown all changes.
    /// `None` removes nothing.
    pub fn expire(&mut self, until: impl Fn(&str) -> Option<Tick>) {
        let mut taken = 0;
        self.watches.retain(|watch, kept| {
            let Some(until) = until(watch) else { return true };
            taken +=
                kept.objects.extract_if(.., |_, state| state.deleted.is_some_and(|at| at <= until)).count();
            !kept.objects.is_empty()
        });
        if taken > 0 {
            self.count -= taken;
            self.revision += 1;
        }
    }

    /// Removes a watch that has ended.
    pub fn forget(&mut self, watch: &str) {
        if let Some(kept) = self.watches.remove(watch) {
            self.count -= kept.objects.len();
            self.revision += 1;
        }
    }

    /// Keeps only wanted watches.
    pub fn retain(&mut self, wanted: impl Fn(&str) -> bool) {
        let before = self.watches.len();
        self.watches.retain(|watch, _| wanted(watch));
        if self.watches.len() != before {
            self.count = count(&self.watches);
            self.revision += 1;
        }
    }

    /// Names of `watch` that `present` (in any order) lacks.
    #[must_use]
    pub fn missing(&self, watch: &str, present: &[Key]) -> Vec<Key> {
        let Some((watch, kept)) = self.watches.get_key_value(watch) else { return Vec::new() };
        let present: std::collections::BTreeSet<(&str, &str)> =
            present.iter().map(|key| (&*key.namespace, &*key.name)).collect();
        let missing =
            kept.objects.keys().filter(|(namespace, name)| !present.contains(&(&**namespace, &**name)));
        let key = |(namespace, name): &(Arc<str>, Arc<str>)| Key {
            watch: Arc::clone(watch),
            namespace: Arc::clone(namespace),
            name: Arc::clone(name),
        };
        missing.map(key).collect()
    }

    /// Whether a name is kept.
    #[must_use]
    pub fn contains(&self, key: &Key) -> bool {
        self.watches.get(&key.watch).is_some_and(|kept| kept.objects.contains_key(&object(key)))
    }

    /// Whether a name is stored.
    #[must_use]
    pub fn is_stored(&self, key: &Key) -> bool {
        let kept = self.watches.get(&key.watch);
        kept.and_then(|kept| kept.objects.get(&object(key))).is_some_and(|state| state.added <= self.stored)
    }

    /// Records that this revision is stored, or need not be awaited.
    pub fn stored(&mut self, revision: u64) {
        self.stored = self.stored.max(revision);
    }

    /// Snapshot to store.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let listed = |kept: &Kept| Listed {
            version: Arc::clone(&kept.version),
            kind: Arc::clone(&kept.kind),
            objects: kept.objects.keys().cloned().collect(),
        };
        let watches = self.watches.iter().map(|(watch, kept)| (Arc::clone(watch), listed(kept))).collect();
        Snapshot { revision: self.revision, watches }
    }
}

fn count(watches: &BTreeMap<Arc<str>, Kept>) -> usize {
    watches.values().map(|kept| kept.objects.len()).sum()
}

fn object(key: &Key) -> (Arc<str>, Arc<str>) {
    (Arc::clone(&key.namespace), Arc::clone(&key.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(watch: &str, name: &str) -> Key {
        Key { watch: watch.into(), namespace: "n".into(), name: name.into() }
    }

    fn add(names: &mut Names, key: &Key) -> bool {
        names.add(key, &"v1".into(), &"Thing".into())
    }

    #[test]
    fn a_name_is_stored_with_its_snapshot() {
        let mut names = Names::default();
        assert!(!add(&mut names, &key("w", "a")));
        let first = names.snapshot();
        assert!(!add(&mut names, &key("w", "b")));
        names.stored(first.revision);
        assert!(add(&mut names, &key("w", "a")), "known already");
        assert!(!names.is_stored(&key("w", "b")));
        names.stored(names.revision());
        assert!(names.is_stored(&key("w", "b")));
        names.stored(first.revision);
        assert!(names.is_stored(&key("w", "b")), "an earlier write that is heard of late");
    }

    #[test]
    fn a_returning_removed_name_is_stored_again() {
        let mut names = Names::default();
        add(&mut names, &key("w", "a"));
        let with = names.snapshot();
        names.stored(with.revision);
        names.deletion_acknowledged(&key("w", "a"), Tick::from_secs(5));
        names.expire(|_| Some(Tick::from_secs(4)));
        names.expire(|_| None);
        assert_eq!(names.snapshot(), with, "not long enough ago");
        names.expire(|_| Some(Tick::from_secs(5)));
        let without = names.snapshot();
        assert!(without.watches.is_empty() && without.revision > with.revision);
        assert!(!add(&mut names, &key("w", "a")));
        names.stored(without.revision);
        assert!(!names.is_stored(&key("w", "a")), "that one was without it");
    }

    #[test]
    fn names_over_the_limit_are_left_out_without_waiting() {
        let mut names = Names::default().within(2);
        assert!(!add(&mut names, &key("w", "a")) && !add(&mut names, &key("other", "b")));
        let full = names.snapshot();
        assert!(add(&mut names, &key("w", "c")) && add(&mut names, &key("third", "d")));
        assert_eq!((names.len(), names.left_out(), names.snapshot()), (2, 2, full));
        assert!(!names.contains(&key("w", "c")) && names.missing("w", &[key("w", "a")]).is_empty());
        assert!(!add(&mut names, &key("w", "a")), "what is kept is kept");
        for capacity in 0..3 {
            match capacity {
                0 => names.forget("other"),
                1 => names.retain(|watch| watch != "w"),
                _ => {
                    names.deletion_acknowledged(&key("w", "c1"), Tick::ZERO);
                    names.expire(|_| Some(Tick::ZERO));
                }
            }
            let kept = names.watches.values().map(|kept| kept.objects.len()).sum::<usize>();
            assert_eq!(names.len(), kept, "{capacity}");
            assert!(!add(&mut names, &key("w", &format!("c{capacity}"))), "there is room again");
            while names.len() < 2 {
                add(&mut names, &key("w", &format!("more{capacity}")));
            }
        }
        assert_eq!(names.left_out(), 2);
        // A smaller limit removes nothing.
        let mut found = Names::found(names.snapshot().watches).within(1);
        assert!(found.len() == 2 && add(&mut found, &key("w", "z")) && found.len() == 2);
    }

    #[test]
    fn a_name_returning_in_time_stays() {
        let mut names = Names::default();
        add(&mut names, &key("w", "a"));
        names.stored(names.revision());
        names.deletion_acknowledged(&key("w", "a"), Tick::ZERO);
        assert!(add(&mut names, &key("w", "a")));
        names.expire(|_| Some(Tick::MAX));
        assert_eq!(names.len(), 1);
    }

    #[test]
    fn stored_names_are_found_and_missing_ones_listed() {
        let mut names = Names::default();
        for name in ["a", "b"] {
            add(&mut names, &key("w", name));
        }
        add(&mut names, &key("other", "c"));
        let mut found = Names::found(names.snapshot().watches);
        assert_eq!(found.len(), 3);
        assert_eq!(found.kinds().collect::<Vec<_>>(), [("other", "v1", "Thing"), ("w", "v1", "Thing")]);
        assert_eq!(found.missing("w", &[key("w", "b")]), [key("w", "a")]);
        assert!(found.missing("nobody", &[]).is_empty());
        assert!(add(&mut found, &key("w", "a")) && found.revision() == 0, "nothing to store again");
        found.retain(|watch| watch == "other");
        assert!(found.missing("w", &[]).is_empty() && found.revision() == 1);
    }
}
