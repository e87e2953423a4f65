//! The catalog that a runtime has.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use tidewatch_api::object::ObjectRef;
use tidewatch_planner::catalog::Id;

/// Time between two full looks that polls ask for. A catalog may be megabytes, and no module waits for it.
const POLL_INTERVAL: Duration = Duration::from_hours(1);
/// Objects of one runtime that are doubted one by one; with more, a full look costs less.
const MAX_DOUBTED: usize = 20;

#[derive(Clone, Debug, Default)]
pub(crate) struct CatalogRecord {
    /// The hash of the catalog and the Kyma's labels that it was made of.
    pub(crate) mark: u64,
    full_look_at: Timestamp,
    /// The content hash of each object. Shared by all runtimes with the same catalog.
    pub(crate) hashes: Arc<BTreeMap<Id, u64>>,
    /// Objects that may have changed since, without versions; `None`: any object may have.
    pub(crate) doubted: Option<BTreeSet<ObjectRef>>,
    /// How often it was doubted, to notice a doubt that comes during a sync.
    pub(crate) doubts: u64,
    /// Whether the condition in the runtime's Kyma reports an up-to-date catalog.
    pub(crate) reported: bool,
}

impl CatalogRecord {
    /// The record after a sync that left `suspended` objects as they are. `doubts` is their number when the sync began.
    pub(crate) fn synced(
        before: Option<&Self>,
        mark: u64,
        hashes: &Arc<BTreeMap<Id, u64>>,
        suspended: BTreeSet<ObjectRef>,
        doubts: u64,
        now: Timestamp,
    ) -> Self {
        let undoubted = before.is_none_or(|record| record.doubts == doubts);
        Self {
            mark,
            full_look_at: before
                .filter(|record| record.doubted.is_some())
                .map_or(now, |record| record.full_look_at),
            hashes: Arc::clone(hashes),
            doubted: undoubted.then_some(suspended),
            doubts: before.map_or(0, |record| record.doubts),
            reported: before.is_some_and(|record| record.reported),
        }
    }

    /// Notes that these objects, or any object, may have changed. Holds until the next sync has read them.
    pub(crate) fn doubt(&mut self, named: Option<BTreeSet<ObjectRef>>) {
        self.doubts += 1;
        let all = self.doubted.take().zip(named).map(|(doubted, named)| &doubted | &named);
        self.doubted = all.filter(|doubted| doubted.len() <= MAX_DOUBTED);
        // The condition in the runtime may have changed, too.
        self.reported &= self.doubted.is_some();
    }

    /// Whether the runtime has the catalog of this mark, and none of its objects is doubted.
    pub(crate) fn is_current(&self, mark: Option<u64>) -> bool {
        self.doubted.as_ref().is_some_and(BTreeSet::is_empty) && mark == Some(self.mark)
    }

    /// Whether a poll may ask for a full look.
    pub(crate) fn is_old(&self, now: Timestamp) -> bool {
        now.duration_since(self.full_look_at).unsigned_abs() >= POLL_INTERVAL
    }
}

#[cfg(test)]
mod tests {
    use tidewatch_api::object::Gvk;

    use super::*;

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_second(minute * 60).unwrap()
    }

    fn synced(before: Option<&CatalogRecord>, doubts: u64, now: Timestamp) -> CatalogRecord {
        CatalogRecord::synced(before, 1, &Arc::default(), BTreeSet::new(), doubts, now)
    }

    fn record() -> CatalogRecord {
        CatalogRecord { reported: true, ..synced(None, 0, at(0)) }
    }

    fn objects(names: &[&str]) -> BTreeSet<ObjectRef> {
        let object = |name: &&str| ObjectRef {
            gvk: Gvk::of("v1", "ModuleTemplate"),
            namespace: "kyma-system".into(),
            name: (*name).into(),
        };
        names.iter().map(object).collect()
    }

    #[test]
    fn doubted_objects_are_kept_until_the_next_sync() {
        let mut record = record();
        assert!(record.is_current(Some(1)) && !record.is_current(Some(2)) && !record.is_current(None));
        record.doubt(Some(objects(&["b"])));
        record.doubt(Some(objects(&[])));
        assert_eq!(record.doubted, Some(objects(&["b"])));
        assert!(record.reported && !record.is_current(Some(1)));
        record.doubt(None);
        record.doubt(Some(objects(&["a"])));
        assert_eq!(record.doubted, None);
        assert!(!record.reported, "the condition may have changed, too");
        assert!(synced(Some(&record), record.doubts, at(7)).is_current(Some(1)));
    }

    #[test]
    fn a_doubt_during_a_sync_outlives_the_sync() {
        let mut record = record();
        let before = record.doubts;
        record.doubt(None);
        assert_eq!(synced(Some(&record), before, at(7)).doubted, None);
    }

    #[test]
    fn polls_ask_for_a_full_look_once_an_hour() {
        let mut record = record();
        assert!(!record.is_old(at(59)) && record.is_old(at(60)));
        record = synced(Some(&record), record.doubts, at(50));
        assert!(record.is_old(at(60)), "a sync of single objects is no full look");
        record.doubt(None);
        record = synced(Some(&record), record.doubts, at(60));
        assert!(!record.is_old(at(119)) && record.is_old(at(120)));
    }

    #[test]
    fn many_doubts_ask_for_a_full_look() {
        let mut record = record();
        (0..MAX_DOUBTED).for_each(|n| record.doubt(Some(objects(&[&n.to_string()]))));
        assert!(record.doubted.is_some());
        record.doubt(Some(objects(&["a"])));
        assert_eq!(record.doubted, None);
    }
}
