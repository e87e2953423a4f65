//! Validates embedded objects (`x-kubernetes-embedded-resource`): type and metadata.

use serde_json::Value;

use super::{builtin, cause::Cause, types, unreadable};
use crate::kinds::validation::{metadata, names};

pub(super) fn check(object: &Value, path: &str, causes: &mut Vec<Cause>) {
    let at = |field: &str| if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") };
    for field in ["apiVersion", "kind"] {
        match object.get(field).map(|value| value.as_str().unwrap_or_default()) {
            None => causes.push(Cause::required(&at(field), "")),
            Some("") => causes.push(Cause::invalid(&at(field), &"".into(), "must not be empty")),
            Some(version) if field == "apiVersion" && version.split('/').count() > 2 => {
                let why = format!("unexpected GroupVersion string: {version}");
                causes.push(Cause::invalid(&at(field), &version.into(), &why));
            }
            Some(kind) if field == "kind" => metadata::check_format(kind, names::kind, &at(field), causes),
            Some(_) => {}
        }
    }
    let Some(given) = object.get("metadata") else { return };
    if let Some((field, have, want)) = types::first_type_error(given, builtin::object_meta()) {
        let path = at(&if field.is_empty() { "metadata".to_owned() } else { format!("metadata.{field}") });
        let message = format!("Invalid value: \"{have}\": {path} in body must be of type {want}: \"{have}\"");
        return causes.push(Cause::new(&path, "FieldValueTypeInvalid", message));
    }
    if let Some(why) = unreadable::find(given, builtin::object_meta()) {
        return causes.push(Cause::invalid(&at("metadata"), given, &why));
    }
    if let Some(namespace) = given["namespace"].as_str().filter(|namespace| !namespace.is_empty()) {
        metadata::check_format(namespace, names::label, &at("metadata.namespace"), causes);
    }
    metadata::check(given, &at("metadata"), causes);
}
