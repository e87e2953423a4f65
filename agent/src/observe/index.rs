//! What is known of a watch's objects: a fingerprint each, never a body. Pure.

use std::collections::HashMap;

/// An object within a watch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// The object's name.
    pub name: String,
}

/// What an object's appearance in the watch means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is new, or a part that counts is different.
    Changed,
    /// Nothing that counts is different.
    Unchanged,
    /// It is new and the index is full: it is not remembered, so nothing about it can be told.
    Full,
}

/// The objects of one watch. A list from the API server comes between [`begin_list`](Self::begin_list) and
/// [`end_list`](Self::end_list); it may be broken off and begun again.
#[derive(Debug)]
pub struct Index {
    objects: HashMap<ObjectKey, Entry>,
    limit: usize,
    /// Number of the current list; an entry with an older one was not in it (yet).
    round: u64,
}

#[derive(Debug)]
struct Entry {
    fingerprint: u64,
    round: u64,
}

impl Index {
    /// An empty index for at most `limit` objects.
    pub fn new(limit: usize) -> Self {
        Self { objects: HashMap::new(), limit, round: 0 }
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether no object is known.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Sets how many objects are remembered; what is remembered already stays.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// An object was seen, in a list or by the watch.
    pub fn apply(&mut self, key: ObjectKey, fingerprint: u64) -> Verdict {
        let round = self.round;
        if let Some(entry) = self.objects.get_mut(&key) {
            entry.round = round;
            let changed = std::mem::replace(&mut entry.fingerprint, fingerprint) != fingerprint;
            return if changed { Verdict::Changed } else { Verdict::Unchanged };
        }
        if self.objects.len() >= self.limit {
            return Verdict::Full;
        }
        self.objects.insert(key, Entry { fingerprint, round });
        Verdict::Changed
    }

    /// An object was deleted, or left the label selector. Returns whether it was known.
    pub fn delete(&mut self, key: &ObjectKey) -> bool {
        self.objects.remove(key).is_some()
    }

    /// A list begins.
    pub fn begin_list(&mut self) {
        self.round += 1;
    }

    /// The list is complete: what was not in it is gone. Returns those, sorted.
    pub fn end_list(&mut self) -> Vec<ObjectKey> {
        let round = self.round;
        let mut gone: Vec<ObjectKey> =
            self.objects.extract_if(|_, entry| entry.round != round).map(|(key, _)| key).collect();
        gone.sort_unstable();
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey { namespace: "n".into(), name: name.into() }
    }

    fn listed(objects: &[(&str, u64)]) -> Index {
        let mut index = Index::new(10);
        index.begin_list();
        for (name, fingerprint) in objects {
            assert_eq!(index.apply(key(name), *fingerprint), Verdict::Changed, "everything is new at first");
        }
        assert!(index.end_list().is_empty());
        index
    }

    #[test]
    fn only_differences_are_changes() {
        let mut index = listed(&[("a", 1), ("b", 1)]);
        assert_eq!(index.apply(key("a"), 1), Verdict::Unchanged);
        assert_eq!(index.apply(key("a"), 2), Verdict::Changed);
        assert_eq!(index.apply(key("a"), 2), Verdict::Unchanged);
        assert_eq!(index.apply(key("c"), 1), Verdict::Changed);
        assert!(index.delete(&key("b")));
        assert!(!index.delete(&key("b")), "once");
        assert_eq!(index.apply(key("b"), 1), Verdict::Changed, "made again");
    }

    #[test]
    fn what_a_list_does_not_have_is_gone() {
        let mut index = listed(&[("a", 1), ("b", 1), ("c", 1)]);
        index.begin_list();
        assert_eq!(index.apply(key("b"), 1), Verdict::Unchanged);
        assert_eq!(index.apply(key("d"), 1), Verdict::Changed);
        assert_eq!(index.end_list(), [key("a"), key("c")]);
        assert_eq!(index.len(), 2);
    }

    #[test]
    fn a_broken_off_list_deletes_nothing() {
        let mut index = listed(&[("a", 1), ("b", 1)]);
        index.begin_list();
        assert_eq!(index.apply(key("a"), 1), Verdict::Unchanged);
        index.begin_list();
        assert_eq!(index.apply(key("b"), 1), Verdict::Unchanged);
        assert_eq!(index.end_list(), [key("a")], "only the complete list counts");
    }

    #[test]
    fn a_full_index_takes_no_more_and_still_works() {
        let mut index = Index::new(1);
        assert_eq!(index.apply(key("a"), 1), Verdict::Changed);
        assert_eq!(index.apply(key("b"), 1), Verdict::Full);
        assert_eq!(index.apply(key("a"), 2), Verdict::Changed);
        assert!(index.delete(&key("a")));
        assert_eq!(index.apply(key("b"), 1), Verdict::Changed);
    }
}
