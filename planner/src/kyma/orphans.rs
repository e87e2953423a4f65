//! Manifests with a Kyma's name outside its plan: orphaned, foreign or duplicate.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use tidewatch_api::{Kyma, Manifest, ModuleStatus, State, names::labels};

use super::{
    Plan, planned_name,
    status::{deleting_module, tracked},
};
use crate::{
    notice::{About, Notice},
    versions::ResolvedModule,
};

/// Message prefix.
pub(super) const ORPHANED: &str = "orphaned: ";

/// Minimum age before a status reports the missing owner: restoring a backup takes time.
const TOLERANCE: SignedDuration = SignedDuration::from_mins(5);

/// Reason why a Manifest is not this Kyma's, despite its name.
pub(crate) fn orphan(kyma: &Kyma, manifest: &Manifest) -> Option<String> {
    if manifest.module_name().is_none() {
        let (name, label) = (manifest.name_any(), labels::MODULE_NAME);
        return Some(format!(
            "{ORPHANED}the Manifest {name} names no module; set its label {label}, or delete it"
        ));
    }
    unowned(Some(kyma), manifest)
}

fn unowned(kyma: Option<&Kyma>, manifest: &Manifest) -> Option<String> {
    if kyma.is_some_and(|kyma| is_owned(kyma, manifest)) {
        return None;
    }
    let owner = match owners(manifest).next().map(|owner| owner.uid.as_str()) {
        None => "is owned by no Kyma".to_owned(),
        Some(uid) if kyma.is_none() => format!("is owned by a Kyma that is not there (uid {uid})"),
        Some(uid) => format!("is owned by another Kyma of this name (uid {uid})"),
    };
    let name = manifest.name_any();
    Some(format!("{ORPHANED}the Manifest {name} {owner}; delete it if nobody needs it"))
}

fn is_owned(kyma: &Kyma, manifest: &Manifest) -> bool {
    let uid = kyma.metadata.uid.as_ref();
    owners(manifest).any(|owner| Some(&owner.uid) == uid)
}

fn owners(manifest: &Manifest) -> impl Iterator<Item = &OwnerReference> {
    manifest.owner_references().iter().filter(|owner| owner.kind == "Kyma")
}

/// Manifest without an owning Kyma: never installed, changed or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// Cause and remedy.
    pub message: String,
    /// When its status starts to report it.
    pub reported_from: Timestamp,
}

impl Orphan {
    /// Checks the owner. `kyma` has the Manifest's Kyma name. Unmanaged, mandatory and deleted Manifests need none.
    pub fn of(kyma: Option<&Kyma>, manifest: &Manifest) -> Option<Self> {
        if !must_be_owned(manifest) {
            return None;
        }
        let message = unowned(kyma, manifest)?;
        let created = manifest.creation_timestamp().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        let reported_from = created.saturating_add(TOLERANCE).unwrap_or(Timestamp::MAX);
        Some(Self { message, reported_from })
    }
}

/// Returns whether a Manifest is orphaned regardless of Kymas.
pub fn has_no_owner(manifest: &Manifest) -> bool {
    must_be_owned(manifest) && owners(manifest).next().is_none()
}

fn must_be_owned(manifest: &Manifest) -> bool {
    manifest.metadata.deletion_timestamp.is_none() && !manifest.is_unmanaged() && !manifest.is_mandatory()
}

/// A module's current objects.
#[derive(Default)]
pub(super) struct ModuleObjects<'a> {
    /// Status entry.
    pub(super) status: Option<&'a Arc<ModuleStatus>>,
    /// Effective Manifest.
    pub(super) manifest: Option<&'a Manifest>,
    /// Duplicates of this Kyma, left by a renamed component.
    pub(super) duplicates: Vec<&'a Manifest>,
}

impl<'a> ModuleObjects<'a> {
    /// `index`: the module's in the Kyma's list. A Manifest with the planned name is adopted from any owner, a mandatory one only if its
    /// module is optional.
    pub(super) fn of(
        kyma: &'a Kyma,
        manifests: &[(&str, &'a Manifest)],
        index: usize,
        module: &ResolvedModule,
    ) -> Self {
        let module_name = module.entry.name.as_str();
        let status = status_of(kyma, index, module_name);
        let counts = |(name, m): &&(&str, &Manifest)| {
            *name == module_name && !module_name.is_empty() && (module.outcome.is_ok() || !m.is_mandatory())
        };
        let mut all = manifests.iter().filter(counts).map(|(_, manifest)| *manifest);
        let (Some(first), second) = (all.next(), all.next()) else {
            return Self { status, ..Self::default() };
        };
        if second.is_none() && is_owned(kyma, first) {
            return Self { status, manifest: Some(first), duplicates: Vec::new() };
        }
        let planned = planned_name(kyma, module);
        let is_planned = |m: &Manifest| planned.as_ref() == m.metadata.name.as_ref();
        let mut all: Vec<&Manifest> = [first]
            .into_iter()
            .chain(second)
            .chain(all)
            .filter(|m| is_planned(m) || is_owned(kyma, m))
            .collect();
        all.sort_by_key(|m| (!is_planned(m), m.metadata.deletion_timestamp.is_some()));
        let mut all = all.into_iter();
        Self { status, manifest: all.next(), duplicates: all.filter(|m| !m.is_mandatory()).collect() }
    }

    pub(super) fn has(&self, manifest: &Manifest) -> bool {
        self.manifest.into_iter().chain(self.duplicates.iter().copied()).any(|m| std::ptr::eq(m, manifest))
    }

    /// Deletes duplicates once the planned Manifest exists.
    pub(super) fn transfer(&self, planned: Option<String>, plan: &mut Plan) {
        let is_managed = |m: &&Manifest| m.metadata.deletion_timestamp.is_none() && !m.is_unmanaged();
        let Some(current) = self.manifest.filter(is_managed).filter(|m| planned == m.metadata.name) else {
            return;
        };
        for other in self.duplicates.iter().filter(|m| m.metadata.deletion_timestamp.is_none()) {
            let message = format!(
                "the Manifest {} takes over the objects of {}, which is deleted; what both have stays",
                current.name_any(),
                other.name_any()
            );
            plan.remove(other, &message);
            let about = About::Manifest(current.name_any());
            plan.notices.push(Notice::normal(about, "ManifestHandedOver", message));
        }
    }
}

/// Tries the module's index first: it nearly always matches.
fn status_of<'a>(kyma: &'a Kyma, index: usize, module: &str) -> Option<&'a Arc<ModuleStatus>> {
    let all = &kyma.status.as_ref()?.modules;
    let is_of_module = |status: &&Arc<ModuleStatus>| status.name == module;
    all.get(index).filter(is_of_module).or_else(|| all.iter().find(is_of_module))
}

/// Orphans are shown, not deleted.
pub(super) fn orphaned(manifest: &Manifest, why: String, modules: &[Arc<ModuleStatus>]) -> ModuleStatus {
    let mut status = if manifest.metadata.deletion_timestamp.is_some() {
        deleting_module(manifest)
    } else {
        ModuleStatus { state: State::Warning, message: why, ..tracked(manifest) }
    };
    if status.name.is_empty() || modules.iter().any(|m| m.name == status.name) {
        status.name = manifest.name_any();
    }
    status
}
