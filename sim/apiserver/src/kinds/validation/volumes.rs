//! Volumes, mounts and the downward API.

use serde_json::Value;

use super::{
    metadata, names,
    quantity::Quantity,
    rule::{Field, Rule, fields},
    values::{is_empty, present},
};
use crate::{
    json::{list, text},
    schema::cause::Cause,
};

/// In order of duplicate checks.
const KINDS: [&str; 8] = [
    "emptyDir",
    "hostPath",
    "secret",
    "persistentVolumeClaim",
    "configMap",
    "downwardAPI",
    "projected",
    "csi",
];

const MODE: Rule = Rule::Between(0, 0o777, "must be a number between 0 and 0777 (octal), both inclusive");
const ITEM: [Field; 3] = [("key", Rule::Need("")), ("path", Rule::Named(names::file_path)), ("mode", MODE)];
const VOLUME: [Field; 14] = [
    ("name", Rule::Named(names::label)),
    ("emptyDir.sizeLimit", Rule::Check(size)),
    ("secret", Rule::Check(|secret, path, causes| needs(secret, "secretName", path, causes))),
    ("secret.defaultMode", MODE),
    ("secret.items[]", Rule::Fields(&ITEM)),
    ("configMap", Rule::Check(|map, path, causes| needs(map, "name", path, causes))),
    ("configMap.defaultMode", MODE),
    ("configMap.items[]", Rule::Fields(&ITEM)),
    ("projected", Rule::Check(projected)),
    ("downwardAPI", Rule::Check(downward)),
    ("hostPath!", Rule::Check(host)),
    ("persistentVolumeClaim", Rule::Check(|claim, path, causes| needs(claim, "claimName", path, causes))),
    ("csi", Rule::Check(|csi, path, causes| needs(csi, "driver", path, causes))),
    (".", Rule::Check(one_kind)),
];

pub(super) fn check(spec: &Value, path: &str, causes: &mut Vec<Cause>) {
    fields(spec, &[("volumes[]", Rule::Fields(&VOLUME)), ("volumes", Rule::Once("name"))], path, causes);
}

pub(super) fn unsupported(pod: &Value) -> Option<String> {
    let volumes = list(&pod["volumes"]).iter().filter_map(Value::as_object);
    let other = |field: &&String| *field != "name" && !KINDS.contains(&field.as_str());
    volumes
        .flat_map(|volume| volume.keys())
        .find(other)
        .map(|field| format!("validation of volumes of the kind {field}"))
}

fn one_kind(volume: &Value, path: &str, causes: &mut Vec<Cause>) {
    for more in present(volume, &KINDS).iter().skip(1) {
        causes.push(Cause::forbidden(&format!("{path}.{more}"), "may not specify more than 1 volume type"));
    }
}

fn needs(value: &Value, field: &str, path: &str, causes: &mut Vec<Cause>) {
    if is_empty(&value[field]) {
        causes.push(Cause::required(&format!("{path}.{field}"), ""));
    }
}

fn size(limit: &Value, path: &str, causes: &mut Vec<Cause>) {
    if Quantity::of(limit).is_some_and(Quantity::is_negative) {
        causes.push(Cause::forbidden(path, "SizeLimit field must be a valid resource quantity"));
    }
}

fn host(volume: &Value, path: &str, causes: &mut Vec<Cause>) {
    if is_empty(volume) {
        return;
    }
    needs(volume, "path", path, causes);
    metadata::check_format(text(volume, "path"), names::no_way_up, &format!("{path}.path"), causes);
    let known =
        ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
    if !known.contains(&text(volume, "type")) {
        causes.push(Cause::unsupported(&format!("{path}.type"), &volume["type"], &known));
    }
}

fn projected(volume: &Value, path: &str, causes: &mut Vec<Cause>) {
    fields(volume, &[("defaultMode", MODE)], path, causes);
    let mut paths = Vec::new();
    for (index, source) in list(&volume["sources"]).iter().enumerate() {
        let at = format!("{path}.sources[{index}]");
        for kind in ["configMap", "secret"] {
            let Some(part) = source.get(kind) else { continue };
            let (at, items) = (format!("{at}.{kind}"), list(&part["items"]));
            needs(part, "name", &at, causes);
            fields(part, &[("items[]", Rule::Fields(&ITEM))], &at, causes);
            let name = text(part, "name");
            for item_path in items.iter().map(|item| text(item, "path")) {
                if paths.contains(&item_path) {
                    causes.push(Cause::invalid(path, &name.into(), "conflicting duplicate paths"));
                }
                paths.push(item_path);
            }
        }
        if let Some(api) = source.get("downwardAPI") {
            downward(api, &format!("{at}.downwardAPI"), causes);
        }
        if let Some(token) = source.get("serviceAccountToken") {
            let at = format!("{at}.serviceAccountToken");
            token_lasts(token, &at, causes);
            needs(token, "path", path, causes);
        }
    }
}

fn token_lasts(token: &Value, path: &str, causes: &mut Vec<Cause>) {
    let (seconds, at) = (&token["expirationSeconds"], format!("{path}.expirationSeconds"));
    match seconds.as_i64() {
        Some(..600) => {
            causes.push(Cause::invalid(&at, seconds, "may not specify a duration less than 10 minutes"));
        }
        Some(4_294_967_297..) => {
            causes.push(Cause::invalid(&at, seconds, "may not specify a duration larger than 2^32 seconds"));
        }
        _ => {}
    }
}

fn downward(api: &Value, path: &str, causes: &mut Vec<Cause>) {
    fields(api, &[("defaultMode", MODE)], path, causes);
    for item in list(&api["items"]) {
        let item_path = text(item, "path");
        if item_path.is_empty() {
            causes.push(Cause::required(&format!("{path}.path"), ""));
        }
        metadata::check_format(item_path, names::file_path, &format!("{path}.path"), causes);
        if let Some(field) = item.get("fieldRef") {
            field_of_pod(field, &OF_VOLUMES, &format!("{path}.fieldRef"), causes);
        } else if let Some(resource) = item.get("resourceFieldRef") {
            resource_of_container(resource, &format!("{path}.resourceFieldRef"), causes);
        } else {
            causes.push(Cause::required(path, "one of fieldRef and resourceFieldRef is required"));
        }
    }
}

/// For variables.
pub(super) const OF_VARIABLES: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// For volumes.
const OF_VOLUMES: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

pub(super) fn field_of_pod(field: &Value, shown: &[&str], path: &str, causes: &mut Vec<Cause>) {
    let (given, at) = (text(field, "fieldPath"), format!("{path}.fieldPath"));
    if given.is_empty() {
        return causes.push(Cause::required(&at, ""));
    }
    let part = given.strip_suffix("']").and_then(|given| given.split_once("['"));
    if let Some((map @ ("metadata.labels" | "metadata.annotations"), key)) = part {
        let form = if map.ends_with("labels") { names::qualified } else { names::qualified_lower };
        return metadata::check_format(key, form, path, causes);
    }
    if !OF_VARIABLES.contains(&given) && !OF_VOLUMES.contains(&given) {
        let why = format!("error converting fieldPath: field label not supported: {given}");
        causes.push(Cause::invalid(&at, &given.into(), &why));
    } else if !shown.contains(&given) {
        causes.push(Cause::unsupported(&at, &given.into(), shown));
    }
}

pub(super) fn resource_of_container(resource: &Value, path: &str, causes: &mut Vec<Cause>) {
    let known = [
        "limits.cpu",
        "limits.ephemeral-storage",
        "limits.memory",
        "requests.cpu",
        "requests.ephemeral-storage",
        "requests.memory",
    ];
    let (given, at) = (text(resource, "resource"), format!("{path}.resource"));
    if given.is_empty() {
        causes.push(Cause::required(&at, ""));
    } else if !known.contains(&given) && !given.contains(".hugepages-") {
        causes.push(Cause::unsupported(&at, &given.into(), &known));
    }
}

/// The pod checks that the volume exists.
pub(super) fn mount(mount: &Value, path: &str, causes: &mut Vec<Cause>) {
    for field in ["name", "mountPath"] {
        needs(mount, field, path, causes);
    }
    let list = path.rsplit_once('[').map_or(path, |(list, _)| list);
    for field in ["subPath", "subPathExpr"] {
        metadata::check_format(text(mount, field), names::relative_path, &format!("{list}.{field}"), causes);
    }
    let expression = &mount["subPathExpr"];
    if !is_empty(expression) && !is_empty(&mount["subPath"]) {
        let why = "subPathExpr and subPath are mutually exclusive";
        causes.push(Cause::invalid(&format!("{path}.subPathExpr"), expression, why));
    }
    let known = ["Bidirectional", "HostToContainer", "None"];
    let propagation = &mount["mountPropagation"];
    if !is_empty(propagation) && !known.iter().any(|one| propagation == one) {
        causes.push(Cause::unsupported(&format!("{list}.mountPropagation"), propagation, &known));
    }
}
