//! Secrets, `ConfigMaps`, Namespaces, `PersistentVolumeClaims`, Events and Leases.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::Value;

use super::{
    metadata, names,
    quantity::Quantity,
    rule::{Field, NOT_NEGATIVE, Rule},
    values::{is_empty, texts},
};
use crate::{
    json::{list, text},
    object::meta::{as_object, put},
    schema::cause::Cause,
};

/// Bytes in a Secret or ConfigMap.
const MAX_DATA: usize = 1024 * 1024;

pub(super) const SECRET: [Field; 3] =
    [("data", Rule::Check(keys)), ("data", Rule::Check(secret_size)), (".", Rule::Check(secret))];
pub(super) const CONFIG_MAP: [Field; 3] =
    [("data", Rule::Check(keys)), ("binaryData", Rule::Check(keys)), (".", Rule::Check(config_map))];
pub(super) const NAMESPACE: [Field; 1] = [("spec.finalizers", Rule::Check(namespace_finalizers))];
pub(super) const CLAIM: [Field; 8] = [
    ("spec!.accessModes", Rule::Need("at least 1 access mode is required")),
    ("spec!.accessModes", Rule::Check(access_modes)),
    ("spec!", Rule::Check(storage)),
    ("spec!.storageClassName", Rule::Form(names::subdomain)),
    ("spec!.volumeMode", Rule::OneOf(&["Block", "Filesystem"])),
    ("spec!.selector", Rule::Selector),
    ("spec!.dataSource", Rule::Check(source)),
    ("spec!.volumeAttributesClassName", Rule::Form(names::subdomain)),
];
pub(super) const EVENT: [Field; 1] = [(".", Rule::Check(event))];
pub(super) const NEW_EVENT: [Field; 7] = [
    ("eventTime", Rule::Need("")),
    ("reportingController", Rule::Need("")),
    (".", Rule::Check(reporting)),
    ("reportingInstance", Rule::Need("")),
    ("action", Rule::Need("")),
    ("reason", Rule::Need("")),
    (".", Rule::Check(new_event)),
];
pub(super) const LEASE: [Field; 3] = [
    ("spec!.leaseDurationSeconds", Rule::AtLeast(1, "must be greater than 0")),
    ("spec!.leaseTransitions", NOT_NEGATIVE),
    ("spec!.strategy", Rule::Form(names::qualified)),
];

/// Paths include the key.
fn keys(data: &Value, path: &str, causes: &mut Vec<Cause>) {
    for (key, _) in data.as_object().into_iter().flatten() {
        metadata::check_format(key, names::config_key, &format!("{path}[{key}]"), causes);
    }
}

fn bytes(data: &Value) -> usize {
    let values = data.as_object().into_iter().flatten().filter_map(|(_, value)| value.as_str());
    values.map(|text| BASE64_STANDARD.decode(text).map_or(0, |bytes| bytes.len())).sum()
}

fn secret_size(data: &Value, path: &str, causes: &mut Vec<Cause>) {
    if bytes(data) > MAX_DATA {
        causes.push(Cause::too_long(path, MAX_DATA));
    }
}

/// Checks Kubernetes' own Secret types.
fn secret(secret: &Value, _: &str, causes: &mut Vec<Cause>) {
    let data = &secret["data"];
    let mut need = |key: &str, filled: bool| {
        let value = data.get(key).and_then(Value::as_str);
        if value.is_none_or(|value| filled && value.is_empty()) {
            causes.push(Cause::required(&format!("data[{key}]"), ""));
        }
        value.and_then(|value| BASE64_STANDARD.decode(value).ok())
    };
    let kind = text(secret, "type");
    match kind {
        "kubernetes.io/tls" => _ = (need("tls.crt", false), need("tls.key", false)),
        "kubernetes.io/ssh-auth" => _ = need("ssh-privatekey", true),
        "kubernetes.io/basic-auth" if data.get("username").is_none() && data.get("password").is_none() => {
            _ = (need("username", false), need("password", false));
        }
        "kubernetes.io/dockerconfigjson" | "kubernetes.io/dockercfg" => {
            let key = kind.trim_start_matches("kubernetes.io/");
            let key = format!(".{key}");
            let unread = need(&key, false).filter(|bytes| serde_json::from_slice::<Value>(bytes).is_err());
            if let Some(bytes) = unread {
                let first = bytes.first().copied().map_or(' ', char::from);
                let why = format!("invalid character '{first}' looking for beginning of value");
                causes.push(Cause::invalid(
                    &format!("data[{key}]"),
                    &"<secret contents redacted>".into(),
                    &why,
                ));
            }
        }
        "kubernetes.io/service-account-token" => {
            let account = "kubernetes.io/service-account.name";
            if is_empty(&secret["metadata"]["annotations"][account]) {
                causes.push(Cause::required(&format!("metadata.annotations[{account}]"), ""));
            }
        }
        _ => {}
    }
}

fn config_map(map: &Value, _: &str, causes: &mut Vec<Cause>) {
    let data = map["data"].as_object();
    for (key, _) in data.into_iter().flatten().filter(|(key, _)| map["binaryData"].get(key).is_some()) {
        let why = "duplicate of key present in binaryData";
        causes.push(Cause::invalid(&format!("data[{key}]"), &key.as_str().into(), why));
    }
    let plain: usize = data.into_iter().flatten().filter_map(|(_, value)| value.as_str()).map(str::len).sum();
    if plain + bytes(&map["binaryData"]) > MAX_DATA {
        causes.push(Cause::too_long("[]", MAX_DATA));
    }
}

fn namespace_finalizers(finalizers: &Value, path: &str, causes: &mut Vec<Cause>) {
    for finalizer in texts(finalizers) {
        metadata::check_format(finalizer, names::qualified, path, causes);
        metadata::check_format(finalizer, names::finalizer, path, causes);
    }
}

fn access_modes(modes: &Value, path: &str, causes: &mut Vec<Cause>) {
    const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
    for mode in list(modes).iter().filter(|mode| mode.as_str().is_none_or(|mode| !MODES.contains(&mode))) {
        causes.push(Cause::unsupported(path, mode, &MODES));
    }
    if texts(modes).any(|mode| mode == "ReadWriteOncePod") && list(modes).len() > 1 {
        causes.push(Cause::forbidden(path, "may not use ReadWriteOncePod with other access modes"));
    }
}

fn storage(spec: &Value, path: &str, causes: &mut Vec<Cause>) {
    let path = format!("{path}.resources[storage]");
    let value = &spec["resources"]["requests"]["storage"];
    match Quantity::of(value) {
        None => causes.push(Cause::required(&path, "")),
        Some(quantity) if !quantity.is_positive() => {
            causes.push(Cause::invalid(&path, value, "must be greater than zero"));
        }
        Some(_) => {}
    }
}

/// Kubernetes also reports `dataSourceRef`.
fn source(source: &Value, path: &str, causes: &mut Vec<Cause>) {
    for field in ["kind", "name"].into_iter().filter(|field| is_empty(&source[*field])) {
        for path in [path, &format!("{path}Ref")] {
            causes.push(Cause::required(&format!("{path}.{field}"), ""));
        }
    }
}

/// Events share their object's namespace; `default` or `kube-system` for cluster objects.
fn event(event: &Value, _: &str, causes: &mut Vec<Cause>) {
    let about = &event["involvedObject"]["namespace"];
    let (namespace, about) = (text(&event["metadata"], "namespace"), about.as_str().unwrap_or_default());
    if !(about == namespace || about.is_empty() && matches!(namespace, "default" | "kube-system")) {
        causes.push(Cause::invalid(
            "involvedObject.namespace",
            &about.into(),
            "does not match event.namespace",
        ));
    }
}

fn reporting(event: &Value, _: &str, causes: &mut Vec<Cause>) {
    metadata::check_format(
        text(event, "reportingController"),
        names::qualified,
        "reportingController",
        causes,
    );
}

fn new_event(event: &Value, _: &str, causes: &mut Vec<Cause>) {
    let kind = text(event, "type");
    if !matches!(kind, "Normal" | "Warning") {
        causes.push(Cause::invalid("type", &"".into(), &format!("has invalid value: {kind}")));
    }
    for (field, reported, max) in [
        ("action", "action", 128),
        ("reason", "reason", 128),
        ("note", "message", 1024),
        ("reportingInstance", "reportingInstance", 128),
    ] {
        if text(event, field).len() > max {
            causes.push(Cause::invalid(reported, &"".into(), &format!("can have at most {max} characters")));
        }
    }
}

/// Most claim fields are immutable.
pub(crate) fn change_of_claim(before: &Value, after: &Value, causes: &mut Vec<Cause>) {
    let (old, new) = (&before["spec"], &after["spec"]);
    let bound = before["status"]["phase"] == "Bound";
    let mut rest = new.clone();
    let once = ["volumeName", "storageClassName"].into_iter().filter(|field| is_empty(&old[*field]));
    let later = ["resources", "volumeAttributesClassName"].into_iter().filter(|_| bound);
    for field in once.chain(later) {
        put(as_object(&mut rest), field, old.get(field).cloned());
    }
    if rest != *old || new["resources"]["limits"] != old["resources"]["limits"] {
        let why = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        causes.push(Cause::forbidden("spec", why));
    }
    if new["volumeMode"] != old["volumeMode"] {
        causes.push(Cause::invalid("volumeMode", &new["volumeMode"], "field is immutable"));
    }
    let of = |object: &Value, pointer: &str| object.pointer(pointer).and_then(Quantity::of);
    let wanted = of(after, "/spec/resources/requests/storage");
    let less = |(wanted, have): (Quantity, Quantity)| wanted.cmp(have).is_lt();
    if bound && wanted.zip(of(before, "/status/capacity/storage")).is_some_and(less) {
        let why = "field can not be less than status.capacity";
        causes.push(Cause::forbidden("spec.resources.requests.storage", why));
    }
}
