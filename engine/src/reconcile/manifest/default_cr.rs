//! The module's default custom resource.

use serde_json::Value;
use tidewatch_api::{
    Manifest,
    names::{conditions, field_managers},
    object::ObjectRef,
    readiness::CrState,
};
use tidewatch_deployer::{bundle::Scope, readiness::module_cr};

use crate::clusters::{
    Gated,
    objects::{self, ObjectError},
};

/// Returns the `ModuleCR` condition, for Manifests that create a default CR. `None`: as before.
pub(super) fn cr_condition(manifest: &Manifest, there: Option<bool>) -> Option<bool> {
    manifest.spec.creates_default_cr().then(|| there.unwrap_or_else(|| was_there(manifest)))
}

fn was_there(manifest: &Manifest) -> bool {
    let said = manifest.status.iter().flat_map(|status| &status.conditions);
    said.filter(|c| c.type_ == conditions::MODULE_CR).any(|c| c.status == "True")
}

/// The state of the default CR.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DefaultCr {
    NotWanted,
    NotServed,
    Unknown,
    /// Created in this pass; `None` if another writer was faster.
    Made(Option<Value>),
    There(Value),
    /// No event since the last read: its existence and state then.
    AsBefore(Option<bool>, Option<CrState>),
}

impl DefaultCr {
    /// `None` if unwanted or unknown.
    pub(super) const fn there(&self) -> Option<bool> {
        match self {
            Self::NotWanted | Self::Unknown => None,
            Self::NotServed => Some(false),
            Self::Made(_) | Self::There(_) => Some(true),
            Self::AsBefore(there, _) => *there,
        }
    }

    /// Whether it was created again after a deletion.
    pub(super) fn is_anew(&self, manifest: &Manifest) -> bool {
        matches!(self, Self::Made(_)) && was_there(manifest)
    }

    pub(super) fn said(&self) -> Option<CrState> {
        match self {
            Self::Made(Some(live)) | Self::There(live) => Some(module_cr(Some(live))),
            Self::AsBefore(_, said) => said.clone(),
            Self::NotWanted | Self::NotServed | Self::Unknown | Self::Made(None) => None,
        }
    }
}

/// What a pass knows of the default CR.
pub(super) struct DefaultCrReport {
    /// `None`: the module has none.
    pub(super) id: Option<ObjectRef>,
    /// Whether it exists; `None` if unwanted or unknown.
    pub(super) exists: Option<bool>,
    /// Its state, if the engine reports it.
    pub(super) state: Option<CrState>,
    pub(super) is_known: bool,
    /// Whether the module waits for the kind of the default CR alone.
    pub(super) is_alone_missing: bool,
}

impl DefaultCrReport {
    pub(super) fn new(id: Option<ObjectRef>, cr: &DefaultCr, reports_state: bool) -> Self {
        let state = reports_state.then(|| cr.said()).flatten();
        let is_known = *cr != DefaultCr::Unknown;
        Self { id, exists: cr.there(), state, is_known, is_alone_missing: false }
    }

    pub(super) const fn unknown(id: Option<ObjectRef>) -> Self {
        Self { id, exists: None, state: None, is_known: false, is_alone_missing: false }
    }

    pub(super) fn id_and_state(&self) -> Option<(ObjectRef, CrState)> {
        self.id.clone().zip(self.state.clone())
    }
}

/// Creates the default CR if it is missing. Never changes it, because it is then user-owned.
///
/// `record_read` receives the live object.
pub(super) async fn create_default_cr(
    manifest: &Manifest,
    runtime: &Gated,
    record_read: impl Fn(&ObjectRef, &Value, bool),
) -> Result<DefaultCr, ObjectError> {
    let Some(cr) = manifest.spec.resource.as_ref().filter(|_| manifest.spec.creates_default_cr()) else {
        return Ok(DefaultCr::NotWanted);
    };
    let mut body = cr.to_value();
    let Some(id) = ObjectRef::of(&body) else { return Err(ObjectError::Malformed("the default CR".into())) };
    let there = match objects::get(runtime, &id).await {
        Ok(Some(live)) => Ok(DefaultCr::There(live)),
        Ok(None) => {
            if let Ok(Some(Scope::Cluster)) = objects::scope(runtime, &id.gvk).await
                && let Some(metadata) = body["metadata"].as_object_mut()
            {
                metadata.remove("namespace");
            }
            objects::create(runtime, &body, field_managers::DEFAULT_CR).await.map(DefaultCr::Made)
        }
        Err(error) => Err(error),
    };
    if let Ok(DefaultCr::There(live) | DefaultCr::Made(Some(live))) = &there
        && let Some(id) = ObjectRef::of(live)
    {
        // Events name it without a namespace if its kind is cluster-scoped.
        record_read(&id, live, matches!(there, Ok(DefaultCr::Made(_))));
    }
    match there {
        Err(error) if error.is_kind_missing() => Ok(DefaultCr::NotServed),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tidewatch_api::State;

    use super::*;

    #[test]
    fn default_cr_state_is_live_or_remembered() {
        let live = json!({"apiVersion": "x.dev/v1", "kind": "Beacon", "metadata": {"name": "b"}, "status": {"state": "Warning"}});
        let said = || Some(CrState { state: State::Warning, message: String::new() });
        for (cr, there, says) in [
            (DefaultCr::NotWanted, None, None),
            (DefaultCr::NotServed, Some(false), None),
            (DefaultCr::Unknown, None, None),
            (DefaultCr::There(live.clone()), Some(true), said()),
            // Another writer may have created it between the read and the write.
            (DefaultCr::Made(Some(live)), Some(true), said()),
            (DefaultCr::Made(None), Some(true), None),
            (DefaultCr::AsBefore(Some(true), said()), Some(true), said()),
            (DefaultCr::AsBefore(None, None), None, None),
        ] {
            assert_eq!((cr.there(), cr.said()), (there, says), "{cr:?}");
        }
    }

    fn manifest(there: &str) -> Manifest {
        let cr = json!({"apiVersion": "x.dev/v1", "kind": "Beacon", "metadata": {"name": "b"}});
        serde_json::from_value(json!({"metadata": {"name": "m"}, "spec": {"resource": cr}, "status": {"state": "Ready", "conditions": [
            {"type": conditions::MODULE_CR, "status": there, "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}))
        .unwrap()
    }

    #[test]
    fn an_unread_default_cr_keeps_its_condition() {
        for (said, is) in [("True", true), ("False", false)] {
            assert_eq!(cr_condition(&manifest(said), None), Some(is));
            assert_eq!(cr_condition(&manifest(said), Some(!is)), Some(!is));
        }
        assert_eq!(cr_condition(&Manifest::default(), None), None, "none is wanted");
    }

    #[test]
    fn only_a_recreated_default_cr_counts_as_recreated() {
        let manifest = manifest("True");
        assert!(DefaultCr::Made(None).is_anew(&manifest));
        assert!(!DefaultCr::Made(None).is_anew(&Manifest::default()), "for the first time");
        assert!(!DefaultCr::AsBefore(Some(true), None).is_anew(&manifest));
    }
}
