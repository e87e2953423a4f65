//! What an applied object says of its readiness.

use serde_json::Value;

use crate::plan::{
    object::ObjectRef,
    readiness::{self, Readiness},
};

/// The readiness of an object, if its kind has one.
pub(super) fn of(object: &Value) -> Option<Readiness> {
    ObjectRef::of(object)
        .is_some_and(|o| o.gvk.group == "apps" && o.gvk.kind == "Deployment")
        .then(|| readiness::deployment(object))
}
