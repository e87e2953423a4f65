//! Modules requested by each Kyma.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use tidewatch_api::{KymaSpec, Module, ModuleTemplate};
use tidewatch_planner::versions::{Choice, Want, choose, further};

use super::{KcpState, Wanted};
use crate::{
    alike::{Shared, hash_of},
    key::WorkKey,
    trigger::Change,
};

/// Requests of each Kyma at its last plan, and the reverse index.
///
/// The runtimes' API servers bound the module lists.
#[derive(Debug, Default)]
pub(super) struct Users {
    by_kyma: HashMap<String, Arc<Wants>>,
    by_module: HashMap<String, BTreeMap<Want, BTreeSet<Arc<str>>>>,
    /// Equal lists, as in most runtimes, are stored once.
    wants: Shared<Wants>,
}

/// Module names and requests.
type Wants = BTreeSet<(String, Want)>;

impl Users {
    /// Returns the distinct requests for a module, with their Kymas.
    pub(super) fn of(&self, module: &str) -> impl Iterator<Item = (&Want, &BTreeSet<Arc<str>>)> {
        self.by_module.get(module).into_iter().flatten()
    }

    /// Replaces a Kyma's requests.
    fn put(&mut self, kyma: &str, wants: Wants) {
        self.forget(kyma);
        let name: Arc<str> = kyma.into();
        for (module, want) in &wants {
            let by_want = self.by_module.entry(module.clone()).or_default();
            by_want.entry(want.clone()).or_default().insert(Arc::clone(&name));
        }
        // An empty list is stored too: it differs from an unread one.
        let wants = self.wants.share(hash_of(&wants), wants);
        self.by_kyma.insert(kyma.to_owned(), wants);
    }

    /// Returns the modules of a Kyma's list; `None` if unread since the process start.
    pub(super) fn modules_of(&self, kyma: &str) -> Option<BTreeSet<String>> {
        let known = self.by_kyma.get(kyma)?;
        Some(known.iter().map(|(module, _)| module.clone()).collect())
    }

    pub(super) fn wants_of(&self, kyma: &str) -> impl Iterator<Item = &(String, Want)> {
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

fn wants(wanted: &KymaSpec) -> Wants {
    wanted.modules.iter().map(|module| (module.name.clone(), Want::of(module, wanted))).collect()
}

impl KcpState {
    /// Chooses a version for each module of a Kyma's list. Returns `None` until [`KcpState::note`] has recorded this
    /// list.
    ///
    /// The order matters: a later release then finds the Kyma, even before the result is written.
    pub fn choose(
        &self,
        kyma: &str,
        wanted: &KymaSpec,
        local: &[Arc<ModuleTemplate>],
    ) -> Option<Vec<Choice>> {
        let noted = self.users.by_kyma.get(kyma).is_some_and(|noted| **noted == wants(wanted));
        noted.then(|| choose(wanted, self.catalog(), local))
    }

    /// Records a Kyma's list; ignored for a deleted Kyma.
    ///
    /// Manifests of formerly mandatory modules stay until the list is known, so it may request the mandatory
    /// reconcile.
    pub fn note(&mut self, kyma: &str, wanted: &KymaSpec) -> Vec<Wanted> {
        if !self.kymas.contains_key(kyma) {
            return Vec::new();
        }
        self.users.put(kyma, wants(wanted));
        let (chosen, asked) = self.chosen_by_users(kyma);
        if chosen.is_subset(&asked.unwrap_or_default()) {
            return Vec::new();
        }
        vec![(WorkKey::Mandatory { kyma: kyma.to_owned() }, Change::ModuleList)]
    }

    /// Returns listed modules that only the runtime can offer: KCP has no release, template, or requested version.
    pub fn unknown<'a>(&self, wanted: &'a KymaSpec) -> BTreeSet<&'a str> {
        let catalog = self.catalog();
        let unknown = |module: &&'a Module| match catalog.release(&module.name) {
            Some(release) => further(module.version.as_deref(), &release).is_some(),
            None => catalog.templates_of(&module.name).is_empty(),
        };
        wanted.modules.iter().filter(unknown).map(|module| module.name.as_str()).collect()
    }
}
