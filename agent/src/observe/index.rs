//! Fingerprints of a watch's objects.

use std::{collections::HashMap, sync::Arc};
use tidewatch_delivery::{
    digest::{BUCKETS, FineSums, SLOTS, Sums, add_fine, bucket, contribution},
    outbox::Moved,
};

/// Objects to sort at once.
const CHUNK: usize = 1_000;

/// Key of an object in its watch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    /// Object name.
    pub name: Arc<str>,
}

/// Effect of an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// New, or with a relevant change.
    Changed(Moved),
    /// Only the digest contribution changed.
    Quiet(Moved),
    /// No change.
    Unchanged,
    /// The index is full: the object is not tracked.
    Full,
}

/// Objects of a watch. A list starts with [`begin_list`](Self::begin_list) and may be restarted.
#[derive(Debug)]
pub struct Index {
    objects: HashMap<ObjectKey, Entry>,
    limit: usize,
    /// Number of the current list; entries with an older one are not in it yet.
    round: u32,
    /// The newest object's, shared by its neighbours in a list.
    namespace: Arc<str>,
}

#[derive(Debug)]
struct Entry {
    fingerprint: u64,
    contribution: u64,
    round: u32,
}

impl Index {
    /// Creates an index for at most `limit` objects.
    pub fn new(limit: usize) -> Self {
        Self { objects: HashMap::new(), limit, round: 0, namespace: Arc::default() }
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether the index is empty.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Sets the limit; existing objects stay.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Records an object. `version` is needed if the fingerprint may return to an earlier value.
    pub fn apply(&mut self, mut key: ObjectKey, fingerprint: u64, version: Option<&str>) -> Difference {
        let round = self.round;
        let after = contribution(&key.namespace, &key.name, fingerprint, version);
        if let Some(entry) = self.objects.get_mut(&key) {
            entry.round = round;
            let changed = std::mem::replace(&mut entry.fingerprint, fingerprint) != fingerprint;
            let before = std::mem::replace(&mut entry.contribution, after);
            return match (changed, before == after) {
                (true, _) => Difference::Changed(Moved { before, after }),
                (false, false) => Difference::Quiet(Moved { before, after }),
                (false, true) => Difference::Unchanged,
            };
        }
        if self.objects.len() >= self.limit {
            return Difference::Full;
        }
        if key.namespace == self.namespace {
            key.namespace = Arc::clone(&self.namespace);
        } else {
            self.namespace = Arc::clone(&key.namespace);
        }
        self.objects.insert(key, Entry { fingerprint, contribution: after, round });
        Difference::Changed(Moved { before: 0, after })
    }

    /// Removes an object; returns its contribution.
    pub fn delete(&mut self, key: &ObjectKey) -> Option<u64> {
        self.objects.remove(key).map(|entry| entry.contribution)
    }

    /// Starts a list.
    pub fn begin_list(&mut self) {
        self.round = self.round.wrapping_add(1);
    }

    /// Ends a list. Returns missing objects and their contributions, sorted.
    pub fn end_list(&mut self) -> Vec<(ObjectKey, u64)> {
        let round = self.round;
        let gone = self.objects.extract_if(|_, entry| entry.round != round);
        let mut gone: Vec<_> = gone.map(|(key, entry)| (key, entry.contribution)).collect();
        gone.sort_unstable();
        gone
    }

    /// All objects, unordered.
    pub fn keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.objects.keys()
    }

    /// Returns an object's contribution, or 0.
    pub fn contribution(&self, key: &ObjectKey) -> u64 {
        self.objects.get(key).map_or(0, |entry| entry.contribution)
    }

    /// Contributions summed by bucket.
    pub fn sums(&self) -> Box<Sums> {
        let mut sums = Box::new([0_u64; BUCKETS]);
        for (key, entry) in &self.objects {
            if let Some(sum) = sums.get_mut(bucket(&key.namespace, &key.name)) {
                *sum = sum.wrapping_add(entry.contribution);
            }
        }
        sums
    }

    /// Contributions in finer sums ([`add_fine`]).
    pub fn fine_sums(&self, salt: u64) -> FineSums {
        let mut sums = vec![0_u64; SLOTS].into_boxed_slice();
        for (key, entry) in &self.objects {
            add_fine(&mut sums, salt, &key.namespace, &key.name, entry.contribution);
        }
        sums
    }

    /// Counts objects in the buckets of `mask`.
    pub fn count_in(&self, mask: u64) -> usize {
        self.objects.keys().filter(|key| inside(mask, key)).count()
    }

    /// Splits `mask` into parts of about 1,000 objects.
    pub fn parts(&self, mask: u64) -> Vec<u64> {
        let buckets = (BUCKETS * CHUNK / self.len().max(1)).clamp(1, BUCKETS);
        let parts = (0..BUCKETS).step_by(buckets).map(|first| {
            let last = (first + buckets).min(BUCKETS);
            mask & (u64::MAX >> (BUCKETS - last)) & (u64::MAX << first)
        });
        parts.filter(|part| *part != 0).collect()
    }

    /// Objects in the buckets of `mask` and their contributions, sorted.
    pub fn in_buckets(&self, mask: u64) -> Vec<(ObjectKey, u64)> {
        let objects = self.objects.iter().filter(|(key, _)| inside(mask, key));
        let mut objects: Vec<_> = objects.map(|(key, entry)| (key.clone(), entry.contribution)).collect();
        objects.sort_unstable();
        objects
    }
}

fn inside(mask: u64, key: &ObjectKey) -> bool {
    mask >> bucket(&key.namespace, &key.name) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey { namespace: "n".into(), name: name.into() }
    }

    fn of(name: &str, fingerprint: u64) -> u64 {
        contribution("n", name, fingerprint, None)
    }

    fn changed(index: &mut Index, name: &str, fingerprint: u64) -> bool {
        match index.apply(key(name), fingerprint, None) {
            Difference::Changed(moved) => {
                assert_eq!(moved.after, of(name, fingerprint));
                true
            }
            Difference::Unchanged => false,
            other => panic!("{other:?}"),
        }
    }

    fn listed(objects: &[(&str, u64)]) -> Index {
        let mut index = Index::new(10);
        index.begin_list();
        for (name, fingerprint) in objects {
            assert!(changed(&mut index, name, *fingerprint), "everything is new at first");
        }
        assert!(index.end_list().is_empty());
        index
    }

    #[test]
    fn only_differences_are_changes() {
        let mut index = listed(&[("a", 1), ("b", 1)]);
        assert!(!changed(&mut index, "a", 1));
        assert!(changed(&mut index, "a", 2));
        assert!(!changed(&mut index, "a", 2));
        assert!(changed(&mut index, "c", 1));
        assert_eq!(index.delete(&key("b")), Some(of("b", 1)));
        assert_eq!(index.delete(&key("b")), None, "once");
        assert!(changed(&mut index, "b", 1), "made again");
    }

    #[test]
    fn objects_missing_from_a_list_are_gone() {
        let mut index = listed(&[("a", 1), ("b", 1), ("c", 1)]);
        index.begin_list();
        assert!(!changed(&mut index, "b", 1));
        assert!(changed(&mut index, "d", 1));
        assert_eq!(index.end_list(), [(key("a"), of("a", 1)), (key("c"), of("c", 1))]);
        assert_eq!(index.len(), 2);
    }

    #[test]
    fn an_incomplete_list_deletes_nothing() {
        let mut index = listed(&[("a", 1), ("b", 1)]);
        index.begin_list();
        assert!(!changed(&mut index, "a", 1));
        index.begin_list();
        assert!(!changed(&mut index, "b", 1));
        assert_eq!(index.end_list(), [(key("a"), of("a", 1))], "only the complete list counts");
    }

    #[test]
    fn a_full_index_refuses_new_objects_and_keeps_working() {
        let mut index = Index::new(1);
        assert!(changed(&mut index, "a", 1));
        assert_eq!(index.apply(key("b"), 1, None), Difference::Full);
        assert!(changed(&mut index, "a", 2));
        assert!(index.delete(&key("a")).is_some());
        assert!(changed(&mut index, "b", 1));
    }

    #[test]
    fn bucket_sums_depend_only_on_the_content() {
        let mut index = listed(&[("a", 1), ("b", 1)]);
        let sums = index.sums();
        assert!(changed(&mut index, "a", 2));
        assert_ne!(sums, index.sums());
        assert_eq!(index.delete(&key("a")), Some(of("a", 2)));
        assert!(changed(&mut index, "a", 1));
        assert_eq!(sums, index.sums(), "however it came to be");
        assert_eq!(index.in_buckets(u64::MAX), [(key("a"), of("a", 1)), (key("b"), of("b", 1))]);
        assert_eq!(index.in_buckets(1 << bucket("n", "a")).first(), Some(&(key("a"), of("a", 1))));
        assert!(index.in_buckets(0).is_empty());
    }

    #[test]
    fn report_parts_cover_all_objects_and_are_small() {
        let mut index = Index::new(20_000);
        for n in 0..20_000 {
            changed(&mut index, &format!("o-{n}"), 1);
        }
        for (mask, count) in [(u64::MAX, 20_000), (0b1010, index.count_in(0b1010)), (0, 0)] {
            let parts: Vec<_> = index.parts(mask).into_iter().map(|part| index.in_buckets(part)).collect();
            assert!(parts.iter().all(|part| (1..=2 * CHUNK).contains(&part.len())), "{mask:b}");
            let mut all = parts.concat();
            all.sort_unstable();
            assert_eq!(all, index.in_buckets(mask));
            assert_eq!((all.len(), index.count_in(mask)), (count, count));
        }
        let few = listed(&[("a", 1), ("b", 1)]);
        assert_eq!(few.parts(u64::MAX), [u64::MAX], "sorted as a whole");
        assert_eq!(Index::new(1).parts(u64::MAX), [u64::MAX]);
    }

    #[test]
    fn new_versions_with_equal_content_are_quiet_moves() {
        let mut index = Index::new(1);
        let Difference::Changed(first) = index.apply(key("a"), 1, Some("10")) else { panic!("new") };
        let Difference::Quiet(moved) = index.apply(key("a"), 1, Some("11")) else { panic!("no change") };
        assert_eq!(moved.before, first.after);
        assert_ne!(moved.after, first.after, "or a change there and back could hide");
        assert_eq!(index.apply(key("a"), 1, Some("11")), Difference::Unchanged);
    }
}
