//! Containers.

use serde_json::Value;

use super::{
    metadata, names, pods,
    quantity::Quantity,
    rule::{ANY_ID, Field, Rule, fields},
    values::{is_empty, present},
    volumes,
};
use crate::{
    json::{list, text},
    schema::cause::Cause,
};

pub(super) const CONTAINER: [Field; 16] = [
    ("name", Rule::Named(names::label)),
    ("image", Rule::Need("")),
    ("imagePullPolicy", Rule::OneOf(&["Always", "IfNotPresent", "Never"])),
    ("terminationMessagePolicy", Rule::OneOf(&["File", "FallbackToLogsOnError"])),
    ("restartPolicy", Rule::OneOf(&["Always", "Never", "OnFailure"])),
    ("ports[]", Rule::Fields(&pods::PORT)),
    ("ports", Rule::Once("name")),
    ("env[]", Rule::Check(variable)),
    ("envFrom[]", Rule::Check(source_of_variables)),
    ("volumeMounts[]", Rule::Check(volumes::mount)),
    ("livenessProbe", Rule::Check(probe)),
    ("readinessProbe", Rule::Check(probe)),
    ("startupProbe", Rule::Check(probe)),
    ("resources", Rule::Check(resources)),
    ("securityContext", Rule::Fields(&SECURITY)),
    ("securityContext", Rule::Check(security)),
];
const SECURITY: [Field; 4] = [
    ("runAsUser", ANY_ID),
    ("runAsGroup", ANY_ID),
    ("procMount", Rule::OneOf(&["Default", "Unmasked"])),
    ("seccompProfile", Rule::Check(seccomp)),
];
const PROFILES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];

/// Init containers that end have no probes.
pub(super) fn beginner(container: &Value, path: &str, causes: &mut Vec<Cause>) {
    if text(container, "restartPolicy") == "Always" {
        return;
    }
    for field in present(container, &["livenessProbe", "readinessProbe", "startupProbe", "lifecycle"]) {
        let why = "may not be set for init containers without restartPolicy=Always";
        causes.push(Cause::forbidden(&format!("{path}.{field}"), why));
    }
}

/// Names and host ports are unique in the pod.
pub(super) fn together(spec: &Value, path: &str, causes: &mut Vec<Cause>) {
    let (mut names, mut ports) = (Vec::new(), Vec::new());
    for field in ["containers", "initContainers"] {
        for (index, container) in list(&spec[field]).iter().enumerate() {
            let path = format!("{path}.{field}[{index}]");
            let name = text(container, "name");
            if !name.is_empty() && names.contains(&name) {
                causes.push(Cause::duplicate(&format!("{path}.name"), &name.into()));
            }
            names.push(name);
            if field == "initContainers" {
                continue;
            }
            for (index, port) in list(&container["ports"]).iter().enumerate() {
                let Some(number) = port["hostPort"].as_i64().filter(|number| *number != 0) else { continue };
                let key = format!("{}/{}/{number}", text(port, "protocol"), text(port, "hostIP"));
                let path = format!("{path}.ports[{index}].hostPort");
                if spec["hostNetwork"] == true && port["containerPort"] != number {
                    let why = "must match `containerPort` when `hostNetwork` is true";
                    causes.push(Cause::invalid(&path, &number.into(), why));
                }
                if ports.contains(&key) {
                    causes.push(Cause::duplicate(&path, &key.clone().into()));
                }
                ports.push(key);
            }
        }
    }
}

/// Checks against the pod.
pub(super) fn of_pod(container: &Value, spec: &Value, path: &str, causes: &mut Vec<Cause>) {
    for (index, mount) in list(&container["volumeMounts"]).iter().enumerate() {
        let name = &mount["name"];
        if !list(&spec["volumes"]).iter().any(|volume| volume["name"] == *name) {
            let name = name.as_str().unwrap_or_default();
            causes.push(Cause::not_found(&format!("{path}.volumeMounts[{index}].name"), &name.into()));
        }
        let mount_path = &mount["mountPath"];
        let before = list(&container["volumeMounts"]).iter().take(index);
        if !is_empty(mount_path) && before.clone().any(|other| other["mountPath"] == *mount_path) {
            let at = format!("{path}.volumeMounts[{index}].mountPath");
            causes.push(Cause::invalid(&at, mount_path, "must be unique"));
        }
    }
    let grace = spec["terminationGracePeriodSeconds"].as_i64().unwrap_or_default();
    for hook in present(&container["lifecycle"], &["postStart", "preStop"]) {
        let (path, hook) = (format!("{path}.lifecycle.{hook}"), &container["lifecycle"][hook]);
        handler(hook, &["exec", "httpGet", "tcpSocket", "sleep"], &path, causes);
        let seconds = &hook["sleep"]["seconds"];
        if seconds.as_i64().is_some_and(|seconds| !(0..=grace).contains(&seconds)) {
            let why = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
            causes.push(Cause::invalid(&format!("{path}.sleep"), seconds, &why));
        }
    }
}

fn probe(probe: &Value, path: &str, causes: &mut Vec<Cause>) {
    handler(probe, &["exec", "httpGet", "tcpSocket", "grpc"], path, causes);
    fields(probe, &pods::PROBE_NUMBERS, path, causes);
    let at = |field: &str| format!("{path}.{field}");
    let (successes, grace) = (&probe["successThreshold"], &probe["terminationGracePeriodSeconds"]);
    let readiness = path.ends_with("readinessProbe");
    if !readiness && successes.as_i64().is_some_and(|times| times != 1) {
        causes.push(Cause::invalid(&at("successThreshold"), successes, "must be 1"));
    }
    match grace.as_i64() {
        Some(_) if readiness => {
            let why = "must not be set for readinessProbes";
            causes.push(Cause::invalid(&at("terminationGracePeriodSeconds"), grace, why));
        }
        Some(..=0) => {
            causes.push(Cause::invalid(
                &at("terminationGracePeriodSeconds"),
                grace,
                "must be greater than 0",
            ));
        }
        _ => {}
    }
}

/// Requires exactly one handler.
fn handler(value: &Value, ways: &[&str], path: &str, causes: &mut Vec<Cause>) {
    const GET: [Field; 3] = [
        ("port", Rule::PortOrName),
        ("scheme", Rule::OneOf(&["HTTP", "HTTPS"])),
        ("httpHeaders", Rule::Check(headers)),
    ];
    let given = present(value, ways);
    for more in given.iter().skip(1) {
        causes.push(Cause::forbidden(&format!("{path}.{more}"), "may not specify more than 1 handler type"));
    }
    let Some(action) = given.first() else {
        return causes.push(Cause::required(path, "must specify a handler type"));
    };
    let (value, path) = (&value[*action], format!("{path}.{action}"));
    match *action {
        "exec" => fields(value, &[("command", Rule::Need(""))], &path, causes),
        "httpGet" => fields(value, &GET, &path, causes),
        "grpc" | "tcpSocket" => fields(value, &[("port", Rule::PortOrName)], &path, causes),
        _ => {}
    }
}

fn headers(headers: &Value, path: &str, causes: &mut Vec<Cause>) {
    for header in list(headers) {
        metadata::check_format(text(header, "name"), names::header, path, causes);
    }
}

const SOURCES: [&str; 5] = ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"];

const KEY: [Field; 2] = [("key", Rule::Named(names::config_key)), (".", Rule::Check(name_of_source))];

fn variable(variable: &Value, path: &str, causes: &mut Vec<Cause>) {
    fields(variable, &[("name", Rule::Named(names::variable))], path, causes);
    let Some(from) = variable.get("valueFrom") else { return };
    let path = format!("{path}.valueFrom");
    let mut fail = |why: &str| causes.push(Cause::invalid(&path, &"".into(), why));
    let given = present(from, &SOURCES);
    match given.len() {
        0 => fail(
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        ),
        1 if !is_empty(&variable["value"]) => fail("may not be specified when `value` is not empty"),
        1 => {}
        _ => fail("may not have more than one field specified at a time"),
    }
    for source in given {
        let path = format!("{path}.{source}");
        match source {
            "configMapKeyRef" | "secretKeyRef" => fields(&from[source], &KEY, &path, causes),
            "fieldRef" => volumes::field_of_pod(&from[source], &volumes::OF_VARIABLES, &path, causes),
            "resourceFieldRef" => volumes::resource_of_container(&from[source], &path, causes),
            _ => {}
        }
    }
}

fn name_of_source(source: &Value, path: &str, causes: &mut Vec<Cause>) {
    metadata::check_format(text(source, "name"), names::subdomain, &format!("{path}.name"), causes);
}

fn source_of_variables(source: &Value, path: &str, causes: &mut Vec<Cause>) {
    const PREFIX: [Field; 1] = [("prefix", Rule::Form(names::variable))];
    const NAME: [Field; 1] = [("name", Rule::Named(names::subdomain))];
    fields(source, &PREFIX, path, causes);
    let list = path.rsplit_once('[').map_or(path, |(list, _)| list);
    let given = present(source, &["configMapRef", "secretRef"]);
    let mut fail = |why| causes.push(Cause::invalid(list, &"".into(), why));
    match given.len() {
        0 => fail("must specify one of: `configMapRef` or `secretRef`"),
        1 => {}
        _ => fail("may not have more than one field specified at a time"),
    }
    for field in given {
        fields(&source[field], &NAME, &format!("{path}.{field}"), causes);
    }
}

const STANDARD: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
const KNOWN: [&str; 6] = ["cpu", "memory", "ephemeral-storage", "storage", "requests.storage", "pods"];

fn resources(resources: &Value, path: &str, causes: &mut Vec<Cause>) {
    let (limits, requests) = (&resources["limits"], &resources["requests"]);
    for (field, amounts) in [("limits", limits), ("requests", requests)] {
        for (name, amount) in amounts.as_object().into_iter().flatten() {
            let at = format!("{path}.{field}[{name}]");
            let own = name.contains('/');
            resource_name(name, &at, causes);
            let Some(quantity) = Quantity::of(amount) else { continue };
            if quantity.is_negative() {
                causes.push(Cause::invalid(&at, amount, "must be greater than or equal to 0"));
            }
            if own && !quantity.is_whole() {
                causes.push(Cause::invalid(&at, amount, "must be an integer"));
            }
        }
    }
    for (name, amount) in requests.as_object().into_iter().flatten() {
        let Some(wanted) = Quantity::of(amount) else { continue };
        let limit = limits.get(name).and_then(|limit| Some((limit, Quantity::of(limit)?)));
        let own =
            !STANDARD.contains(&name.as_str()) && (name.contains('/') || name.starts_with("hugepages-"));
        match limit {
            Some((limit, bound)) if wanted.cmp(bound).is_gt() => {
                let shown = limit.as_str().unwrap_or_default();
                let why = format!("must be less than or equal to {name} limit of {shown}");
                causes.push(Cause::invalid(&format!("{path}.requests"), amount, &why));
            }
            Some((limit, bound)) if own && wanted.cmp(bound).is_ne() => {
                let shown = limit.as_str().unwrap_or_default();
                let why = format!("must be equal to {name} limit of {shown}");
                causes.push(Cause::invalid(&format!("{path}.requests"), amount, &why));
            }
            None if own => {
                let why = "Limit must be set for non overcommitable resources";
                causes.push(Cause::required(&format!("{path}.limits"), why));
            }
            _ => {}
        }
    }
    let has = |begin: &str| {
        [limits, requests]
            .iter()
            .filter_map(|all| all.as_object())
            .flatten()
            .any(|(name, _)| name.starts_with(begin))
    };
    if has("hugepages-") && !has("cpu") && !has("memory") {
        causes.push(Cause::forbidden(path, "HugePages require cpu or memory"));
    }
}

fn resource_name(name: &str, path: &str, causes: &mut Vec<Cause>) {
    let before = causes.len();
    metadata::check_format(name, names::qualified, path, causes);
    if name.contains('/') || STANDARD.contains(&name) || name.starts_with("hugepages-") {
        return;
    }
    if causes.len() == before && !KNOWN.contains(&name) {
        let why = "must be a standard resource type or fully qualified";
        causes.push(Cause::invalid(path, &name.into(), why));
    }
    causes.push(Cause::invalid(path, &name.into(), "must be a standard resource for containers"));
}

pub(super) fn seccomp(profile: &Value, path: &str, causes: &mut Vec<Cause>) {
    let at = format!("{path}.localhostProfile");
    let local = profile.get("localhostProfile");
    match (text(profile, "type"), local) {
        ("", _) => {
            let why = "type is required when seccompProfile is set";
            causes.push(Cause::required(&format!("{path}.type"), why));
        }
        ("Localhost", None) => {
            causes.push(Cause::required(&at, "must be set when seccomp type is Localhost"));
        }
        ("Localhost", Some(local)) => {
            metadata::check_format(local.as_str().unwrap_or_default(), names::relative_path, &at, causes);
        }
        (kind, local) => {
            if !PROFILES.contains(&kind) {
                causes.push(Cause::unsupported(&format!("{path}.type"), &kind.into(), &PROFILES));
            }
            if local.is_some() {
                causes.push(Cause::invalid(&at, profile, "can only be set when seccomp type is Localhost"));
            }
        }
    }
}

fn security(context: &Value, path: &str, causes: &mut Vec<Cause>) {
    const ARMOR: [Field; 1] = [("type", Rule::OneOf(&PROFILES))];
    fields(&context["appArmorProfile"], &ARMOR, &format!("{path}.appArmorProfile"), causes);
    if context["allowPrivilegeEscalation"] != false {
        return;
    }
    if context["privileged"] == true {
        let why = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
        causes.push(Cause::invalid(path, context, why));
    }
    for added in list(&context["capabilities"]["add"]) {
        if added == "CAP_SYS_ADMIN" {
            let why = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            causes.push(Cause::invalid(path, context, why));
        }
    }
}
