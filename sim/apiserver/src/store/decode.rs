//! Decodes bodies into objects.

use serde_json::{Value, json};

use super::{
    refusal::Refusal,
    target::{Query, Repeated, Target},
};
use crate::{
    kinds::Kind,
    object::meta::{self, metadata_mut},
    schema::{builtin, shape, times, unreadable, validate},
};

const STRICT: &str = "strict decoding error: ";

/// Handling of unknown and duplicate fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unknown {
    Ignore,
    Warn,
    Refuse,
}

impl Unknown {
    /// `options` refuses other values.
    fn of(query: &Query) -> Self {
        match query.field_validation.as_str() {
            "Ignore" => Self::Ignore,
            "Strict" => Self::Refuse,
            _ => Self::Warn,
        }
    }
}

/// Drops unknown fields; adds warnings.
pub(super) fn decode(
    object: Value,
    kind: &Kind,
    query: &Query,
    warnings: &mut Vec<String>,
) -> Result<Value, Refusal> {
    // For built-in kinds, unknown fields are not searched.
    read(object, kind, query, !kind.is_builtin(), warnings)
}

/// `reads_all`: also reports duplicates in unknown fields.
fn read(
    mut object: Value,
    kind: &Kind,
    query: &Query,
    reads_all: bool,
    warnings: &mut Vec<String>,
) -> Result<Value, Refusal> {
    if object.is_null() {
        object = json!({});
    }
    if !object.is_object() {
        return Err(wrong_object(kind, "json: cannot unmarshal a value that is no object"));
    }
    check_type(&object, kind)?;
    object["kind"] = kind.kind.clone().into();
    object["apiVersion"] = kind.api_version().into();

    // `fieldsV1` keys are no schema fields.
    let owned = take_owned(&mut object);
    normalize(&mut object, kind)?;
    let mut removed = shape::prune(&mut object, kind.schema());
    removed.sort();
    let mode = Unknown::of(query);
    let lines = strict_errors(query, mode, reads_all, &removed);
    match mode {
        Unknown::Warn => warnings.extend(lines),
        Unknown::Refuse if !lines.is_empty() => {
            return Err(wrong_object(kind, &format!("{STRICT}{}", lines.join(", "))));
        }
        Unknown::Ignore | Unknown::Refuse => {}
    }
    metadata_mut(&mut object).remove("selfLink");
    for (entry, fields) in managed_mut(&mut object).zip(owned) {
        if let (Some(entry), Some(fields)) = (entry.as_object_mut(), fields) {
            entry.insert("fieldsV1".into(), fields);
        }
    }
    Ok(object)
}

fn wrong_object(kind: &Kind, why: &str) -> Refusal {
    Refusal::bad_request(format!(
        "{} in version {} cannot be handled as a {}: {why}",
        kind.kind,
        Value::from(kind.version.as_str()),
        kind.kind
    ))
}

/// Checks `kind` and `apiVersion`. Both may be missing, except the kind of custom resources.
fn check_type(object: &Value, kind: &Kind) -> Result<(), Refusal> {
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
    let (given_kind, given_version, version) = (text("kind"), text("apiVersion"), kind.api_version());
    if !kind.is_builtin() && given_kind.is_empty() {
        return Err(Refusal::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): Object 'Kind' is missing in '{object}' ({})",
            kind.kind,
            shortened(object)
        )));
    }
    let wrong_version = !given_version.is_empty() && given_version != version;
    if !wrong_version && (given_kind.is_empty() || given_kind == kind.kind) {
        return Ok(());
    }
    if !kind.is_builtin() && !wrong_version {
        let cause =
            validate::Cause::invalid("kind", &Value::from(given_kind), &format!("must be {}", kind.kind));
        return Err(Refusal::invalid(given_kind, &kind.group, meta::name(object), &[cause]));
    }
    let shown = given_version.rsplit('/').next().unwrap_or_default();
    Err(Refusal::bad_request(if kind.is_builtin() {
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
    }))
}

/// Checks types, drops nulls, and normalizes times.
fn normalize(object: &mut Value, kind: &Kind) -> Result<(), Refusal> {
    let wrong = |why: &str| Err(wrong_object(kind, why));
    if kind.is_builtin() {
        if let Some((path, have, want)) = validate::first_type_error(object, kind.schema()) {
            return wrong(&go_type_error(&kind.kind, &path, have, &want));
        }
        shape::drop_nulls(object, kind.schema());
        if let Some(why) = unreadable::find(object, kind.schema()) {
            return wrong(&why);
        }
        times::settle(object, kind.schema());
        return Ok(());
    }
    let schema = builtin::object_meta();
    let meta = &mut object["metadata"];
    if let Some((path, have, want)) = validate::first_type_error(meta, schema) {
        return wrong(&go_type_error(&kind.kind, &format!("metadata.{path}"), have, &want));
    }
    if let Some(why) = unreadable::find(meta, schema) {
        return wrong(&why);
    }
    times::settle(meta, schema);
    shape::drop_nulls(object, kind.schema());
    Ok(())
}

/// Messages about duplicate and unknown fields. `removed`: paths of unknown fields.
fn strict_errors(query: &Query, mode: Unknown, reads_all: bool, removed: &[String]) -> Vec<String> {
    let within = |path: &str, other: &String| {
        path.strip_prefix(other.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    let is_read = |path: &str| reads_all || !removed.iter().any(|unknown| within(path, unknown));
    let quoted = |path: &str| Value::from(path).to_string();
    let mut lines = Vec::new();
    for repeated in &query.repeated {
        match repeated {
            Repeated::Field(path) if is_read(path) => lines.push(format!("duplicate field {}", quoted(path))),
            Repeated::Field(_) => {}
            Repeated::Line(line) if mode == Unknown::Refuse => {
                lines.push(format!("yaml: unmarshal errors:\n  {line}"));
            }
            Repeated::Line(line) => lines.push(line.clone()),
        }
    }
    lines.extend(removed.iter().map(|path| format!("unknown field {}", quoted(path))));
    lines
}

fn managed_mut(object: &mut Value) -> impl Iterator<Item = &mut Value> {
    metadata_mut(object).get_mut("managedFields").and_then(Value::as_array_mut).into_iter().flatten()
}

fn take_owned(object: &mut Value) -> Vec<Option<Value>> {
    managed_mut(object).map(|entry| entry.as_object_mut()?.remove("fieldsV1")).collect()
}

/// Reports errors as errors of the patch.
pub(super) fn decode_patched(
    patched: Value,
    kind: &Kind,
    query: &Query,
    warnings: &mut Vec<String>,
) -> Result<Value, Refusal> {
    let shown = Value::from(patched.to_string());
    read(patched, kind, query, true, warnings).map_err(|refusal| match refusal.code {
        400 => Refusal::invalid("", "", "", &[validate::Cause::invalid("patch", &shown, &refusal.message)]),
        _ => refusal,
    })
}

/// Kubernetes reads applied objects as YAML.
pub(super) fn decode_applied(
    config: Value,
    kind: &Kind,
    query: &Query,
    warnings: &mut Vec<String>,
) -> Result<Value, Refusal> {
    decode(config, kind, query, warnings).map_err(|refusal| match refusal.message.split_once(STRICT) {
        Some((_, why)) => {
            Refusal::bad_request(format!("error strict decoding YAML: error converting YAML to JSON: {why}"))
        }
        None => refusal,
    })
}

/// Wording of Go's JSON package.
pub(super) fn go_type_error(kind: &str, path: &str, have: &str, want: &str) -> String {
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
    format!("json: cannot unmarshal {have} into Go struct field {kind}.{path} of type {want}")
}

fn shortened(object: &Value) -> String {
    let text = object.to_string();
    text.chars().take(200).collect()
}

/// Checks name and namespace against the path; sets missing ones.
pub(super) fn locate(object: &mut Value, kind: &Kind, target: &Target) -> Result<(), Refusal> {
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

/// Removes server-set metadata.
pub(super) fn strip_server_fields(object: &mut Value) {
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

/// Restores server-set metadata.
pub(super) fn restore_server_fields(object: &mut Value, live: &Value) {
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
