//! Errors: `Status` bodies.

use serde_json::{Map, Value, json};

use crate::{fields::apply::Conflict, json::DEEPEST, kinds::Kind, schema::validate::Cause};

/// A Kubernetes error.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// HTTP status.
    pub code: u16,
    /// Such as `NotFound`.
    pub reason: &'static str,
    /// Message.
    pub message: String,
    details: Option<Map<String, Value>>,
    /// Continues an expired list inconsistently.
    next: Option<String>,
}

impl Refusal {
    pub(crate) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None, next: None }
    }

    fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.details.get_or_insert_default().insert(field.into(), value.into());
        self
    }

    fn about(mut self, name: &str, group: &str, kind: &str) -> Self {
        for (field, value) in [("name", name), ("group", group), ("kind", kind)] {
            if !value.is_empty() {
                self = self.with(field, value);
            }
        }
        self
    }

    /// Returns the `Status`.
    pub fn body(&self) -> Value {
        let mut body = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if let Some(map) = body.as_object_mut() {
            if !self.reason.is_empty() {
                map.insert("reason".into(), self.reason.into());
            }
            if let Some(next) = &self.next {
                map.insert("metadata".into(), json!({"continue": next}));
            }
            if let Some(details) = &self.details {
                map.insert("details".into(), Value::Object(details.clone()));
            }
        }
        body
    }

    /// `Retry-After` in seconds.
    pub fn retry_after(&self) -> Option<u64> {
        self.details.as_ref()?.get("retryAfterSeconds").and_then(Value::as_u64)
    }

    /// A Kubernetes feature without simulation.
    pub(crate) fn not_simulated(label: &str) -> Self {
        Self::new(501, "NotImplemented", format!("not simulated: {label}"))
    }

    /// Deeper objects cannot be read back.
    pub(crate) fn too_deep() -> Self {
        Self::not_simulated(&format!("objects of more than {DEEPEST} levels"))
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub(crate) fn internal(why: impl AsRef<str>) -> Self {
        let why = why.as_ref();
        Self::new(500, "InternalError", format!("Internal error occurred: {why}"))
            .with("causes", json!([{"message": why}]))
    }

    pub(crate) fn unknown_path() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource").bare()
    }

    /// Adds empty details, like path and header errors.
    pub(crate) fn bare(mut self) -> Self {
        self.details = Some(Map::new());
        self
    }

    pub(crate) fn unpatched(message: String) -> Self {
        Self::new(422, "Invalid", message).bare()
    }

    pub(crate) fn not_acceptable() -> Self {
        let message = "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml";
        Self::new(406, "NotAcceptable", message).bare()
    }

    /// Form and object do not match: list or single. Uses Go type names.
    pub(crate) fn no_such_form(form: &str, is: &str, kind: &Kind, suffix: &str) -> Self {
        let package = match kind.group.split('.').next().unwrap_or_default() {
            _ if !kind.is_builtin() => "unstructured",
            "" | "events" => "core",
            group => group,
        };
        let name = if kind.is_builtin() { kind.kind.as_str() } else { "Unstructured" };
        let message =
            format!("you requested {form}, but the requested object is {is} (*{package}.{name}{suffix})");
        Self::new(406, "NotAcceptable", message)
    }

    /// Invalid `includeObject`.
    pub(crate) fn no_such_rows(include: &str) -> Self {
        Self::bad_request(format!(
            "Unable to convert to Table as requested: includeObject: Invalid value: {}: must be 'Metadata', 'Object', \
             'None', or empty",
            Value::from(include)
        ))
    }

    /// No stream in this form.
    pub(crate) fn no_stream() -> Self {
        let message = "only the following media types are accepted: application/json;stream=watch, \
                       application/vnd.kubernetes.protobuf;stream=watch";
        Self::new(406, "NotAcceptable", message)
    }

    pub(crate) fn unknown_media_type() -> Self {
        Self::new(415, "UnsupportedMediaType", "415: Unsupported Media Type").bare()
    }

    /// An update with a foreign uid.
    pub(crate) fn other_uid(kind: &Kind, namespace: &str, name: &str, wanted: &str, have: &str) -> Self {
        let folder =
            if kind.is_builtin() { kind.plural.clone() } else { format!("{}/{}", kind.group, kind.plural) };
        let key = if namespace.is_empty() {
            format!("{folder}/{name}")
        } else {
            format!("{folder}/{namespace}/{name}")
        };
        let message = format!(
            "Operation cannot be fulfilled on {} {}: StorageError: invalid object, Code: 4, Key: /registry/{key}, \
             ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {wanted}, UID in object \
             meta: {have}",
            kind.resource(),
            Value::from(name)
        );
        Self::new(409, "Conflict", message).about(name, &kind.group, &kind.plural)
    }

    /// An apply with a uid, but no object.
    pub(crate) fn gone_uid(kind: &Kind, name: &str, uid: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} {}: uid mismatch: the provided object specified uid {uid}, and no \
             existing object was found",
            kind.resource(),
            Value::from(name)
        );
        Self::new(409, "Conflict", message).about(name, &kind.group, &kind.plural)
    }

    /// A patched built-in Scale with a foreign uid.
    pub(crate) fn other_uid_of_scale(kind: &Kind, name: &str, wanted: &str, have: &str) -> Self {
        let scale = format!("{}/scale", kind.plural);
        let message = format!(
            "Operation cannot be fulfilled on {} {}: Precondition failed: UID in precondition: {wanted}, UID in \
             object meta: {have}",
            crate::kinds::qualified(&scale, &kind.group),
            Value::from(name)
        );
        Self::new(409, "Conflict", message).about(name, &kind.group, &scale)
    }

    pub(crate) fn nameless(name: &str) -> Self {
        Self::bad_request(format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        ))
    }

    pub(crate) fn not_found(kind: &Kind, name: &str) -> Self {
        let message = format!("{} {} not found", kind.resource(), Value::from(name));
        Self::new(404, "NotFound", message).about(name, &kind.group, &kind.plural)
    }

    pub(crate) fn namespace_missing(name: &str) -> Self {
        let message = format!("namespaces {} not found", Value::from(name));
        Self::new(404, "NotFound", message).about(name, "", "namespaces")
    }

    pub(crate) fn exists(kind: &Kind, name: &str, being_deleted: bool) -> Self {
        let prefix = if being_deleted { "object is being deleted: " } else { "" };
        let message = format!("{prefix}{} {} already exists", kind.resource(), Value::from(name));
        Self::new(409, "AlreadyExists", message).about(name, &kind.group, &kind.plural)
    }

    pub(crate) fn terminating(kind: &Kind, name: &str, namespace: &str) -> Self {
        let message = format!(
            "{} {} is forbidden: unable to create new content in namespace {namespace} because it is being terminated",
            kind.resource(),
            Value::from(name)
        );
        let cause = json!([{
            "reason": "NamespaceTerminating", "field": "metadata.namespace",
            "message": format!("namespace {namespace} is being terminated"),
        }]);
        Self::new(403, "Forbidden", message).about(name, &kind.group, &kind.plural).with("causes", cause)
    }

    pub(crate) fn forbidden(resource: &str, group: &str, name: &str, why: &str) -> Self {
        let qualified = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
        let named = if name.is_empty() { String::new() } else { format!(" {}", Value::from(name)) };
        Self::new(403, "Forbidden", format!("{qualified}{named} is forbidden: {why}"))
            .about(name, group, resource)
    }

    pub(crate) fn conflict(resource: &str, group: &str, name: &str, why: &str) -> Self {
        let qualified = crate::kinds::qualified(resource, group);
        let message = format!("Operation cannot be fulfilled on {qualified} {}: {why}", Value::from(name));
        Self::new(409, "Conflict", message).about(name, group, resource)
    }

    pub(crate) fn modified(kind: &Kind, name: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} {}: the object has been modified; please apply your changes to the \
             latest version and try again",
            kind.resource(),
            Value::from(name)
        );
        Self::new(409, "Conflict", message).about(name, &kind.group, &kind.plural)
    }

    pub(crate) fn precondition(kind: &Kind, name: &str, label: &str, wanted: &str, have: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} {}: the {label} in the precondition ({wanted}) does not match the \
             {label} in record ({have}). The object might have been {}",
            kind.qualified_kind(),
            Value::from(name),
            if label == "UID" { "deleted and then recreated" } else { "modified" },
        );
        Self::new(409, "Conflict", message).about(name, &kind.group, &kind.kind)
    }

    pub(crate) fn invalid(kind: &str, group: &str, name: &str, causes: &[Cause]) -> Self {
        let qualified = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        let lines: Vec<String> =
            causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        let all = match lines.as_slice() {
            [only] => only.clone(),
            more => format!("[{}]", more.join(", ")),
        };
        let message = format!("{qualified} {} is invalid: {all}", Value::from(name));
        let causes: Vec<Value> = causes
            .iter()
            .map(|cause| json!({"reason": cause.reason, "message": cause.message, "field": cause.field}))
            .collect();
        Self::new(422, "Invalid", message).about(name, group, kind).with("causes", causes)
    }

    pub(crate) fn apply_conflict(conflicts: &[Conflict]) -> Self {
        let causes: Vec<Value> = conflicts
            .iter()
            .map(|conflict| {
                let message = format!("conflict with {}", conflict.with);
                json!({"reason": "FieldManagerConflict", "message": message, "field": conflict.field})
            })
            .collect();
        Self::new(409, "Conflict", crate::fields::apply::message(conflicts)).with("causes", causes)
    }

    pub(crate) fn unsupported_media_type(accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::new(415, "UnsupportedMediaType", message)
    }

    pub(crate) fn method_not_allowed() -> Self {
        Self::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
            .bare()
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// An expired continue token or resourceVersion.
    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    pub(crate) fn expired_page(next: String) -> Self {
        let message = "The provided continue parameter is too old to display a consistent list result. You can start a new list without \
                       the continue parameter, or use the continue token in this response to retrieve the remainder of the results. \
                       Continuing with the provided token results in an inconsistent list - objects that were created, modified, or \
                       deleted between the time the first chunk was returned and now may show up in the list.";
        Self { next: Some(next), ..Self::expired(message) }
    }

    pub(crate) fn too_large(wanted: u64, current: u64) -> Self {
        let cause = json!([{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]);
        Self::new(
            504,
            "Timeout",
            format!("Timeout: Too large resource version: {wanted}, current: {current}"),
        )
        .with("causes", cause)
        .with("retryAfterSeconds", 1)
    }

    /// Creates a 429 with `Retry-After`.
    pub fn too_many_requests(seconds: u64) -> Self {
        Self::new(429, "TooManyRequests", "too many requests, please try again later")
            .with("retryAfterSeconds", seconds)
    }

    /// Creates a 5xx.
    pub fn failing(code: u16) -> Self {
        let (reason, message) = match code {
            503 => ("ServiceUnavailable", "the server is currently unable to handle the request"),
            504 => ("Timeout", "the request did not complete within the allotted time"),
            _ => ("InternalError", "an error on the server has prevented the request from succeeding"),
        };
        Self::new(code, reason, message)
    }
}
