//! What the catalog answers to a wish, to be compared with what it answers later.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use kube::ResourceExt;
use tidewatch_api::{KymaSpec, Module, ModuleReleaseMeta, ModuleTemplate, names};

use super::{Catalog, Chosen, Fault, Wish, resolve};

/// What an entry of a user's list asks for, in a form to be kept: a channel or a version. Equal for all entries that
/// are answered alike.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Want {
    /// The channel that counts; empty if a version is asked for.
    pub channel: String,
    /// The version that it has to be.
    pub pin: Option<String>,
}

impl Want {
    /// What an entry of the list asks for: its version, else its channel, else the Kyma's, else the default one.
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

    /// The same for one module.
    #[must_use]
    pub fn wish<'a>(&'a self, module: &'a str) -> Wish<'a> {
        Wish { module, channel: &self.channel, pin: self.pin.as_deref() }
    }
}

/// All that the plan of a Kyma takes from the catalog for one module.
#[derive(Clone, Debug)]
pub struct Answer {
    outcome: Result<Chosen, Fault>,
    release: Option<Arc<ModuleReleaseMeta>>,
}

impl Answer {
    /// What the catalog has answered.
    #[must_use]
    pub const fn new(outcome: Result<Chosen, Fault>, release: Option<Arc<ModuleReleaseMeta>>) -> Self {
        Self { outcome, release }
    }

    /// What the catalog answers now.
    #[must_use]
    pub fn of(want: &Want, module: &str, catalog: &dyn Catalog) -> Self {
        Self { outcome: resolve(want.wish(module), catalog, &[]), release: catalog.release(module) }
    }

    /// Whether a plan made of the one can differ from a plan made of the other. Of what a release meta says of other
    /// channels nothing counts, and of other versions neither: the end of one counts where it is installed ([`ends_changed`]).
    #[must_use]
    pub fn differs(&self, other: &Self) -> bool {
        let outcomes = match (&self.outcome, &other.outcome) {
            (Ok(a), Ok(b)) => {
                (&a.version, &a.component, a.origin) == (&b.version, &b.component, b.origin)
                    && alike(&a.template, &b.template)
            }
            (Err(a), Err(b)) => a == b,
            _ => false,
        };
        let said = |answer: &Self| {
            let chosen = answer.outcome.as_ref().ok()?;
            ends(answer.release.as_deref()).remove(&chosen.version)
        };
        let terms = |answer: &Self| {
            answer.release.as_ref().map(|release| {
                let spec = &release.spec;
                (spec.allow_downgrade, spec.kyma_selector.clone())
            })
        };
        !outcomes || said(self) != said(other) || terms(self) != terms(other)
    }
}

/// The versions of whose end two release metas of a module say different things. For whom one of them is installed, a plan differs,
/// whatever version is wanted.
#[must_use]
pub fn ends_changed(
    before: Option<&ModuleReleaseMeta>,
    after: Option<&ModuleReleaseMeta>,
) -> BTreeSet<String> {
    let (before, after) = (ends(before), ends(after));
    let all: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    all.into_iter().filter(|version| before.get(*version) != after.get(*version)).cloned().collect()
}

/// What is said of the end of versions. That one is offered beside the channels changes nothing for who has it.
fn ends(release: Option<&ModuleReleaseMeta>) -> BTreeMap<String, Vec<(Option<Timestamp>, String)>> {
    let all = release.into_iter().flat_map(|release| &release.spec.versions);
    let mut ends: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for version in all.filter(|v| v.deprecation_date.is_some() || !v.deprecation_message.is_empty()) {
        let end = (version.deprecation_date.as_ref().map(|date| date.0), version.deprecation_message.clone());
        ends.entry(version.version.clone()).or_default().push(end);
    }
    ends
}

/// Whether two templates say the same to a plan.
fn alike(a: &Arc<ModuleTemplate>, b: &Arc<ModuleTemplate>) -> bool {
    Arc::ptr_eq(a, b)
        || (a.metadata.name == b.metadata.name
            && a.spec == b.spec
            && a.labels() == b.labels()
            && a.is_cluster_scoped() == b.is_cluster_scoped())
}
