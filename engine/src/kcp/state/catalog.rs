//! The catalog: releases and templates, and the part of them that one Kyma needs.

use std::{collections::HashMap, sync::Arc};

use tidewatch_api::{ModuleReleaseMeta, ModuleTemplate};

use super::{KcpState, Wanted};
use crate::plan::versions::Catalog;

impl KcpState {
    /// A ModuleTemplate appeared, changed or is gone.
    pub fn apply_template(&mut self, name: &str, template: Option<ModuleTemplate>) -> Vec<Wanted> {
        let old = match template {
            Some(template) => self.templates.insert(name.to_owned(), Arc::new(template)),
            None => self.templates.remove(name),
        };
        let new = self.templates.get(name);
        if old.as_deref().map(|t| &t.spec) == new.map(|t| &t.spec) {
            return Vec::new();
        }
        let module = new.or(old.as_ref()).and_then(|t| t.module_name()).unwrap_or_default().to_owned();
        self.users_of(&module, "module template changed")
    }

    /// A ModuleReleaseMeta appeared, changed or is gone.
    pub fn apply_release(&mut self, name: &str, release: Option<ModuleReleaseMeta>) -> Vec<Wanted> {
        let old = match release {
            Some(release) => self.releases.insert(name.to_owned(), Arc::new(release)),
            None => self.releases.remove(name),
        };
        if old.as_deref().map(|r| &r.spec) == self.releases.get(name).map(|r| &r.spec) {
            return Vec::new();
        }
        self.users_of(name, "module release changed")
    }

    /// The catalog as it stands, cheap to take.
    pub fn catalog_of(&self, modules: impl Iterator<Item = String>) -> CatalogView {
        let releases: HashMap<_, _> =
            modules.filter_map(|m| self.releases.get(&m).map(|r| (m, Arc::clone(r)))).collect();
        let versions = releases.iter().flat_map(|(module, release)| {
            release.spec.channels.iter().flatten().map(|c| ModuleTemplate::object_name(module, &c.version))
        });
        let templates = versions.filter_map(|n| self.templates.get(&n).map(|t| (n, Arc::clone(t)))).collect();
        CatalogView { releases, templates }
    }
}

/// The part of the catalog that one Kyma needs, taken at one moment.
#[derive(Debug, Default)]
pub struct CatalogView {
    releases: HashMap<String, Arc<ModuleReleaseMeta>>,
    templates: HashMap<String, Arc<ModuleTemplate>>,
}

impl Catalog for CatalogView {
    fn release(&self, module: &str) -> Option<Arc<ModuleReleaseMeta>> {
        self.releases.get(module).cloned()
    }

    fn template(&self, name: &str) -> Option<Arc<ModuleTemplate>> {
        self.templates.get(name).cloned()
    }
}
