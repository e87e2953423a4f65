//! Manifests that carry a Kyma's name and are not what is planned for it: of nobody, of another Kyma, or second ones of a module.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use tidewatch_api::{Kyma, Manifest, ModuleStatus, State, names::labels};

use super::{
    Plan,
    status::{leaving, tracked},
};
use crate::{
    notice::{About, Notice},
    versions::Choice,
};

/// What is said of a Manifest that is not this Kyma's begins so.
pub(super) const ORPHANED: &str = "orphaned: ";

/// How old a Manifest that no Kyma owns has to be for its own status to say so: whoever restores a backup makes one object after the
/// other. Installed it is not before that either.
const TOLERANCE: SignedDuration = SignedDuration::from_mins(5);

/// Why a Manifest is not this Kyma's, though it carries its name; `None` if it is.
pub(crate) fn orphan(kyma: &Kyma, manifest: &Manifest) -> Option<String> {
    if manifest.module_name().is_none() {
        let (name, label) = (manifest.name_any(), labels::MODULE_NAME);
        return Some(format!(
            "{ORPHANED}the Manifest {name} names no module; set its label {label}, or delete it"
        ));
    }
    unowned(Some(kyma), manifest)
}

/// Why a Manifest is not owned by the Kyma whose name it carries; `None` if it is.
fn unowned(kyma: Option<&Kyma>, manifest: &Manifest) -> Option<String> {
    if kyma.is_some_and(|kyma| is_owned(kyma, manifest)) {
        return None;
    }
    let whose = match owners(manifest).next().map(|owner| owner.uid.as_str()) {
        None => "is owned by no Kyma".to_owned(),
        Some(uid) if kyma.is_none() => format!("is owned by a Kyma that is not there (uid {uid})"),
        Some(uid) => format!("is owned by another Kyma of this name (uid {uid})"),
    };
    let name = manifest.name_any();
    Some(format!("{ORPHANED}the Manifest {name} {whose}; delete it if nobody needs it"))
}

fn is_owned(kyma: &Kyma, manifest: &Manifest) -> bool {
    let uid = kyma.metadata.uid.as_ref();
    owners(manifest).any(|owner| Some(&owner.uid) == uid)
}

fn owners(manifest: &Manifest) -> impl Iterator<Item = &OwnerReference> {
    manifest.owner_references().iter().filter(|owner| owner.kind == "Kyma")
}

/// A Manifest of which nothing is installed, changed or removed, since no Kyma owns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// The cause and what ends it.
    pub message: String,
    /// From when on its status says so.
    pub told_from: Timestamp,
}

impl Stray {
    /// `kyma` is the one whose name it carries, if there is one. What is being deleted or given up comes to its end whoever owns
    /// it, and a mandatory module's Manifest is made for its release.
    pub fn of(kyma: Option<&Kyma>, manifest: &Manifest) -> Option<Self> {
        if !must_be_owned(manifest) {
            return None;
        }
        let message = unowned(kyma, manifest)?;
        let made = manifest.creation_timestamp().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        let told_from = made.saturating_add(TOLERANCE).unwrap_or(Timestamp::MAX);
        Some(Self { message, told_from })
    }
}

/// Whether a Manifest is a stray whatever Kymas there are.
pub fn is_nobodys(manifest: &Manifest) -> bool {
    must_be_owned(manifest) && owners(manifest).next().is_none()
}

fn must_be_owned(manifest: &Manifest) -> bool {
    manifest.metadata.deletion_timestamp.is_none() && !manifest.is_unmanaged() && !manifest.is_mandatory()
}

/// What there is of one module.
#[derive(Default)]
pub(super) struct OfModule<'a> {
    /// What the Kyma's status says of it.
    pub(super) said: Option<&'a Arc<ModuleStatus>>,
    /// The Manifest that counts.
    pub(super) current: Option<&'a Manifest>,
    /// Further ones of this Kyma, which a renamed component leaves behind.
    pub(super) others: Vec<&'a Manifest>,
}

impl<'a> OfModule<'a> {
    /// `place` is that of the choice among all. `manifests` stand beside the names of their modules. `planned` is the name that the
    /// module's Manifest is to have: one of that name is taken over, whoever owned it. One of a mandatory module is only if it is known
    /// that the module is mandatory no more.
    pub(super) fn of(
        kyma: &'a Kyma,
        manifests: &[(&str, &'a Manifest)],
        (place, choice): (usize, &Choice),
        planned: impl FnOnce() -> Option<String>,
    ) -> Self {
        let module = choice.module.name.as_str();
        let said = said(kyma, place, module);
        let counts = |(name, m): &&(&str, &Manifest)| {
            *name == module && !module.is_empty() && (choice.outcome.is_ok() || !m.is_mandatory())
        };
        let mut all = manifests.iter().filter(counts).map(|(_, manifest)| *manifest);
        let (Some(first), second) = (all.next(), all.next()) else {
            return Self { said, ..Self::default() };
        };
        if second.is_none() && is_owned(kyma, first) {
            return Self { said, current: Some(first), others: Vec::new() };
        }
        let planned = planned();
        let is_planned = |m: &Manifest| planned.as_ref() == m.metadata.name.as_ref();
        let mut all: Vec<&Manifest> = [first]
            .into_iter()
            .chain(second)
            .chain(all)
            .filter(|m| is_planned(m) || is_owned(kyma, m))
            .collect();
        all.sort_by_key(|m| (!is_planned(m), m.metadata.deletion_timestamp.is_some()));
        let mut all = all.into_iter();
        Self { said, current: all.next(), others: all.filter(|m| !m.is_mandatory()).collect() }
    }

    /// Whether it has this Manifest.
    pub(super) fn has(&self, manifest: &Manifest) -> bool {
        self.current.into_iter().chain(self.others.iter().copied()).any(|m| std::ptr::eq(m, manifest))
    }

    /// Lets second ones go, when the one that is planned is there to take over what they have.
    pub(super) fn hand_over(&self, planned: Option<String>, plan: &mut Plan) {
        let stays = |m: &&Manifest| m.metadata.deletion_timestamp.is_none() && !m.is_unmanaged();
        let Some(current) = self.current.filter(stays).filter(|m| planned == m.metadata.name) else { return };
        for other in self.others.iter().filter(|m| m.metadata.deletion_timestamp.is_none()) {
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

/// What the status says of a module. Nearly always it stands where the module stands among those that are wanted.
fn said<'a>(kyma: &'a Kyma, place: usize, module: &str) -> Option<&'a Arc<ModuleStatus>> {
    let all = &kyma.status.as_ref()?.modules;
    let is = |said: &&Arc<ModuleStatus>| said.name == module;
    all.get(place).filter(is).or_else(|| all.iter().find(is))
}

/// The entry of an orphan. It is not deleted: nobody has asked for that.
pub(super) fn orphaned(manifest: &Manifest, why: String, modules: &[Arc<ModuleStatus>]) -> ModuleStatus {
    let mut status = if manifest.metadata.deletion_timestamp.is_some() {
        leaving(manifest)
    } else {
        ModuleStatus { state: State::Warning, message: why, ..tracked(manifest) }
    };
    if status.name.is_empty() || modules.iter().any(|m| m.name == status.name) {
        status.name = manifest.name_any();
    }
    status
}
