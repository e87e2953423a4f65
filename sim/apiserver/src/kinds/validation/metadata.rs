//! Metadata of objects and embedded objects.

use serde_json::Value;

use super::{
    names::{self, Format},
    values::texts,
};
use crate::schema::cause::Cause;

/// Total bytes, keys included.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// Skips names; `path` is that of the metadata.
pub(crate) fn check(metadata: &Value, path: &str, causes: &mut Vec<Cause>) {
    if let Some(value) =
        metadata.get("generation").filter(|value| value.as_i64().is_some_and(|number| number < 0))
    {
        causes.push(Cause::invalid(
            &format!("{path}.generation"),
            value,
            "must be greater than or equal to 0",
        ));
    }
    labels(&metadata["labels"], &format!("{path}.labels"), causes);
    annotations(&metadata["annotations"], &format!("{path}.annotations"), causes);
    owners(&metadata["ownerReferences"], &format!("{path}.ownerReferences"), causes);
    finalizers(&metadata["finalizers"], &format!("{path}.finalizers"), causes);
}

/// Causes use the map's path.
pub(crate) fn labels(labels: &Value, path: &str, causes: &mut Vec<Cause>) {
    for (key, value) in labels.as_object().into_iter().flatten() {
        check_format(key, names::qualified, path, causes);
        check_format(value.as_str().unwrap_or_default(), names::label_value, path, causes);
    }
}

pub(crate) fn annotations(annotations: &Value, path: &str, causes: &mut Vec<Cause>) {
    let mut size = 0_usize;
    for (key, value) in annotations.as_object().into_iter().flatten() {
        check_format(key, names::qualified_lower, path, causes);
        size = size.saturating_add(key.len()).saturating_add(value.as_str().map_or(0, str::len));
    }
    if size > MAX_ANNOTATIONS {
        causes.push(Cause::too_long(path, MAX_ANNOTATIONS));
    }
}

fn owners(owners: &Value, path: &str, causes: &mut Vec<Cause>) {
    let mut controller = String::new();
    for owner in owners.as_array().into_iter().flatten() {
        let text = |field: &str| owner[field].as_str().unwrap_or_default();
        let version = match text("apiVersion").split('/').collect::<Vec<_>>().as_slice() {
            [version] | [_, version] => version,
            _ => "",
        };
        if version.is_empty() {
            let value = Value::from(text("apiVersion"));
            causes.push(Cause::invalid(&format!("{path}.apiVersion"), &value, "version must not be empty"));
        }
        for field in ["kind", "name", "uid"].into_iter().filter(|field| text(field).is_empty()) {
            causes.push(Cause::invalid(&format!("{path}.{field}"), &"".into(), "must not be empty"));
        }
        if (text("apiVersion"), text("kind")) == ("v1", "Event") {
            causes.push(Cause::invalid(path, owner, "/v1, Kind=Event is disallowed from being an owner"));
        }
        if owner["controller"] == true {
            let this = format!("{}/{}", text("kind"), text("name"));
            if controller.is_empty() {
                controller = this;
            } else {
                let why = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {controller} and {this}"
                );
                causes.push(Cause::invalid(path, owners, &why));
            }
        }
    }
}

fn finalizers(finalizers: &Value, path: &str, causes: &mut Vec<Cause>) {
    for finalizer in texts(finalizers) {
        check_format(finalizer, names::qualified, path, causes);
    }
    let has = |name: &str| texts(finalizers).any(|one| one == name);
    if has("orphan") && has("foregroundDeletion") {
        let why = "finalizer orphan and foregroundDeletion cannot be both set";
        causes.push(Cause::invalid(path, finalizers, why));
    }
}

/// Built-in kinds need qualified finalizers.
pub(crate) fn known_finalizers(metadata: &Value, path: &str, causes: &mut Vec<Cause>) {
    for (index, finalizer) in texts(&metadata["finalizers"]).enumerate() {
        check_format(finalizer, names::finalizer, &format!("{path}.finalizers[{index}]"), causes);
    }
}

pub(crate) fn check_format(word: &str, form: Format, path: &str, causes: &mut Vec<Cause>) {
    causes.extend(form(word).iter().map(|why| Cause::invalid(path, &word.into(), why)));
}
