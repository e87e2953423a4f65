//! Mandatory modules, which concern every Kyma.

use std::{collections::BTreeSet, sync::Arc};

use kube::ResourceExt;
use tidewatch_api::{Manifest, ModuleReleaseMeta, ModuleTemplate, names::finalizers};
use tidewatch_planner::mandatory::{Offer, is_legacy, is_withdrawn};

use super::{KcpState, Wanted, agents::is_of_groups};
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

/// Requirements of mandatory modules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Awaits {
    /// API groups.
    pub groups: BTreeSet<String>,
    /// Modules.
    pub modules: BTreeSet<String>,
}

impl KcpState {
    /// All mandatory modules.
    pub fn mandatory(&self) -> Vec<Arc<Offer>> {
        self.mandatory.values().cloned().collect()
    }

    /// Objects that make a module mandatory.
    pub fn holders(&self, module: &str) -> Holders {
        let catalog = self.catalog();
        let templates = catalog.templates_of(module);
        let is_withdrawn = templates.iter().any(|t| is_withdrawn(t));
        let held = |t: &Arc<ModuleTemplate>| {
            (is_legacy(t) && !is_withdrawn)
                || t.finalizers().iter().any(|f| f == finalizers::MANDATORY_MODULE)
        };
        Holders {
            release: catalog.release(module),
            templates: templates.into_iter().filter(held).collect(),
            is_withdrawn,
        }
    }

    /// Modules of mandatory Manifests that users choose, and the Kyma's last list.
    ///
    /// The list is `None` if unread since the process start.
    pub fn chosen_by_users(&self, kyma: &str) -> (BTreeSet<String>, Option<BTreeSet<String>>) {
        let manifests = self.by_kyma.of(kyma);
        let modules = manifests.filter_map(|name| self.manifests.mandatory_module(name));
        let chosen = |module: &&str| {
            self.catalog().release(module).is_some_and(|release| release.mandatory_version().is_none())
        };
        (modules.filter(chosen).map(str::to_owned).collect(), self.users.modules_of(kyma))
    }

    /// Replaces the modules that a Kyma's list requires. Their installation requests the Kyma, even if mandatory.
    ///
    /// The templates' CRD bounds the size.
    pub fn require(&mut self, kyma: &str, modules: BTreeSet<String>) {
        if modules.is_empty() || !self.kymas.contains_key(kyma) {
            self.required.remove(kyma);
        } else {
            self.required.insert(kyma.to_owned(), modules);
        }
    }

    /// Modules set with `require`.
    pub fn required(&self, kyma: &str) -> &BTreeSet<String> {
        static NONE: BTreeSet<String> = BTreeSet::new();
        self.required.get(kyma).unwrap_or(&NONE)
    }

    /// Replaces the requirements of a Kyma's mandatory modules.
    ///
    /// The templates' CRD bounds the size.
    pub fn await_for_mandatory(&mut self, kyma: &str, awaits: Awaits) {
        if awaits == Awaits::default() || !self.kymas.contains_key(kyma) {
            self.mandatory_awaits.remove(kyma);
        } else {
            self.mandatory_awaits.insert(kyma.to_owned(), awaits);
        }
    }

    /// Requirements of a Kyma's mandatory modules.
    pub fn mandatory_awaits(&self, kyma: &str) -> &Awaits {
        static NONE: Awaits = Awaits { groups: BTreeSet::new(), modules: BTreeSet::new() };
        self.mandatory_awaits.get(kyma).unwrap_or(&NONE)
    }

    /// Whether mandatory modules wait for a definition, such as `beams.x.dev`; without a name, for any.
    pub fn mandatory_await_definition(&self, kyma: &str, name: Option<&str>) -> bool {
        is_of_groups(&self.mandatory_awaits(kyma).groups, name)
    }

    /// Updates the offers, and requests every Kyma if one differs.
    pub(super) fn mandatory_changed(&mut self, modules: &BTreeSet<String>, change: Change) -> Vec<Wanted> {
        let mut wanted = Vec::new();
        let mut differs = false;
        for module in modules {
            let now = Offer::of(module, self.catalog()).map(Arc::new);
            let before = match now.clone() {
                Some(offer) => self.mandatory.insert(module.clone(), offer),
                None => self.mandatory.remove(module),
            };
            let holds = |offer: &Option<Arc<Offer>>| offer.as_ref().is_some_and(|offer| !offer.leaving);
            if holds(&before) && !holds(&now) {
                wanted.extend(self.left_behind(module).map(|kyma| (WorkKey::Kyma { kyma }, change)));
            }
            differs |= match (before, now) {
                (Some(before), Some(now)) => before.differs(&now),
                (before, now) => before.is_some() || now.is_some(),
            };
            if self.holders(module).want_work() {
                wanted.push((WorkKey::Release { module: module.clone() }, change));
            }
        }
        if differs {
            let kymas: BTreeSet<&String> = self.kymas.keys().collect();
            wanted.extend(kymas.into_iter().map(|kyma| (WorkKey::Mandatory { kyma: kyma.clone() }, change)));
        }
        wanted
    }

    /// Kymas with a Manifest of a formerly mandatory module that was never transferred. Their lists decide about it.
    fn left_behind(&self, module: &str) -> impl Iterator<Item = String> {
        let all = self.manifests.of_module(module).filter(|m| !m.is_mandatory());
        all.filter_map(|m| m.kyma_name().map(str::to_owned))
    }

    /// Whether a Kyma has or should get mandatory modules.
    pub(super) fn concerns_mandatory(&self, kyma: &str) -> bool {
        let mut manifests = self.by_kyma.of(kyma);
        !self.mandatory.is_empty() || manifests.any(|name| self.manifests.is_mandatory(name))
    }

    /// Additional requests of a changed Manifest.
    pub(super) fn after_manifest(&self, manifest: &Manifest, change: Change) -> Vec<Wanted> {
        let (Some(kyma), Some(module)) = (manifest.kyma_name(), manifest.module_name()) else {
            return Vec::new();
        };
        let mut wanted = Vec::new();
        if manifest.is_mandatory() || self.mandatory.contains_key(module) {
            wanted.push((WorkKey::Mandatory { kyma: kyma.to_owned() }, change));
        }
        if manifest.is_mandatory() && self.holders(module).want_work() {
            wanted.push((WorkKey::Release { module: module.to_owned() }, change));
        }
        wanted
    }
}
