//! Who has asked for which module.

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

/// What each Kyma has asked for when it was last planned, and the reverse.
///
/// As large as the lists of modules of the runtimes, which their API servers bound.
#[derive(Debug, Default)]
pub(super) struct Users {
    by_kyma: HashMap<String, Arc<Wants>>,
    by_module: HashMap<String, BTreeMap<Want, BTreeSet<Arc<str>>>>,
    /// Of most runtimes of a fleet they are equal.
    wants: Shared<Wants>,
}

/// Modules by name, and what is asked for of them.
type Wants = BTreeSet<(String, Want)>;

impl Users {
    /// The different wishes about a module, and whose they are.
    pub(super) fn of(&self, module: &str) -> impl Iterator<Item = (&Want, &BTreeSet<Arc<str>>)> {
        self.by_module.get(module).into_iter().flatten()
    }

    /// A Kyma asks for this from now on, and for nothing else.
    fn put(&mut self, kyma: &str, wants: Wants) {
        self.forget(kyma);
        let name: Arc<str> = kyma.into();
        for (module, want) in &wants {
            let by_want = self.by_module.entry(module.clone()).or_default();
            by_want.entry(want.clone()).or_default().insert(Arc::clone(&name));
        }
        // An empty list too: it is known, and not the same as one that nobody has read yet.
        let wants = self.wants.share(hash_of(&wants), wants);
        self.by_kyma.insert(kyma.to_owned(), wants);
    }

    /// Names of the modules that a Kyma has asked for last; `None` if its list was not read since this process began.
    pub(super) fn modules_of(&self, kyma: &str) -> Option<BTreeSet<String>> {
        let known = self.by_kyma.get(kyma)?;
        Some(known.iter().map(|(module, _)| module.clone()).collect())
    }

    /// What a Kyma has asked for last.
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
    /// Chooses a version for each module of a Kyma's list, by the catalog as it stands, if the Kyma is known to ask for
    /// just these; else it has to be noted first ([`KcpState::note`]).
    ///
    /// What is read from the catalog and who reads it belong together: a release that comes later finds whom it
    /// concerns, even before anything of the answer is written anywhere.
    pub fn choose(
        &self,
        kyma: &str,
        wanted: &KymaSpec,
        local: &[Arc<ModuleTemplate>],
    ) -> Option<Vec<Choice>> {
        let noted = self.users.by_kyma.get(kyma).is_some_and(|noted| **noted == wants(wanted));
        noted.then(|| choose(wanted, self.catalog(), local))
    }

    /// Notes what a Kyma asks for. One that is gone asks for nothing. What is mandatory no more and not on this list was kept as
    /// long as nobody knew the list: now it is looked at again.
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

    /// Names of modules of a list that the runtime itself may have: KCP has nothing of them, neither a release nor a
    /// template, or it does not offer the version that is asked for.
    pub fn unknown<'a>(&self, wanted: &'a KymaSpec) -> BTreeSet<&'a str> {
        let catalog = self.catalog();
        let unknown = |module: &&'a Module| match catalog.release(&module.name) {
            Some(release) => further(module.version.as_deref(), &release).is_some(),
            None => catalog.templates_of(&module.name).is_empty(),
        };
        wanted.modules.iter().filter(unknown).map(|module| module.name.as_str()).collect()
    }
}
