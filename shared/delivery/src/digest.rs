//! The last reconciled state, as a few sums per watch.
//!
//! Each object contributes a hash of its key, its watched part with the uid, and, if these could return to an earlier
//! value, its resourceVersion. So a contribution never returns to an earlier value. Each watch sums them in [`BUCKETS`]
//! buckets by key, in any order.
//!
//! The digest is *not* the present state: a dirty object keeps its contribution until every route has acknowledged it.
//! A digest that equals a fresh list proves that no change was missed.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Buckets per watch. A difference costs a report of 1/64 of the objects.
pub const BUCKETS: usize = 64;
/// Mask of all buckets.
pub const ALL: u64 = u64::MAX;

/// Sums of one watch.
pub type Sums = [u64; BUCKETS];

/// Bucket of an object.
#[must_use]
pub fn bucket(namespace: &str, name: &str) -> usize {
    // Hash tables use the lower bits.
    usize::try_from(key_hash(namespace, name) >> 58).unwrap_or(0)
}

/// [`SLOTS`] sums of one watch, finer than [`Sums`], never stored.
pub type FineSums = Box<[u64]>;
/// Sums in [`FineSums`].
pub const SLOTS: usize = 4_096;

/// Adds a contribution to the object's slot. `salt` varies the slots, so two objects share one only by chance.
pub fn add_fine(sums: &mut [u64], salt: u64, namespace: &str, name: &str, contribution: u64) {
    let slot = usize::try_from(key_hash(namespace, name).wrapping_mul(salt | 1) >> 52).unwrap_or(0);
    if let Some(sum) = sums.get_mut(slot) {
        *sum = sum.wrapping_add(contribution);
    }
}

/// Contribution of an object; never 0, which means absent. `version` is the resourceVersion, if `fingerprint` can
/// return to an earlier value.
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
    // Not in a namespace, so `a/bc` differs from `ab/c`.
    hash.update(b"/");
    hash.update(name.as_bytes());
    hash.digest()
}

/// Reconciled state of one watch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Section {
    /// Hash of the watch's selection.
    pub configuration: u64,
    /// Watched API version.
    pub version: String,
    /// Kind, for a watch with a removed kind.
    pub kind: String,
    /// Buckets that may lack unnamed objects until a full reconcile; they equal nothing.
    pub stale: u64,
    /// Sums per bucket.
    pub sums: Box<Sums>,
}

impl Section {
    /// A watch without reconciles.
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

/// Mask of the buckets where `listed` differs. All without a section, or with another configuration.
#[must_use]
pub fn compare(stored: Option<&Section>, configuration: u64, listed: &Sums) -> u64 {
    let Some(stored) = stored.filter(|s| s.configuration == configuration) else { return ALL };
    let different = stored.sums.iter().zip(listed).enumerate();
    different.filter(|(_, (a, b))| a != b).fold(stored.stale, |mask, (bucket, _)| mask | 1 << bucket)
}

/// Digest of one agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Digest {
    sections: BTreeMap<String, Section>,
}

impl Digest {
    /// An empty digest.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a watch's section.
    pub fn insert(&mut self, watch: impl Into<String>, section: Section) {
        self.sections.insert(watch.into(), section);
    }

    /// Section of a watch.
    pub fn get(&self, watch: &str) -> Option<&Section> {
        self.sections.get(watch)
    }

    /// All sections, by watch.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Section)> {
        self.sections.iter().map(|(watch, section)| (watch.as_str(), section))
    }

    /// Removes a watch; returns whether it existed.
    pub fn remove(&mut self, watch: &str) -> bool {
        self.sections.remove(watch).is_some()
    }

    /// Replaces a contribution (0 = absent). Ignores unknown watches.
    pub fn shift(&mut self, watch: &str, namespace: &str, name: &str, before: u64, after: u64) {
        if let Some(section) = self.sections.get_mut(watch)
            && let Some(sum) = section.sums.get_mut(bucket(namespace, name))
        {
            *sum = sum.wrapping_sub(before).wrapping_add(after);
        }
    }

    /// Marks a watch as incomplete until [`Digest::settle`].
    pub fn doubt(&mut self, watch: &str) {
        if let Some(section) = self.sections.get_mut(watch) {
            section.stale = ALL;
        }
    }

    /// Marks a watch as complete after a full reconcile.
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
