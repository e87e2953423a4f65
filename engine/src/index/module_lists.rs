//! Lists of modules that Kymas request.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use tidewatch_api::{KymaSpec, Module, ModuleTemplate};
use tidewatch_planner::versions::{Answer, Catalog, ResolvedModule, VersionRequest, choose, unreleased_pin};

use super::{KcpCatalog, KcpState, Wanted};
use crate::{key::WorkKey, pool::Pool, trigger::Change};

/// Last planned requests. The runtimes' API servers bound them.
#[derive(Debug, Default)]
pub struct ModuleLists {
    by_kyma: HashMap<String, Arc<Wants>>,
    by_module: HashMap<String, BTreeMap<VersionRequest, BTreeSet<Arc<str>>>>,
    /// Most runtimes have equal lists.
    wants: Pool<Wants>,
}

type Wants = BTreeSet<(String, VersionRequest)>;

impl ModuleLists {
    /// Distinct requests for a module, with their Kymas.
    pub(super) fn of(&self, module: &str) -> impl Iterator<Item = (&VersionRequest, &BTreeSet<Arc<str>>)> {
        self.by_module.get(module).into_iter().flatten()
    }

    fn set(&mut self, kyma: &str, wants: Wants) {
        self.forget(kyma);
        let name: Arc<str> = kyma.into();
        for (module, want) in &wants {
            let by_want = self.by_module.entry(module.clone()).or_default();
            by_want.entry(want.clone()).or_default().insert(Arc::clone(&name));
        }
        // An empty list differs from an unread one.
        let wants = self.wants.share(wants);
        self.by_kyma.insert(kyma.to_owned(), wants);
    }

    /// One answer per distinct request, in the order of [`ModuleLists::of`].
    pub(super) fn answers(&self, modules: &BTreeSet<String>, catalog: &KcpCatalog) -> Vec<Answer> {
        let wants = modules.iter().flat_map(|module| self.of(module).map(move |(want, _)| (module, want)));
        wants.map(|(module, want)| Answer::of(want, module, catalog)).collect()
    }

    /// Listed modules; `None` if unread since the process start.
    pub(super) fn modules_of(&self, kyma: &str) -> Option<BTreeSet<String>> {
        let known = self.by_kyma.get(kyma)?;
        Some(known.iter().map(|(module, _)| module.clone()).collect())
    }

    pub(super) fn wants_of(&self, kyma: &str) -> impl Iterator<Item = &(String, VersionRequest)> {
        self.by_kyma.get(kyma).into_iter().flat_map(|wants| wants.iter())
    }

    pub(super) fn forget(&mut self, kyma: &str) {
        let Some(wants) = self.by_kyma.remove(kyma) else { return };
        for (module, want) in &*wants {
            let Some(by_want) = self.by_module.get_mut(module) else { continue };
            if let Some(kymas) = by_want.get_mut(want) {
                kymas.remove(kyma);
                if kymas.is_empty() {
                    by_want.remove(want);
                }
            }
            if by_want.is_empty() {
                self.by_module.remove(module);
            }
        }
    }
}

fn wants(list: &KymaSpec) -> Wants {
    list.modules.iter().map(|module| (module.name.clone(), VersionRequest::of(module, list))).collect()
}

impl KcpCatalog {
    /// Listed modules, or versions, that KCP does not offer: the runtime may.
    pub fn unknown<'a>(&self, list: &'a KymaSpec) -> BTreeSet<&'a str> {
        let unknown = |module: &&'a Module| match self.release(&module.name) {
            Some(release) => unreleased_pin(module.version.as_deref(), &release).is_some(),
            None => self.templates_of(&module.name).is_empty(),
        };
        list.modules.iter().filter(unknown).map(|module| module.name.as_str()).collect()
    }
}

impl KcpState {
    /// Chooses versions for a list recorded by [`KcpState::record_list`].
    ///
    /// Recorded first, a Kyma is found by later releases even before the result is written.
    pub fn choose(
        &self,
        kyma: &str,
        list: &KymaSpec,
        local: &[Arc<ModuleTemplate>],
    ) -> Option<Vec<ResolvedModule>> {
        let is_recorded = self.lists.by_kyma.get(kyma).is_some_and(|recorded| **recorded == wants(list));
        is_recorded.then(|| choose(list, &self.catalog, local))
    }

    /// Records an existing Kyma's list.
    ///
    /// Formerly mandatory modules stay until the list is known; then the mandatory reconcile is requested.
    pub fn record_list(&mut self, kyma: &str, list: &KymaSpec) -> Vec<Wanted> {
        if !self.kymas.contains(kyma) {
            return Vec::new();
        }
        self.lists.set(kyma, wants(list));
        let (chosen, listed) = self.chosen_by_users(kyma);
        if chosen.is_subset(&listed.unwrap_or_default()) {
            return Vec::new();
        }
        vec![(WorkKey::Mandatory { kyma: kyma.to_owned() }, Change::ModuleList)]
    }
}
