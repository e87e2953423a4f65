//! Stored objects as answers.

use serde_json::Value;

use crate::{kinds::Kind, object::Stored, schema::shape};

/// Renders an object in the kind's version.
pub(super) fn render(kind: &Kind, stored: &Stored) -> Value {
    let mut object = stored.render();
    // Other versions have only their own schema's fields.
    if !kind.is_builtin() && object["apiVersion"] != *kind.api_version() {
        shape::prune(&mut object, kind.schema());
    }
    if let Some(map) = object.as_object_mut() {
        map.insert("apiVersion".into(), kind.api_version().into());
        map.insert("kind".into(), kind.kind.clone().into());
    }
    object
}

/// Renders an object, or only its metadata.
pub(super) fn show(kind: &Kind, stored: &Stored, metadata_only: bool) -> Value {
    if metadata_only { stored.render_metadata() } else { render(kind, stored) }
}
