//! The module's default custom resource.

use serde_json::Value;
use tidewatch_api::{CustomResourcePolicy, Manifest, names::field_managers};

use crate::{
    drive::{
        apply::{self, ObjectError},
        gate::Gated,
    },
    plan::object::ObjectRef,
};

/// The `ModuleCR` condition, for Manifests that create one.
pub(super) fn cr_condition(manifest: &Manifest, there: bool) -> Option<bool> {
    let wanted = manifest.spec.resource.is_some()
        && manifest.spec.custom_resource_policy == CustomResourcePolicy::CreateAndDelete;
    wanted.then_some(there)
}

/// Creates the default CR if it is not there. It is never changed: after its creation it is the user's.
/// `None`: none is wanted; `Some(false)`: its kind is not served yet. `saw` hears of what there is of it.
pub(super) async fn create_default_cr(
    manifest: &Manifest,
    runtime: &Gated,
    saw: impl Fn(&ObjectRef, &Value),
) -> Result<Option<bool>, ObjectError> {
    let Some(cr) = manifest.spec.resource.as_ref().filter(|_| cr_condition(manifest, true).is_some()) else {
        return Ok(None);
    };
    let body = cr.to_value();
    let Some(id) = ObjectRef::of(&body) else { return Err(ObjectError::Malformed("the default CR".into())) };
    let there = match apply::get(runtime, &id).await {
        Ok(None) => apply::create(runtime, &body, field_managers::DEFAULT_CR).await,
        there => there,
    };
    match there {
        Err(error) if error.is_kind_missing() => Ok(Some(false)),
        Err(error) => Err(error),
        Ok(there) => {
            if let Some(live) = there {
                saw(&id, &live);
            }
            Ok(Some(true))
        }
    }
}
