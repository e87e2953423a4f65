//! Mandatory modules, which concern every Kyma.

use std::{collections::BTreeSet, sync::Arc};

use kube::ResourceExt;
use tidewatch_api::{Manifest, ModuleReleaseMeta, ModuleTemplate, names::finalizers};
use tidewatch_planner::{
    mandatory::{MandatoryModule, is_legacy, is_withdrawn},
    versions::Catalog,
};

use super::{KcpCatalog, KcpState, Wanted, kyma_key};
use crate::{key::WorkKey, trigger::Change};

/// Objects that make, or made, a module mandatory.
#[derive(Clone, Debug, Default)]
pub struct Holders {
    /// Release meta.
    pub release: Option<Arc<ModuleReleaseMeta>>,
    /// Legacy templates.
    pub templates: Vec<Arc<ModuleTemplate>>,
    /// Whether the mandatory release was deleted, which voids the templates.
    pub is_withdrawn: bool,
}

/// Whether the finalizer is missing, or holds up a deletion.
fn wants_work(object: &impl ResourceExt, mandatory: bool) -> bool {
    let held = object.finalizers().iter().any(|f| f == finalizers::MANDATORY_MODULE);
    match object.meta().deletion_timestamp {
        Some(_) => held,
        None => mandatory && !held,
    }
}

impl Holders {
    /// Whether a finalizer needs a reconcile.
    #[must_use]
    pub fn want_work(&self) -> bool {
        let release = |r: &Arc<ModuleReleaseMeta>| wants_work(r.as_ref(), r.mandatory_version().is_some());
        self.release.as_ref().is_some_and(release)
            || self.templates.iter().any(|t| wants_work(t.as_ref(), is_legacy(t)))
    }
}

impl KcpCatalog {
    /// All mandatory modules.
    pub fn mandatory(&self) -> Vec<Arc<MandatoryModule>> {
        self.mandatory.values().cloned().collect()
    }

    /// Objects that make a module mandatory.
    pub fn holders(&self, module: &str) -> Holders {
        let templates = self.templates_of(module);
        let is_withdrawn = templates.iter().any(|t| is_withdrawn(t));
        let held = |t: &Arc<ModuleTemplate>| {
            (is_legacy(t) && !is_withdrawn)
                || t.finalizers().iter().any(|f| f == finalizers::MANDATORY_MODULE)
        };
        Holders {
            release: self.release(module),
            templates: templates.into_iter().filter(held).collect(),
            is_withdrawn,
        }
    }

    /// Updates a module's offer; returns the previous and the present one.
    fn update_offer(&mut self, module: &str) -> (Option<Arc<MandatoryModule>>, Option<Arc<MandatoryModule>>) {
        let now = MandatoryModule::of(module, self).map(Arc::new);
        let before = match now.clone() {
            Some(offer) => self.mandatory.insert(module.to_owned(), offer),
            None => self.mandatory.remove(module),
        };
        (before, now)
    }
}

impl KcpState {
    /// Modules of mandatory Manifests that users choose, and the Kyma's last list.
    ///
    /// The list is `None` if unread since the process start.
    pub fn chosen_by_users(&self, kyma: &str) -> (BTreeSet<String>, Option<BTreeSet<String>>) {
        let manifests = self.manifests.of(kyma).filter(|manifest| manifest.is_mandatory());
        let chosen = |module: &&str| {
            self.catalog.release(module).is_some_and(|release| release.mandatory_version().is_none())
        };
        let modules = manifests.filter_map(Manifest::module_name).filter(chosen);
        (modules.map(str::to_owned).collect(), self.lists.modules_of(kyma))
    }

    /// Updates the offers, and requests every Kyma if one differs.
    pub(super) fn mandatory_changed(&mut self, modules: &BTreeSet<String>, change: Change) -> Vec<Wanted> {
        let mut wanted = Vec::new();
        let mut differs = false;
        for module in modules {
            let (before, now) = self.catalog.update_offer(module);
            let holds =
                |offer: &Option<Arc<MandatoryModule>>| offer.as_ref().is_some_and(|offer| !offer.deleting);
            if holds(&before) && !holds(&now) {
                // Their lists decide about Manifests of a formerly mandatory module that were never transferred.
                let optional = self.manifests.of_module(module).filter(|manifest| !manifest.is_mandatory());
                let kymas = optional.filter_map(Manifest::kyma_name);
                wanted.extend(kymas.map(|kyma| (kyma_key(kyma), change)));
            }
            differs |= match (before, now) {
                (Some(before), Some(now)) => before.differs(&now),
                (before, now) => before.is_some() || now.is_some(),
            };
            if self.catalog.holders(module).want_work() {
                wanted.push((WorkKey::Release { module: module.clone() }, change));
            }
        }
        if differs {
            let mut kymas = self.kymas.names();
            kymas.sort();
            wanted.extend(kymas.into_iter().map(|kyma| (WorkKey::Mandatory { kyma }, change)));
        }
        wanted
    }

    /// Whether a Kyma has or should get mandatory modules.
    pub(super) fn concerns_mandatory(&self, kyma: &str) -> bool {
        !self.catalog.mandatory.is_empty() || self.manifests.of(kyma).any(Manifest::is_mandatory)
    }

    /// Plans of mandatory modules that a changed Manifest concerns.
    pub(super) fn mandatory_wanted(&self, manifest: &Manifest, change: Change) -> Vec<Wanted> {
        let (Some(kyma), Some(module)) = (manifest.kyma_name(), manifest.module_name()) else {
            return Vec::new();
        };
        let mut wanted = Vec::new();
        if manifest.is_mandatory() || self.catalog.mandatory.contains_key(module) {
            wanted.push((WorkKey::Mandatory { kyma: kyma.to_owned() }, change));
        }
        if manifest.is_mandatory() && self.catalog.holders(module).want_work() {
            wanted.push((WorkKey::Release { module: module.to_owned() }, change));
        }
        wanted
    }
}
