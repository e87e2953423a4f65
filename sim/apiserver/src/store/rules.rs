//! Rules of changes, without state.

use serde_json::Value;

use super::{certificates, refusal::Refusal, request::Request, target::PatchKind};
use crate::{
    fields::managed::{FieldScope, Writer},
    kinds::Kind,
    object::meta::{self, metadata_mut, put},
    patch,
    schema::{
        repeated,
        validate::{self, Cause},
    },
};

/// Checks kind, types and fields. Refuses `managedFields` before unknown fields.
pub(super) fn typed(config: &Value, kind: &Kind) -> Result<(), Refusal> {
    let text = |field: &str| config.get(field).and_then(Value::as_str).unwrap_or_default();
    let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
    let gvk = format!("{group}/{version}, Kind={}", text("kind"));
    if text("kind") != kind.kind || text("apiVersion") != kind.api_version() {
        return Err(Refusal::bad_request(format!("invalid object type: {gvk}")));
    }
    if config["metadata"]["managedFields"].is_array() {
        return Err(Refusal::bad_request("metadata.managedFields must be nil"));
    }
    let wrong = |why: String| {
        let namespace = meta::text(config, "namespace").unwrap_or_default();
        let message =
            format!("failed to create typed patch object ({namespace}/{}; {gvk}): {why}", meta::name(config));
        Err(Refusal::new(500, "", message))
    };
    if let Some((path, _, want)) = validate::first_type_error(config, kind.schema()) {
        let mut value = config;
        for step in path.split('.') {
            value = value.get(step).unwrap_or(value);
        }
        return wrong(format!(".{path}: expected {want}, got &value.valueUnstructured{{Value:{value}}}"));
    }
    if let Some((list, key)) = repeated::find(config, kind.schema()) {
        return wrong(format!("{list}: duplicate entries for key {key}"));
    }
    let unknown = crate::schema::shape::prune(&mut config.clone(), kind.schema());
    match unknown.as_slice() {
        [] => Ok(()),
        [only] => wrong(format!(".{only}: field not declared in schema")),
        many => {
            let lines: Vec<String> =
                many.iter().map(|path| format!("  .{path}: field not declared in schema")).collect();
            wrong(format!("errors:\n{}", lines.join("\n")))
        }
    }
}

fn unpatched(error: &patch::PatchError) -> Refusal {
    match error {
        patch::PatchError::Inapplicable => Refusal::unpatched(error.to_string()),
        patch::PatchError::Malformed(_) => Refusal::bad_request(error.to_string()),
        patch::PatchError::Directive(..) | patch::PatchError::Keyless(..) => {
            Refusal::new(500, "", error.to_string())
        }
        patch::PatchError::TooDeep => Refusal::too_deep(),
        patch::PatchError::TooLarge(_) => Refusal::new(413, "RequestEntityTooLarge", error.to_string()),
    }
}

pub(super) fn patched(live: &Value, how: PatchKind, patch: &Value, kind: &Kind) -> Result<Value, Refusal> {
    let result = match how {
        PatchKind::Json => patch::json(live, patch),
        PatchKind::Merge if patch.is_null() => return Err(Refusal::bad_request("Invalid JSON Patch")),
        PatchKind::Merge if !patch.is_object() => {
            Err(patch::PatchError::Malformed("a merge patch is an object".to_owned()))
        }
        PatchKind::Merge | PatchKind::Apply => Ok(patch::merge(live, patch)),
        PatchKind::Strategic => patch::strategic(live, patch, kind.schema()).map(|mut patched| {
            // This patch cannot change the type.
            for field in ["apiVersion", "kind"] {
                put(meta::as_object(&mut patched), field, live.get(field).cloned());
            }
            patched
        }),
    };
    result.map_err(|error| unpatched(&error))
}

/// Keeps fields that the path cannot change.
pub(super) fn keep_fields(object: &mut Value, live: &Value, kind: &Kind, request: &Request) {
    let keep =
        |object: &mut Value, field: &str| put(meta::as_object(object), field, live.get(field).cloned());
    match scope(kind, &request.target.subresource) {
        FieldScope::Whole => {}
        FieldScope::Main => keep(object, "status"),
        FieldScope::Status => {
            let status = object.get("status").cloned();
            *object = live.clone();
            put(meta::as_object(object), "status", status);
        }
        FieldScope::BuiltinStatus => keep(object, "spec"),
        FieldScope::DeploymentStatus => {
            keep(object, "spec");
            let labels = live.pointer("/metadata/labels").cloned();
            put(metadata_mut(object), "labels", labels);
        }
        FieldScope::Metadata => {
            keep(object, "spec");
            keep(object, "status");
        }
        FieldScope::Approval => {
            keep(object, "spec");
            certificates::keep_all_but_conditions(object, live);
        }
        FieldScope::Certificate => {
            keep(object, "spec");
            certificates::keep_decision(object, live);
        }
    }
}

pub(super) fn scope(kind: &Kind, subresource: &str) -> FieldScope {
    match (kind.kind.as_str(), subresource) {
        _ if !kind.has_status => FieldScope::Whole,
        ("Deployment", "status") if kind.is_builtin() => FieldScope::DeploymentStatus,
        ("CustomResourceDefinition" | "APIService", "status") => FieldScope::Status,
        (_, "approval") if kind.has_approval() => FieldScope::Approval,
        (_, "status") if kind.has_approval() => FieldScope::Certificate,
        _ if kind.has_approval() => FieldScope::Metadata,
        (_, "status") if kind.is_builtin() => FieldScope::BuiltinStatus,
        (_, "status") => FieldScope::Status,
        _ => FieldScope::Main,
    }
}

pub(super) fn writer(kind: &Kind, request: &Request) -> Writer {
    let named = &request.query.field_manager;
    Writer {
        manager: if named.is_empty() { request.agent.clone() } else { named.clone() },
        api_version: kind.api_version(),
        subresource: request.target.subresource.clone(),
        scope: scope(kind, &request.target.subresource),
    }
}

/// Whether `generation` increases.
pub(super) fn spec_differs(live: &Value, object: &Value, kind: &Kind) -> bool {
    if kind.is_builtin() {
        let fields: &[&str] = match kind.group.as_str() {
            "admissionregistration.k8s.io" => &["webhooks"],
            _ => &["spec"],
        };
        // Annotations control a Deployment's rollouts.
        let annotations = |object: &Value| object.pointer("/metadata/annotations").cloned();
        let rolls_out = kind.is("apps", "deployments") && annotations(live) != annotations(object);
        return rolls_out || fields.iter().any(|field| live.get(*field) != object.get(*field));
    }
    let counted = |value: &Value| {
        let mut map = value.as_object().cloned().unwrap_or_default();
        map.remove("metadata");
        if kind.has_status {
            map.remove("status");
        }
        map
    };
    counted(live) != counted(object)
}

pub(super) fn new_finalizers(live: &Value, object: &Value) -> Option<Cause> {
    meta::text(live, "deletionTimestamp")?;
    let had = meta::finalizers(live);
    let new: Vec<&str> = meta::finalizers(object).into_iter().filter(|one| !had.contains(one)).collect();
    let shown: Vec<String> = new.iter().map(|one| Value::from(*one).to_string()).collect();
    (!new.is_empty()).then(|| {
        let why = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
            shown.join(", ")
        );
        Cause::forbidden("metadata.finalizers", &why)
    })
}
