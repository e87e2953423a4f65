//! Defaults, server-set values and checks before storing.

use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    addresses::Addresses,
    controllers::api_services,
    definitions,
    deletion::{FOREGROUND, ORPHAN},
    refusal::Refusal,
    rules::new_finalizers,
    state::{Options, State},
};
use crate::{
    json::{DEEPEST, is_deeper},
    kinds::{Kind, Origin, checks, custom, defaults, validation},
    object::meta::{self, put},
    proto,
    schema::{builtin, shape},
};

/// Bytes as JSON.
const MAX_BYTES: usize = 3 * 1024 * 1024;
const SUFFIX: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Unqualified finalizers of Kubernetes.
const KUBERNETES_FINALIZERS: [&str; 3] = ["kubernetes", ORPHAN, FOREGROUND];

/// Name with a suffix from `uid`.
pub(super) fn generated_name(prefix: &str, uid: Uuid) -> String {
    let bytes = uid.into_bytes();
    let suffix = bytes.iter().take(5).map(|byte| {
        let index = usize::from(*byte) % SUFFIX.len();
        char::from(SUFFIX.get(index).copied().unwrap_or(b'x'))
    });
    prefix.chars().take(58).chain(suffix).collect()
}

/// Normalizes an object and sets defaults.
pub(super) fn shape(object: &mut Value, kind: &Kind) {
    if kind.is_builtin() {
        let schema = kind.schema();
        shape::drop_nulls(object, schema);
        if let Origin::Builtin(definition) = kind.origin {
            proto::drop_zeros(object, definition);
        }
        shape::drop_empty(object, schema);
        defaults::set(object, kind);
    } else {
        if let Some(metadata) = object.get_mut("metadata") {
            let schema = builtin::object_meta();
            shape::drop_nulls(metadata, schema);
            proto::drop_zeros(metadata, builtin::OBJECT_META);
            shape::drop_empty(metadata, schema);
        }
        shape::default(object, kind.schema());
    }
}

/// Sets server values, which have no owner.
pub(super) fn assign(addresses: &mut Addresses, object: &mut Value, kind: &Kind, live: Option<&Value>) {
    if kind.is("", "services") {
        addresses.assign(object, live);
    }
    match live {
        None => defaults::admit(object, kind),
        // Only the finalize path changes finalizers.
        Some(live) if kind.is("", "namespaces") => {
            put(meta::as_object(object), "spec", live.get("spec").cloned());
        }
        Some(_) => {}
    }
    defaults::always(object, kind);
    if api_services::is_api_service(kind)
        && live.is_none()
        && let Some(status) = api_services::first_status(object)
    {
        put(meta::as_object(object), "status", Some(status));
    }
    if kind.is("apiextensions.k8s.io", "customresourcedefinitions") && live.is_none() {
        let versions = object.pointer("/spec/versions").and_then(Value::as_array);
        let stored: Vec<Value> = versions
            .into_iter()
            .flatten()
            .filter(|version| version.get("storage") == Some(&json!(true)))
            .filter_map(|version| version.get("name").cloned())
            .collect();
        let names = json!({"kind": "", "plural": ""});
        let status = json!({"conditions": null, "acceptedNames": names, "storedVersions": stored});
        put(meta::as_object(object), "status", Some(status));
    }
}

/// Refuses objects that Kubernetes or the simulation does not accept. `subresource`: the path of an update.
pub(super) fn check(
    state: &State,
    kind: &Kind,
    object: &Value,
    live: Option<&Value>,
    subresource: &str,
) -> Result<(), Refusal> {
    // First, since later checks recurse.
    if is_deeper(object, DEEPEST) {
        return Err(Refusal::too_deep());
    }
    if let Some(feature) = unsupported(kind, object)
        && !(state.options.ignore_cel && feature.contains("CEL"))
    {
        return Err(Refusal::not_simulated(&feature));
    }
    let mut causes = if live.is_none() { checks::name(object, kind) } else { Vec::new() };
    causes.extend(checks::object(object, live, kind));
    if let Some(live) = live {
        causes.extend(checks::change(live, object, kind, subresource));
        causes.extend(new_finalizers(live, object));
    }
    if !causes.is_empty() {
        // Events of both groups share objects.
        let group = if kind.is("events.k8s.io", "events") { "" } else { &kind.group };
        return Err(Refusal::invalid(&kind.kind, group, meta::name(object), &causes));
    }
    if kind.is("apiextensions.k8s.io", "customresourcedefinitions")
        && definitions::has_names_taken(&state.objects, kind, object)
    {
        return Err(Refusal::not_simulated("definitions that share a name with another one of their group"));
    }
    if object.to_string().len() > MAX_BYTES {
        return Err(Refusal::new(413, "RequestEntityTooLarge", "Request entity too large: limit is 3145728"));
    }
    Ok(())
}

/// Warns about ignored features and unqualified finalizers.
pub(super) fn warnings(
    options: &Options,
    kind: &Kind,
    object: &Value,
    before: Option<&Value>,
) -> Vec<String> {
    let ignored = unsupported(kind, object).filter(|_| options.ignore_cel);
    let ignored = ignored.map(|feature| format!("not simulated, and ignored: {feature}"));
    let had = before.map(meta::finalizers).unwrap_or_default();
    let bare =
        |name: &&str| !name.contains('/') && !KUBERNETES_FINALIZERS.contains(name) && !had.contains(name);
    let bare = meta::finalizers(object).into_iter().filter(|_| !kind.is_builtin()).filter(bare);
    let bare = bare.map(|name| {
        format!(
            "metadata.finalizers: {}: prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers",
            Value::from(name)
        )
    });
    ignored.into_iter().chain(bare).collect()
}

fn unsupported(kind: &Kind, object: &Value) -> Option<String> {
    if kind.is("apiextensions.k8s.io", "customresourcedefinitions") {
        return custom::unsupported(object);
    }
    if kind.is_builtin() { validation::unsupported(object, kind) } else { None }
}
