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
    rollout,
    versions::{Answer, Catalog, ends_changed},
};

use super::{KcpState, Wanted, kyma_key, unindex};
use crate::trigger::Change;

#[derive(Debug, Default)]
pub(super) struct Offered {
    releases: HashMap<String, Arc<ModuleReleaseMeta>>,
    templates: HashMap<String, Arc<ModuleTemplate>>,
    /// Module → template names.
    by_module: HashMap<String, BTreeSet<String>>,
}

impl Offered {
    fn put_template(&mut self, name: &str, template: Option<Arc<ModuleTemplate>>) {
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
}

impl Offered {
    pub(super) fn modules(&self) -> BTreeSet<&str> {
        self.releases.keys().chain(self.by_module.keys()).map(String::as_str).collect()
    }
}

impl Catalog for Offered {
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
        let old = self.offered.template(name);
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
        self.changed(&modules, have, Change::ModuleTemplate, |offered| offered.put_template(name, new))
    }

    /// Applies a ModuleReleaseMeta or its deletion.
    pub fn apply_release(&mut self, name: &str, release: Option<ModuleReleaseMeta>) -> Vec<Wanted> {
        let module = BTreeSet::from([name.to_owned()]);
        self.changed(&module, BTreeSet::new(), Change::ModuleRelease, |offered| match release {
            Some(release) => drop(offered.releases.insert(name.to_owned(), Arc::new(release))),
            None => drop(offered.releases.remove(name)),
        })
    }

    /// Modules of a Kyma with a pending rollout, and their start times.
    pub fn turns(&self, kyma: &str, window: Duration, now: Timestamp) -> BTreeMap<String, Timestamp> {
        if window.is_zero() {
            return BTreeMap::new();
        }
        let manifests = self.manifests_of(kyma);
        let turn = |manifest: &Manifest| {
            let module = manifest.module_name()?;
            let turn = rollout::turn(kyma, manifest, self.offered.releases.get(module)?, window, now)?;
            Some((module.to_owned(), turn))
        };
        manifests.iter().filter_map(turn).collect()
    }

    /// The catalog.
    pub fn catalog(&self) -> &dyn Catalog {
        &self.offered
    }

    /// Changes the catalog and requests the affected Kymas: those in `have`, or with a changed answer or end of version.
    fn changed(
        &mut self,
        modules: &BTreeSet<String>,
        mut have: BTreeSet<String>,
        change: Change,
        apply: impl FnOnce(&mut Offered),
    ) -> Vec<Wanted> {
        let before = self.answers(modules);
        let seen = self.seen_of(modules);
        let releases = |state: &Self| -> Vec<_> {
            modules.iter().map(|module| state.offered.releases.get(module).cloned()).collect()
        };
        let old = releases(self);
        apply(&mut self.offered);
        let after = self.answers(modules);
        for (module, (old, new)) in modules.iter().zip(old.iter().zip(releases(self))) {
            let versions = ends_changed(old.as_deref(), new.as_deref());
            if !versions.is_empty() {
                have.extend(self.manifests.kymas_with(module, &versions));
            }
        }
        let mandatory = self.mandatory_changed(modules, change);
        let readers = self.readers_concerned(modules, &seen, change);
        let wants = modules.iter().flat_map(|module| self.users.of(module));
        let kymas: BTreeSet<&Arc<str>> = wants
            .zip(before.iter().zip(&after))
            .filter(|(_, (before, after))| before.differs(after))
            .flat_map(|((_, kymas), _)| kymas)
            .collect();
        have.extend(kymas.into_iter().map(ToString::to_string));
        have.iter().map(|kyma| (kyma_key(kyma), change)).chain(mandatory).chain(readers).collect()
    }

    /// One answer per distinct request, as [`super::users::Users::of`] orders them.
    fn answers(&self, modules: &BTreeSet<String>) -> Vec<Answer> {
        let of = |module: &String| {
            let module = module.clone();
            self.users
                .of(&module)
                .map(|(want, _)| Answer::of(want, &module, &self.offered))
                .collect::<Vec<_>>()
        };
        modules.iter().flat_map(of).collect()
    }
}
