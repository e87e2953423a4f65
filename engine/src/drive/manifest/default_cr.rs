//! The module's default custom resource.

use serde_json::Value;
use tidewatch_api::{
    CustomResourcePolicy, Manifest,
    names::{conditions, field_managers},
};

use crate::{
    drive::{
        Shared,
        apply::{self, ObjectError},
        gate::Gated,
        kyma::runtime_kyma,
    },
    kcp::state::default_cr,
    plan::{
        notice::{About, Kind, Notice},
        object::ObjectRef,
        readiness::{CrState, module_cr},
    },
};

/// The `ModuleCR` condition, for Manifests that create one.
pub(super) fn cr_condition(manifest: &Manifest, there: bool) -> Option<bool> {
    let wanted = manifest.spec.resource.is_some()
        && manifest.spec.custom_resource_policy == CustomResourcePolicy::CreateAndDelete;
    wanted.then_some(there)
}

/// What became of the default CR.
pub(super) enum DefaultCr {
    /// None is wanted.
    NotWanted,
    /// Its kind is not served yet.
    NotServed,
    /// Nobody has looked.
    Unknown,
    /// It was made just now.
    Made,
    /// It was there.
    There(Value),
}

impl DefaultCr {
    /// Whether it is there; `None` if none is wanted.
    pub(super) const fn there(&self) -> Option<bool> {
        match self {
            Self::NotWanted => None,
            Self::NotServed | Self::Unknown => Some(false),
            Self::Made | Self::There(_) => Some(true),
        }
    }

    /// Whether it was made again: the Manifest says that it has been there.
    pub(super) fn is_anew(&self, manifest: &Manifest) -> bool {
        let said = manifest.status.iter().flat_map(|status| &status.conditions);
        let was_there = said.filter(|c| c.type_ == conditions::MODULE_CR).any(|c| c.status == "True");
        matches!(self, Self::Made) && was_there
    }

    /// What it says of itself.
    pub(super) fn state(&self, manifest: &Manifest) -> Option<(ObjectRef, CrState)> {
        match self {
            Self::There(live) => Some((default_cr(manifest)?, module_cr(Some(live)))),
            _ => None,
        }
    }
}

/// Creates the default CR if it is not there. It is never changed: after its creation it is the user's.
pub(super) async fn create_default_cr(
    manifest: &Manifest,
    runtime: &Gated,
) -> Result<DefaultCr, ObjectError> {
    let Some(cr) = manifest.spec.resource.as_ref().filter(|_| cr_condition(manifest, true).is_some()) else {
        return Ok(DefaultCr::NotWanted);
    };
    let body = cr.to_value();
    let Some(id) = ObjectRef::of(&body) else { return Err(ObjectError::Malformed("the default CR".into())) };
    let there = match apply::get(runtime, &id).await {
        Ok(Some(live)) => Ok(DefaultCr::There(live)),
        Ok(None) => apply::create(runtime, &body, field_managers::DEFAULT_CR).await.map(|()| DefaultCr::Made),
        Err(error) => Err(error),
    };
    match there {
        Err(error) if error.is_kind_missing() => Ok(DefaultCr::NotServed),
        other => other,
    }
}

impl Shared {
    /// Tells the runtime's user that the default CR was deleted in vain, and how it can be done.
    pub(super) async fn tell_anew(&self, kyma: &str, manifest: &Manifest, runtime: &Gated) {
        let cr = default_cr(manifest).map(|cr| cr.to_string()).unwrap_or_default();
        let module = manifest.module_name().unwrap_or_default();
        let notice = Notice {
            about: About::RuntimeKyma,
            kind: Kind::Warning,
            reason: "DefaultCRRecreated",
            message: format!(
                "{cr}, the default custom resource of module '{module}', was deleted and is made anew; with customResourcePolicy: \
                 Ignore at the module it stays away"
            ),
        };
        let there = apply::look(runtime, &runtime_kyma()).await.ok().flatten();
        let uid = there.map(|there| there.uid).unwrap_or_default();
        self.tell(kyma, Some((runtime, &uid)), &[notice]).await;
    }
}
