//! Kymas with the catalog in their runtimes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use kube::ResourceExt;
use tidewatch_planner::catalog::{Known, Reader, View, part, view};

use super::{KcpState, Wanted};
use crate::{key::WorkKey, trigger::Change};

/// Cached views. Kymas differ in few relevant labels.
const VIEWS: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Readers {
    /// Kymas that have read the catalog.
    kymas: BTreeSet<String>,
    /// Modules only for Kymas that their ModuleReleaseMeta selects.
    restricted: Vec<String>,
    known: Known,
    /// Counter of catalog changes.
    revision: u64,
    /// By hashes of their parts.
    views: HashMap<Vec<u64>, Arc<View>>,
}

impl Readers {
    pub(super) fn forget_answers(&mut self) {
        self.revision += 1;
        self.known = Known::default();
        self.views.clear();
    }

    pub(super) fn forget(&mut self, kyma: &str) {
        self.kymas.remove(kyma);
    }
}

impl KcpState {
    /// Sets the modules only for Kymas that their ModuleReleaseMeta selects. Precedes all reads.
    pub fn restrict(&mut self, modules: &[String]) {
        self.readers.restricted = modules.to_vec();
    }

    /// A known Kyma's view of the catalog.
    ///
    /// Records the reader atomically, so that later changes request its runtime's catalog.
    pub fn view(&mut self, kyma: &str) -> Option<Arc<View>> {
        let found = self.kymas.get(kyma)?;
        self.readers.kymas.insert(kyma.to_owned());
        let modules = self.offered.modules();
        let Readers { restricted, known, views, .. } = &mut self.readers;
        let reader = Reader { labels: found.labels(), restricted };
        let parts: Vec<u64> =
            modules.iter().map(|module| part(module, &self.offered, reader, known).hash).collect();
        if views.len() >= VIEWS && !views.contains_key(&parts) {
            views.clear();
        }
        let made = || Arc::new(View::new(view(&modules, &self.offered, reader, &mut Known::default())));
        Some(Arc::clone(views.entry(parts).or_insert_with(made)))
    }

    /// A mark, stable like the catalog and the Kyma's labels.
    pub fn catalog_mark(&self, kyma: &str) -> Option<u64> {
        let mut mark = xxhash_rust::xxh3::Xxh3::new();
        mark.update(&self.readers.revision.to_le_bytes());
        for text in self.kymas.get(kyma)?.labels().iter().flat_map(|(key, value)| [key, value]) {
            mark.update(text.as_bytes());
            mark.update(&[0]);
        }
        Some(mark.digest())
    }

    /// Hashes of each reader's view.
    pub(super) fn seen_of(&self, modules: &BTreeSet<String>) -> BTreeMap<String, Vec<u64>> {
        let mut known = Known::default();
        let mut of = |kyma: &String| {
            let found = self.kymas.get(kyma)?;
            let reader = Reader { labels: found.labels(), restricted: &self.readers.restricted };
            let parts = modules.iter().map(|module| part(module, &self.offered, reader, &mut known).hash);
            Some((kyma.clone(), parts.collect()))
        };
        self.readers.kymas.iter().filter_map(&mut of).collect()
    }

    /// Requests the catalogs of readers with another view.
    pub(super) fn readers_concerned(
        &mut self,
        modules: &BTreeSet<String>,
        before: &BTreeMap<String, Vec<u64>>,
        change: Change,
    ) -> Vec<Wanted> {
        self.readers.forget_answers();
        let after = self.seen_of(modules);
        let differs = before.iter().filter(|(kyma, seen)| after.get(*kyma) != Some(*seen));
        differs.map(|(kyma, _)| (WorkKey::Catalog { kyma: kyma.clone() }, change)).collect()
    }
}
