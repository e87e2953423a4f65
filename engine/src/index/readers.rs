//! Kymas with the catalog in their runtimes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use kube::ResourceExt;
use tidewatch_api::Kyma;
use tidewatch_planner::catalog::{PartCache, Reader, View, part, view};

use super::{KcpCatalog, KcpState, Kymas};

/// Cached views. Kymas differ in few relevant labels.
const VIEWS: usize = 64;

/// Kymas with the catalog in their runtimes, and their views of it.
#[derive(Debug, Default)]
pub struct CatalogReaders {
    /// Kymas that have read the catalog.
    kymas: BTreeSet<String>,
    /// Modules only for Kymas that their ModuleReleaseMeta selects.
    restricted: Vec<String>,
    known: PartCache,
    /// Counter of catalog changes.
    revision: u64,
    /// By hashes of their parts.
    views: HashMap<Vec<u64>, Arc<View>>,
}

impl CatalogReaders {
    /// Sets the modules only for Kymas that their ModuleReleaseMeta selects. Precedes all reads.
    pub fn restrict(&mut self, modules: &[String]) {
        self.restricted = modules.to_vec();
    }

    /// Records a reader and returns its view.
    fn view(&mut self, kyma: &Kyma, catalog: &KcpCatalog) -> Arc<View> {
        self.kymas.insert(kyma.name_any());
        let modules = catalog.modules();
        let Self { restricted, known, views, .. } = self;
        let reader = Reader { labels: kyma.labels(), restricted };
        let parts: Vec<u64> =
            modules.iter().map(|module| part(module, catalog, reader, known).hash).collect();
        if views.len() >= VIEWS && !views.contains_key(&parts) {
            views.clear();
        }
        let build = || Arc::new(View::new(view(&modules, catalog, reader, &mut PartCache::default())));
        Arc::clone(views.entry(parts).or_insert_with(build))
    }

    /// A hash that changes with the catalog and the Kyma's labels.
    fn mark(&self, kyma: &Kyma) -> u64 {
        let mut mark = xxhash_rust::xxh3::Xxh3::new();
        mark.update(&self.revision.to_le_bytes());
        for text in kyma.labels().iter().flat_map(|(key, value)| [key, value]) {
            mark.update(text.as_bytes());
            mark.update(&[0]);
        }
        mark.digest()
    }

    /// Hashes of each reader's view of `modules`.
    pub(super) fn parts(
        &self,
        modules: &BTreeSet<String>,
        kymas: &Kymas,
        catalog: &KcpCatalog,
    ) -> BTreeMap<String, Vec<u64>> {
        let mut known = PartCache::default();
        let mut of = |kyma: &String| {
            let found = kymas.get(kyma)?;
            let reader = Reader { labels: found.labels(), restricted: &self.restricted };
            let parts = modules.iter().map(|module| part(module, catalog, reader, &mut known).hash);
            Some((kyma.clone(), parts.collect()))
        };
        self.kymas.iter().filter_map(&mut of).collect()
    }

    /// Forgets all views of a changed catalog.
    pub(super) fn forget_answers(&mut self) {
        self.revision += 1;
        self.known = PartCache::default();
        self.views.clear();
    }

    pub(super) fn forget(&mut self, kyma: &str) {
        self.kymas.remove(kyma);
    }
}

impl KcpState {
    /// A known Kyma's view of the catalog.
    ///
    /// Records the reader atomically, so that later changes request its runtime's catalog.
    pub fn view(&mut self, kyma: &str) -> Option<Arc<View>> {
        let kyma = self.kymas.get(kyma)?;
        Some(self.readers.view(&kyma, &self.catalog))
    }

    /// A hash that changes with the catalog and the Kyma's labels.
    pub fn catalog_mark(&self, kyma: &str) -> Option<u64> {
        Some(self.readers.mark(self.kymas.get(kyma)?.as_ref()))
    }
}
