//! Mandatory modules, and whom a change of them concerns: every Kyma.

use std::{collections::BTreeSet, sync::Arc};

use kube::ResourceExt;
use tidewatch_api::{Manifest, ModuleReleaseMeta, ModuleTemplate, names::finalizers};
use tidewatch_planner::mandatory::{Offer, is_legacy, is_withdrawn};

use super::{KcpState, Wanted, agents::is_of_groups};
use crate::{key::WorkKey, trigger::Change};

/// What makes a module mandatory, or has made it so: its release meta, and its templates of the old kind.
#[derive(Clone, Debug, Default)]
pub struct Holders {
    /// The release meta.
    pub release: Option<Arc<ModuleReleaseMeta>>,
    /// The templates.
    pub templates: Vec<Arc<ModuleTemplate>>,
    /// Whether the templates do not make the module mandatory, since the release that did was deleted.
    pub is_withdrawn: bool,
}

/// Whether an object lacks the finalizer, or has it and waits for its end.
fn wants_work(object: &impl ResourceExt, mandatory: bool) -> bool {
    let held = object.finalizers().iter().any(|f| f == finalizers::MANDATORY_MODULE);
    match object.meta().deletion_timestamp {
        Some(_) => held,
        None => mandatory && !held,
    }
}

impl Holders {
    /// Whether there is anything to do about them.
    #[must_use]
    pub fn want_work(&self) -> bool {
        let release = |r: &Arc<ModuleReleaseMeta>| wants_work(r.as_ref(), r.mandatory_version().is_some());
        self.release.as_ref().is_some_and(release)
            || self.templates.iter().any(|t| wants_work(t.as_ref(), is_legacy(t)))
    }
}

/// What mandatory modules of a Kyma require.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Awaits {
    /// The groups of kinds.
    pub groups: BTreeSet<String>,
    /// Modules.
    pub modules: BTreeSet<String>,
}

impl KcpState {
    /// All mandatory modules.
    pub fn mandatory(&self) -> Vec<Arc<Offer>> {
        self.mandatory.values().cloned().collect()
    }

    /// What makes a module mandatory.
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

    /// Of the modules of a Kyma's mandatory Manifests, those that users choose now; and those that its own list had when it was
    /// last read, `None` if that was not since this process began.
    pub fn chosen_by_users(&self, kyma: &str) -> (BTreeSet<String>, Option<BTreeSet<String>>) {
        let manifests = self.by_kyma.of(kyma);
        let modules = manifests.filter_map(|name| self.manifests.mandatory_module(name));
        let chosen = |module: &&str| {
            self.catalog().release(module).is_some_and(|release| release.mandatory_version().is_none())
        };
        (modules.filter(chosen).map(str::to_owned).collect(), self.users.modules_of(kyma))
    }

    /// Sets the modules that modules of a Kyma's list require, in place of those before: a change of what is installed of them
    /// asks for the Kyma even where they are mandatory. As large as what the catalog's templates say, which their CRD bounds.
    pub fn require(&mut self, kyma: &str, modules: BTreeSet<String>) {
        if modules.is_empty() || !self.kymas.contains_key(kyma) {
            self.required.remove(kyma);
        } else {
            self.required.insert(kyma.to_owned(), modules);
        }
    }

    /// The modules that modules of a Kyma's list require, as last noted.
    pub fn required(&self, kyma: &str) -> &BTreeSet<String> {
        static NONE: BTreeSet<String> = BTreeSet::new();
        self.required.get(kyma).unwrap_or(&NONE)
    }

    /// Sets what the mandatory modules of a Kyma require, in place of what they did before: what becomes of that asks for their plan. As
    /// large as what the catalog's templates say, which their CRD bounds.
    pub fn await_for_mandatory(&mut self, kyma: &str, awaits: Awaits) {
        if awaits == Awaits::default() || !self.kymas.contains_key(kyma) {
            self.mandatory_awaits.remove(kyma);
        } else {
            self.mandatory_awaits.insert(kyma.to_owned(), awaits);
        }
    }

    /// What the mandatory modules of a Kyma require, as last noted.
    pub fn mandatory_awaits(&self, kyma: &str) -> &Awaits {
        static NONE: Awaits = Awaits { groups: BTreeSet::new(), modules: BTreeSet::new() };
        self.mandatory_awaits.get(kyma).unwrap_or(&NONE)
    }

    /// Whether mandatory modules of a Kyma are interested in the definition of this name, as `beams.x.dev`; in any without a name.
    pub fn mandatory_await_definition(&self, kyma: &str, name: Option<&str>) -> bool {
        is_of_groups(&self.mandatory_awaits(kyma).groups, name)
    }

    /// Looks at what the catalog says of some modules, and asks for every Kyma if that is something else than before.
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

    /// Kymas with a Manifest of a module that is mandatory no more and that was not taken over as one meanwhile: it was kept
    /// for that, and is the list's matter again.
    fn left_behind(&self, module: &str) -> impl Iterator<Item = String> {
        let all = self.manifests.of_module(module).filter(|m| !m.is_mandatory());
        all.filter_map(|m| m.kyma_name().map(str::to_owned))
    }

    /// Whether a Kyma has mandatory modules, or is to get some.
    pub(super) fn concerns_mandatory(&self, kyma: &str) -> bool {
        let mut manifests = self.by_kyma.of(kyma);
        !self.mandatory.is_empty() || manifests.any(|name| self.manifests.is_mandatory(name))
    }

    /// What a change of a Manifest, or its end, asks for besides its own reconcile and its Kyma's.
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
