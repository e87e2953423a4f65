//! A mandatory module of the catalog.

use std::sync::Arc;

use kube::ResourceExt;
use tidewatch_api::{ModuleReleaseMeta, ModuleTemplate, names::annotations};

use crate::versions::{self, Answer, Catalog, Chosen, Fault, highest};

/// A mandatory module in KCP.
#[derive(Clone, Debug)]
pub struct MandatoryModule {
    /// Module name.
    pub module: String,
    /// Release meta; `None` for legacy templates.
    pub release: Option<Arc<ModuleReleaseMeta>>,
    /// Version, or fault.
    pub outcome: Result<Chosen, Fault>,
    /// Everything that makes it mandatory is being deleted: nothing is installed or changed.
    pub deleting: bool,
}

impl MandatoryModule {
    /// Looks up a module; `None` if not mandatory. A release meta precedes legacy templates; of these the highest version counts.
    #[must_use]
    pub fn of(module: &str, catalog: &dyn Catalog) -> Option<Self> {
        let module = module.to_owned();
        if let Some(release) = catalog.release(&module) {
            let version = release.mandatory_version()?;
            let outcome = versions::released_as(&module, version, &release, catalog);
            let deleting = release.metadata.deletion_timestamp.is_some();
            return Some(Self { module, outcome, release: Some(release), deleting });
        }
        let all = catalog.templates_of(&module);
        if all.iter().any(|t| is_withdrawn(t)) {
            return None;
        }
        let legacy = all.into_iter().filter(|t| is_legacy(t));
        let (deleting, live): (Vec<_>, Vec<_>) =
            legacy.partition(|t| t.metadata.deletion_timestamp.is_some());
        let all_deleting = live.is_empty();
        let outcome = highest(if all_deleting { &deleting } else { &live })?;
        Some(Self { module, release: None, outcome, deleting: all_deleting })
    }

    /// Returns whether an installed module is or becomes mandatory.
    #[must_use]
    pub fn makes_mandatory(&self, module: &str) -> bool {
        self.module == module && !self.deleting
    }

    /// Returns whether plans may differ.
    #[must_use]
    pub fn differs(&self, other: &Self) -> bool {
        let answer = |module: &Self| Answer::new(module.outcome.clone(), module.release.clone());
        self.deleting != other.deleting || answer(self).differs(&answer(other))
    }
}

/// Returns whether a legacy template is mandatory.
#[must_use]
pub fn is_legacy(template: &ModuleTemplate) -> bool {
    template.spec.mandatory == Some(true)
}

/// Returns whether a deleted release made this module mandatory; it stays removed.
#[must_use]
pub fn is_withdrawn(template: &ModuleTemplate) -> bool {
    template.annotations().contains_key(annotations::MANDATORY_WITHDRAWN)
}
