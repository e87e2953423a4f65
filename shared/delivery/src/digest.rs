//! What was reconciled last, as a few numbers per watch.
//!
//! Each object *contributes* one number: a hash of its key, of what its watch looks at (which includes
//! its uid) and, where that could come back to what it was, of its resourceVersion. An object's
//! contribution therefore never takes a value again that it has left. The contributions of a watch are
//! summed in [`BUCKETS`] buckets, by key. Sums, so that a change costs one subtraction and one addition,
//! whatever the order.
//!
//! The digest is *not* about what there is now. While an object is dirty, its contribution stays that of
//! the state that was reconciled last; it moves when the object's number is let go by every route. So a
//! digest that equals a fresh list says that nothing in it was missed.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Buckets of one watch. A difference costs the report of 1/64 of the watch's objects.
pub const BUCKETS: usize = 64;
/// All buckets, as a mask.
pub const ALL: u64 = u64::MAX;

/// The sums of one watch.
pub type Sums = [u64; BUCKETS];

/// The bucket of an object.
#[must_use]
pub fn bucket(namespace: &str, name: &str) -> usize {
    // The upper six bits: the lower ones are what hash tables use.
    usize::try_from(key_hash(namespace, name) >> 58).unwrap_or(0)
}

/// Sums that are finer than [`Sums`] and kept nowhere: of the objects of one watch, [`SLOTS`] of them.
pub type FineSums = Box<[u64]>;
/// How many sums [`add_fine`] knows.
pub const SLOTS: usize = 4_096;

/// Adds what an object contributes to the one of [`SLOTS`] sums that it falls into. With another `salt` it is another one, so
/// that two objects share theirs by chance only.
pub fn add_fine(sums: &mut [u64], salt: u64, namespace: &str, name: &str, contribution: u64) {
    let slot = usize::try_from(key_hash(namespace, name).wrapping_mul(salt | 1) >> 52).unwrap_or(0);
    if let Some(sum) = sums.get_mut(slot) {
        *sum = sum.wrapping_add(contribution);
    }
}

/// What an object contributes; never 0, which stands for an object that is not there. `version` is its
/// resourceVersion, if `fingerprint` alone could return to an earlier value.
#[must_use]
pub fn contribution(namespace: &str, name: &str, fingerprint: u64, version: Option<&str>) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&key_hash(namespace, name).to_le_bytes());
    hash.update(&fingerprint.to_le_bytes());
    if let Some(version) = version {
        hash.update(version.as_bytes());
    }
    hash.digest().max(1)
}

fn key_hash(namespace: &str, name: &str) -> u64 {
    if namespace.is_empty() {
        return xxh3_64(name.as_bytes());
    }
    let mut hash = Xxh3::new();
    hash.update(namespace.as_bytes());
    // No namespace contains it, so that `a/bc` is not `ab/c`.
    hash.update(b"/");
    hash.update(name.as_bytes());
    hash.digest()
}

/// What is known to be reconciled of one watch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Section {
    /// A hash of what the watch selects. Another selection is another set of objects.
    pub configuration: u64,
    /// The API version that was watched.
    pub version: String,
    /// The kind, so that a watch whose kind has gone meanwhile can say so.
    pub kind: String,
    /// Buckets in which something may be gone that nobody could name, and whose reconcile as a whole has
    /// not finished: they equal nothing.
    pub stale: u64,
    /// The sums.
    pub sums: Box<Sums>,
}

impl Section {
    /// A watch of which nothing is known to be reconciled.
    #[must_use]
    pub fn unknown(configuration: u64, version: &str, kind: &str) -> Self {
        Self {
            configuration,
            version: version.to_owned(),
            kind: kind.to_owned(),
            stale: ALL,
            sums: Box::new([0; BUCKETS]),
        }
    }
}

/// The buckets, as a mask, in which `listed` is not what was reconciled. Without a section, or with one
/// for another configuration, it is all of them.
#[must_use]
pub fn compare(stored: Option<&Section>, configuration: u64, listed: &Sums) -> u64 {
    let Some(stored) = stored.filter(|s| s.configuration == configuration) else { return ALL };
    let different = stored.sums.iter().zip(listed).enumerate();
    different.filter(|(_, (a, b))| a != b).fold(stored.stale, |mask, (bucket, _)| mask | 1 << bucket)
}

/// The digest of one agent: a section for each watch that was compared with a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Digest {
    sections: BTreeMap<String, Section>,
}

impl Digest {
    /// No watch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a watch's section.
    pub fn insert(&mut self, watch: impl Into<String>, section: Section) {
        self.sections.insert(watch.into(), section);
    }

    /// A watch's section.
    pub fn get(&self, watch: &str) -> Option<&Section> {
        self.sections.get(watch)
    }

    /// All sections, by watch.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Section)> {
        self.sections.iter().map(|(watch, section)| (watch.as_str(), section))
    }

    /// Forgets a watch. Whether it was there.
    pub fn remove(&mut self, watch: &str) -> bool {
        self.sections.remove(watch).is_some()
    }

    /// An object's contribution is another one now; 0 stands for an object that is not there. Unknown
    /// watches are ignored.
    pub fn shift(&mut self, watch: &str, namespace: &str, name: &str, before: u64, after: u64) {
        if let Some(section) = self.sections.get_mut(watch)
            && let Some(sum) = section.sums.get_mut(bucket(namespace, name))
        {
            *sum = sum.wrapping_sub(before).wrapping_add(after);
        }
    }

    /// Something of a watch may have gone without a trace: it equals nothing until [`Digest::settle`].
    pub fn doubt(&mut self, watch: &str) {
        if let Some(section) = self.sections.get_mut(watch) {
            section.stale = ALL;
        }
    }

    /// What could not be named was reconciled as a whole: the watch's sums hold again.
    pub fn settle(&mut self, watch: &str) {
        if let Some(section) = self.sections.get_mut(watch) {
            section.stale = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contributions_differ_by_every_part() {
        let base = contribution("n", "a", 1, None);
        for other in [
            contribution("m", "a", 1, None),
            contribution("n", "b", 1, None),
            contribution("n", "a", 2, None),
            contribution("n", "a", 1, Some("7")),
            contribution("", "n/a", 2, None),
        ] {
            assert_ne!(base, other);
        }
        assert_ne!(contribution("n", "a", 1, Some("7")), contribution("n", "a", 1, Some("8")));
        assert_ne!(key_hash("ab", "c"), key_hash("a", "bc"));
    }

    #[test]
    fn keys_spread_over_all_buckets() {
        let mut counts = [0_u32; BUCKETS];
        for n in 0..6400 {
            counts[bucket("default", &format!("object-{n}"))] += 1;
        }
        assert!(counts.iter().all(|n| (40..200).contains(n)), "{counts:?}");
    }

    #[test]
    fn a_difference_is_found_in_its_bucket() {
        let mut listed = [0; BUCKETS];
        listed[3] = 9;
        let mut stored = Section { stale: 0, ..Section::unknown(1, "v1", "K") };
        assert_eq!(compare(Some(&stored), 1, &listed), 1 << 3);
        stored.sums[3] = 9;
        assert_eq!(compare(Some(&stored), 1, &listed), 0);
        stored.stale = 1 << 63;
        assert_eq!(compare(Some(&stored), 1, &listed), 1 << 63, "nobody knows what is gone there");
        assert_eq!(compare(Some(&stored), 2, &listed), ALL, "another selection");
        assert_eq!(compare(None, 1, &listed), ALL);
    }
}
