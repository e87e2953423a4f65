//! From a body to an object: what is accepted, what is dropped, what is refused.

use serde_json::{Value, json};

use super::{
    refusal::Refusal,
    request::{Query, Target},
};
use crate::{
    kinds::{Kind, Origin},
    object::meta::{self, metadata_mut},
    schema::{shape, times, unreadable, validate},
};

/// How to treat fields that the schema does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unknown {
    Ignore,
    Warn,
    Refuse,
}

impl Unknown {
    pub(super) fn of(query: &Query) -> Result<Self, Refusal> {
        match query.field_validation.as_str() {
            "" | "Warn" => Ok(Self::Warn),
            "Ignore" => Ok(Self::Ignore),
            "Strict" => Ok(Self::Refuse),
            other => {
                let message = format!(
                    "Unsupported value: {}: supported values: \"\", \"Ignore\", \"Strict\", \"Warn\"",
                    Value::from(other)
                );
                let cause = validate::Cause::new("fieldValidation", "FieldValueNotSupported", message);
                Err(Refusal::invalid("CreateOptions", "meta.k8s.io", "", &[cause]))
            }
        }
    }
}

/// An object of the kind, without what the schema does not know. Warnings are added.
pub(super) fn decode(
    mut object: Value,
    kind: &Kind,
    unknown: Unknown,
    warnings: &mut Vec<String>,
) -> Result<Value, Refusal> {
    let version = kind.api_version();
    let as_kind = |why: &str| {
        Refusal::bad_request(format!(
            "{} in version {} cannot be handled as a {}: {why}",
            kind.kind,
            Value::from(kind.version.as_str()),
            kind.kind
        ))
    };
    if !object.is_object() {
        return Err(as_kind("json: cannot unmarshal a value that is no object"));
    }
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (given_kind, given_version) = (text("kind"), text("apiVersion"));
    if !kind.is_builtin() && given_kind.is_empty() {
        return Err(Refusal::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): Object 'Kind' is missing in '{object}' ({})",
            kind.kind,
            shortened(&object)
        )));
    }
    let wrong_version = !given_version.is_empty() && given_version != version;
    if wrong_version || !given_kind.is_empty() && given_kind != kind.kind {
        if !kind.is_builtin() && !wrong_version {
            let value = Value::from(given_kind.as_str());
            let cause = validate::Cause::invalid("kind", &value, &format!("must be {}", kind.kind));
            return Err(Refusal::invalid(&given_kind, &kind.group, meta::name(&object), &[cause]));
        }
        let shown = given_version.rsplit('/').next().unwrap_or_default();
        let message = if kind.is_builtin() {
            format!(
                "{given_kind} in version {} cannot be handled as a {}: converting ({shown}.{given_kind}) to ({}.{}): unknown conversion",
                Value::from(shown),
                kind.kind,
                if kind.group.is_empty() { "core" } else { &kind.group },
                kind.kind
            )
        } else {
            format!(
                "the API version in the data ({given_version}) does not match the expected API version ({version})"
            )
        };
        return Err(Refusal::bad_request(message));
    }
    object["kind"] = kind.kind.clone().into();
    object["apiVersion"] = version.into();

    // Kept apart: its fields are nobody's schema.
    let managed = metadata_mut(&mut object).remove("managedFields");
    if let Origin::Builtin(_) = kind.origin {
        if let Some((path, have, want)) = validate::first_type_error(&object, kind.schema()) {
            return Err(as_kind(&go_type_error(kind, &path, have, &want)));
        }
        shape::drop_nulls(&mut object, kind.schema());
        if let Some(why) = unreadable::find(&object, kind.schema()) {
            return Err(as_kind(&why));
        }
        times::settle(&mut object, kind.schema());
    } else if let Some((path, have, want)) = object
        .get("metadata")
        .and_then(|meta| validate::first_type_error(meta, crate::schema::builtin::object_meta()))
    {
        return Err(as_kind(&go_type_error(kind, &format!("metadata.{path}"), have, &want)));
    } else {
        shape::drop_nulls(&mut object, kind.schema());
    }
    let mut removed = shape::prune(&mut object, kind.schema());
    removed.sort();
    if !removed.is_empty() {
        let lines: Vec<String> =
            removed.iter().map(|path| format!("unknown field {}", Value::from(path.as_str()))).collect();
        match unknown {
            Unknown::Ignore => {}
            Unknown::Warn => warnings.extend(lines),
            Unknown::Refuse => return Err(as_kind(&format!("strict decoding error: {}", lines.join(", ")))),
        }
    }
    let metadata = metadata_mut(&mut object);
    metadata.remove("selfLink");
    meta::put(metadata, "managedFields", managed);
    Ok(object)
}

/// The same of what a patch has made: it is the patch that is to blame.
pub(super) fn decode_patched(
    patched: Value,
    kind: &Kind,
    query: &Query,
    warnings: &mut Vec<String>,
) -> Result<Value, Refusal> {
    let shown = Value::from(patched.to_string());
    decode(patched, kind, Unknown::of(query)?, warnings).map_err(|refusal| match refusal.code {
        400 => Refusal::invalid("", "", "", &[validate::Cause::invalid("patch", &shown, &refusal.message)]),
        _ => refusal,
    })
}

/// As Go's JSON package says it.
fn go_type_error(kind: &Kind, path: &str, have: &str, want: &str) -> String {
    let have = match have {
        "boolean" => "bool",
        "integer" => "number",
        other => other,
    };
    let want = match want {
        "boolean" => "bool",
        "integer" => "int32",
        other => other,
    };
    format!("json: cannot unmarshal {have} into Go struct field {}.{path} of type {want}", kind.kind)
}

fn shortened(object: &Value) -> String {
    let text = object.to_string();
    text.chars().take(200).collect()
}

/// Whether names in the body and in the path go together; sets what the body leaves out.
pub(super) fn place(object: &mut Value, kind: &Kind, target: &Target) -> Result<(), Refusal> {
    let metadata = metadata_mut(object);
    let text = |field: &str| metadata.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (name, namespace) = (text("name"), text("namespace"));
    if !target.name.is_empty() {
        if name.is_empty() {
            metadata.insert("name".into(), target.name.clone().into());
        } else if name != target.name {
            let message = format!(
                "the name of the object ({name}) does not match the name on the URL ({})",
                target.name
            );
            return Err(Refusal::bad_request(message));
        }
    }
    if kind.namespaced {
        if namespace.is_empty() {
            metadata.insert("namespace".into(), target.namespace.clone().into());
        } else if namespace != target.namespace {
            return Err(Refusal::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
    } else if namespace.is_empty() {
        metadata.remove("namespace");
    } else {
        return Err(Refusal::bad_request("namespace is not allowed on this type"));
    }
    Ok(())
}

/// Metadata that only the server sets, removed.
pub(super) fn strip_servers(object: &mut Value) {
    let metadata = metadata_mut(object);
    for field in [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "resourceVersion",
    ] {
        metadata.remove(field);
    }
}

/// The same, taken from the object as it is.
pub(super) fn keep_servers(object: &mut Value, live: &Value) {
    let kept = live.get("metadata").cloned().unwrap_or_else(|| json!({}));
    let metadata = metadata_mut(object);
    for field in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "resourceVersion",
    ] {
        meta::put(metadata, field, kept.get(field).cloned());
    }
}
