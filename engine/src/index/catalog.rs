//! The catalog, and the Kymas that its changes affect.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use kube::ResourceExt;
use tidewatch_api::{Manifest, ModuleReleaseMeta, ModuleTemplate};
use tidewatch_planner::{
    mandatory::MandatoryModule,
    rollout,
    versions::{Catalog, deprecations_changed},
};

use super::{KcpState, Wanted, kyma_key, unindex};
use crate::{key::WorkKey, trigger::Change};

/// Releases and templates of modules, and the mandatory ones.
#[derive(Debug, Default)]
pub struct KcpCatalog {
    releases: HashMap<String, Arc<ModuleReleaseMeta>>,
    templates: HashMap<String, Arc<ModuleTemplate>>,
    /// Module → template names.
    by_module: HashMap<String, BTreeSet<String>>,
    /// By module; derived from releases and templates.
    pub(super) mandatory: BTreeMap<String, Arc<MandatoryModule>>,
}

impl KcpCatalog {
    fn set_template(&mut self, name: &str, template: Option<Arc<ModuleTemplate>>) {
        if let Some(module) = self.templates.remove(name).as_ref().and_then(|t| t.module_name()) {
            unindex(&mut self.by_module, module, name);
        }
        if let Some(template) = template {
            if let Some(module) = template.module_name() {
                self.by_module.entry(module.to_owned()).or_default().insert(name.to_owned());
            }
            self.templates.insert(name.to_owned(), template);
        }
    }

    /// Modules with a release or template.
    pub(super) fn modules(&self) -> BTreeSet<&str> {
        self.releases.keys().chain(self.by_module.keys()).map(String::as_str).collect()
    }
}

impl Catalog for KcpCatalog {
    fn release(&self, module: &str) -> Option<Arc<ModuleReleaseMeta>> {
        self.releases.get(module).cloned()
    }

    fn template(&self, name: &str) -> Option<Arc<ModuleTemplate>> {
        self.templates.get(name).cloned()
    }

    fn templates_of(&self, module: &str) -> Vec<Arc<ModuleTemplate>> {
        let names = self.by_module.get(module).into_iter().flatten();
        names.filter_map(|name| self.template(name)).collect()
    }
}

impl KcpState {
    /// Applies a ModuleTemplate or its deletion.
    pub fn apply_template(&mut self, name: &str, template: Option<ModuleTemplate>) -> Vec<Wanted> {
        let new = template.map(Arc::new);
        let old = self.catalog.template(name);
        let mut modules: BTreeSet<String> =
            [&old, &new].into_iter().flatten().filter_map(|t| t.module_name()).map(str::to_owned).collect();
        // Releases find templates by name, `<module>-<version>`; both parts may contain hyphens.
        modules.extend(name.match_indices('-').map(|(end, _)| name[..end].to_owned()));
        let mut have = BTreeSet::new();
        let labels = |template: &Option<Arc<ModuleTemplate>>| template.as_ref().map(|t| t.labels().clone());
        if labels(&old) != labels(&new) {
            // Labels restrict access even to installed, unrequested versions.
            for (end, _) in name.match_indices('-') {
                let versions = BTreeSet::from([name[end + 1..].to_owned()]);
                have.extend(self.manifests.kymas_with(&name[..end], &versions));
            }
        }
        self.catalog_changed(&modules, have, Change::ModuleTemplate, |catalog| {
            catalog.set_template(name, new);
        })
    }

    /// Applies a ModuleReleaseMeta or its deletion.
    pub fn apply_release(&mut self, name: &str, release: Option<ModuleReleaseMeta>) -> Vec<Wanted> {
        let module = BTreeSet::from([name.to_owned()]);
        self.catalog_changed(&module, BTreeSet::new(), Change::ModuleRelease, |catalog| match release {
            Some(release) => drop(catalog.releases.insert(name.to_owned(), Arc::new(release))),
            None => drop(catalog.releases.remove(name)),
        })
    }

    /// Modules of a Kyma with a pending rollout, and their start times.
    pub fn turns(&self, kyma: &str, window: Duration, now: Timestamp) -> BTreeMap<String, Timestamp> {
        if window.is_zero() {
            return BTreeMap::new();
        }
        let turn = |manifest: &Manifest| {
            let module = manifest.module_name()?;
            let turn = rollout::turn(kyma, manifest, self.catalog.releases.get(module)?, window, now)?;
            Some((module.to_owned(), turn))
        };
        self.manifests.of(kyma).filter_map(turn).collect()
    }

    /// Changes the catalog and requests the affected Kymas: those in `have`, or with a changed answer or end of version.
    fn catalog_changed(
        &mut self,
        modules: &BTreeSet<String>,
        mut have: BTreeSet<String>,
        change: Change,
        apply: impl FnOnce(&mut KcpCatalog),
    ) -> Vec<Wanted> {
        let before = self.lists.answers(modules, &self.catalog);
        let views = self.readers.parts(modules, &self.kymas, &self.catalog);
        let releases = |catalog: &KcpCatalog| -> Vec<_> {
            modules.iter().map(|module| catalog.release(module)).collect()
        };
        let old = releases(&self.catalog);
        apply(&mut self.catalog);
        let after = self.lists.answers(modules, &self.catalog);
        for ((module, old), new) in modules.iter().zip(old).zip(releases(&self.catalog)) {
            let versions = deprecations_changed(old.as_deref(), new.as_deref());
            if !versions.is_empty() {
                have.extend(self.manifests.kymas_with(module, &versions));
            }
        }
        let mandatory = self.mandatory_changed(modules, change);
        self.readers.forget_answers();
        let readers = self.readers.parts(modules, &self.kymas, &self.catalog);
        let readers = views.iter().filter(|(kyma, parts)| readers.get(*kyma) != Some(*parts));
        let readers = readers.map(|(kyma, _)| (WorkKey::Catalog { kyma: kyma.clone() }, change));
        let wants = modules.iter().flat_map(|module| self.lists.of(module));
        let kymas: BTreeSet<&Arc<str>> = wants
            .zip(before.iter().zip(&after))
            .filter(|(_, (before, after))| before.differs(after))
            .flat_map(|((_, kymas), _)| kymas)
            .collect();
        have.extend(kymas.into_iter().map(ToString::to_string));
        have.iter().map(|kyma| (kyma_key(kyma), change)).chain(mandatory).chain(readers).collect()
    }
}
