//! Catalog answers, comparable with later ones.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use kube::ResourceExt;
use tidewatch_api::{KymaSpec, Module, ModuleReleaseMeta, ModuleTemplate, names};

use super::{Catalog, Chosen, Fault, ModuleRequest, resolve};

/// Requested channel or version of an entry; equal for entries with equal answers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VersionRequest {
    /// Channel; empty if pinned.
    pub channel: String,
    /// Pinned version.
    pub pin: Option<String>,
}

impl VersionRequest {
    /// An entry's version, else channel, else the Kyma's, else the default.
    #[must_use]
    pub fn of(module: &Module, wanted: &KymaSpec) -> Self {
        let pin = module.version.clone().filter(|version| !version.is_empty());
        let channel = [module.channel.as_deref(), Some(wanted.channel.as_str())]
            .into_iter()
            .flatten()
            .find(|channel| !channel.is_empty())
            .filter(|_| pin.is_none())
            .or(pin.is_none().then_some(names::DEFAULT_CHANNEL));
        Self { channel: channel.unwrap_or_default().to_owned(), pin }
    }

    /// Names a module.
    #[must_use]
    pub fn for_module<'a>(&'a self, module: &'a str) -> ModuleRequest<'a> {
        ModuleRequest { module, channel: &self.channel, pin: self.pin.as_deref() }
    }
}

/// Catalog data of one module in a Kyma's plan.
#[derive(Clone, Debug)]
pub struct Answer {
    outcome: Result<Chosen, Fault>,
    release: Option<Arc<ModuleReleaseMeta>>,
}

impl Answer {
    /// Wraps an answer.
    #[must_use]
    pub const fn new(outcome: Result<Chosen, Fault>, release: Option<Arc<ModuleReleaseMeta>>) -> Self {
        Self { outcome, release }
    }

    /// Asks the catalog.
    #[must_use]
    pub fn of(want: &VersionRequest, module: &str, catalog: &dyn Catalog) -> Self {
        Self { outcome: resolve(want.for_module(module), catalog, &[]), release: catalog.release(module) }
    }

    /// Returns whether plans may differ. For deprecation of installed versions see [`deprecations_changed`].
    #[must_use]
    pub fn differs(&self, other: &Self) -> bool {
        let outcomes = match (&self.outcome, &other.outcome) {
            (Ok(a), Ok(b)) => {
                (&a.version, &a.component, a.origin) == (&b.version, &b.component, b.origin)
                    && same_for_plans(&a.template, &b.template)
            }
            (Err(a), Err(b)) => a == b,
            _ => false,
        };
        let deprecation = |answer: &Self| {
            let chosen = answer.outcome.as_ref().ok()?;
            deprecations(answer.release.as_deref()).remove(&chosen.version)
        };
        let terms = |answer: &Self| {
            answer.release.as_ref().map(|release| {
                let spec = &release.spec;
                (spec.allow_downgrade, spec.kyma_selector.clone())
            })
        };
        !outcomes || deprecation(self) != deprecation(other) || terms(self) != terms(other)
    }
}

/// Versions with changed deprecation: plans differ for Kymas with one installed.
#[must_use]
pub fn deprecations_changed(
    before: Option<&ModuleReleaseMeta>,
    after: Option<&ModuleReleaseMeta>,
) -> BTreeSet<String> {
    let (before, after) = (deprecations(before), deprecations(after));
    let all: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    all.into_iter().filter(|version| before.get(*version) != after.get(*version)).cloned().collect()
}

fn deprecations(release: Option<&ModuleReleaseMeta>) -> BTreeMap<String, Vec<(Option<Timestamp>, String)>> {
    let all = release.into_iter().flat_map(|release| &release.spec.versions);
    let mut ends: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for version in all.filter(|v| v.deprecation_date.is_some() || !v.deprecation_message.is_empty()) {
        let end = (version.deprecation_date.as_ref().map(|date| date.0), version.deprecation_message.clone());
        ends.entry(version.version.clone()).or_default().push(end);
    }
    ends
}

/// Equality as far as plans depend on it.
fn same_for_plans(a: &Arc<ModuleTemplate>, b: &Arc<ModuleTemplate>) -> bool {
    Arc::ptr_eq(a, b)
        || (a.metadata.name == b.metadata.name
            && a.spec == b.spec
            && a.labels() == b.labels()
            && a.is_cluster_scoped() == b.is_cluster_scoped())
}
