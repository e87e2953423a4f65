//! `PodDisruptionBudgets`, `HorizontalPodAutoscalers`, `PriorityClasses`, `StorageClasses` and `APIServices`.

use serde_json::{Map, Value, json};

use super::{
    metadata, names,
    quantity::Quantity,
    rule::{Field, Rule},
    values::{is_empty, present},
};
use crate::{
    json::{list, text},
    schema::cause::Cause,
};

pub(super) const DISRUPTION: [Field; 5] = [
    ("spec!.minAvailable", Rule::CountOrShare(false)),
    ("spec!.maxUnavailable", Rule::CountOrShare(false)),
    ("spec!.selector", Rule::Selector),
    ("spec!.unhealthyPodEvictionPolicy", Rule::OneOf(&["AlwaysAllow", "IfHealthyBudget"])),
    ("spec!", Rule::Check(disruption)),
];

fn disruption(spec: &Value, path: &str, causes: &mut Vec<Cause>) {
    if present(spec, &["minAvailable", "maxUnavailable"]).len() > 1 {
        causes.push(Cause::invalid(path, spec, "minAvailable and maxUnavailable cannot be both set"));
    }
}

pub(super) const AUTOSCALER: [Field; 7] = [
    ("spec!.minReplicas", ONE_OR_MORE),
    ("spec!.scaleTargetRef!", Rule::Fields(&TARGET)),
    ("spec!.scaleTargetRef!", Rule::Check(target_group)),
    ("spec!", Rule::Check(replicas)),
    ("spec!.metrics[]", Rule::Check(metric)),
    ("spec!.behavior.scaleUp", Rule::Fields(&SCALING)),
    ("spec!.behavior.scaleDown", Rule::Fields(&SCALING)),
];
const ONE_OR_MORE: Rule = Rule::AtLeast(1, "must be greater than or equal to 1");
const TARGET: [Field; 2] =
    [("kind", Rule::Named(names::path_segment)), ("name", Rule::Named(names::path_segment))];
const SCALING: [Field; 5] = [
    ("stabilizationWindowSeconds", Rule::AtLeast(0, "must be greater than or equal to zero")),
    ("stabilizationWindowSeconds", Rule::Between(i64::MIN, 3600, "must be less than or equal to 3600")),
    ("selectPolicy", Rule::OneOf(&["Disabled", "Max", "Min"])),
    ("policies", Rule::Need("must specify at least one Policy")),
    ("policies[]", Rule::Fields(&SCALING_POLICY)),
];
const SCALING_POLICY: [Field; 4] = [
    ("type", Rule::Only(&["Percent", "Pods"])),
    ("value", Rule::AtLeast(1, "must be greater than zero")),
    ("periodSeconds", Rule::AtLeast(1, "must be greater than zero")),
    ("periodSeconds", Rule::Between(i64::MIN, 1800, "must be less than or equal to 1800")),
];

fn target_group(target: &Value, path: &str, causes: &mut Vec<Cause>) {
    let path = format!("{path}.apiVersion");
    let version = &target["apiVersion"];
    let given = text(target, "apiVersion");
    match given.split('/').count() {
        1 if given.is_empty() => {
            causes.push(Cause::invalid(&path, &json!(""), "apiVersion must specify API group"));
        }
        1 | 2 => {}
        _ => causes.push(Cause::invalid(&path, version, &format!("unexpected GroupVersion string: {given}"))),
    }
}

fn replicas(spec: &Value, path: &str, causes: &mut Vec<Cause>) {
    let at = format!("{path}.maxReplicas");
    let max = spec["maxReplicas"].as_i64().unwrap_or_default();
    let min = spec["minReplicas"].as_i64();
    if max < 1 {
        causes.push(Cause::required(&at, "must be set and greater than 0"));
    }
    if min.is_some_and(|min| max < min) {
        causes.push(Cause::invalid(&at, &max.into(), "must be greater than or equal to `minReplicas`"));
    }
    let counts = |metric: &Value| metric["type"] == "Object" || metric["type"] == "External";
    if min == Some(0) && !list(&spec["metrics"]).iter().any(counts) {
        let why = "must specify at least one Object or External metric to support scaling to zero replicas";
        causes.push(Cause::forbidden(&format!("{path}.metrics"), why));
    }
}

/// Type, field, target fields, message without targets.
const SOURCES: [(&str, &str, [&str; 2], &str); 5] = [
    ("Object", "object", ["value", "averageValue"], "must set either a target value or averageValue"),
    ("Pods", "pods", ["averageValue", "averageValue"], "must specify a positive target averageValue"),
    (
        "Resource",
        "resource",
        ["averageUtilization", "averageValue"],
        "must set either a target raw value or a target utilization",
    ),
    (
        "ContainerResource",
        "containerResource",
        ["averageUtilization", "averageValue"],
        "must set either a target raw value or a target utilization",
    ),
    (
        "External",
        "external",
        ["value", "averageValue"],
        "must set either a target value for metric or a per-pod target",
    ),
];

fn metric(metric: &Value, path: &str, causes: &mut Vec<Cause>) {
    let kind = text(metric, "type");
    let at = format!("{path}.type");
    if kind.is_empty() {
        causes.push(Cause::required(&at, "must specify a metric source type"));
    }
    let Some((_, field, either, why)) = SOURCES.iter().find(|(name, ..)| *name == kind) else {
        let supported = ["ContainerResource", "External", "Object", "Pods", "Resource"];
        return causes.push(Cause::unsupported(&at, &kind.into(), &supported));
    };
    let path = format!("{path}.{field}");
    let Some(source) = metric.get(field) else {
        return causes.push(Cause::required(&path, "must populate information for the given metric source"));
    };
    if field.to_lowercase().ends_with("resource") {
        if is_empty(&source["name"]) {
            causes.push(Cause::required(&format!("{path}.name"), "must specify a resource name"));
        }
        if *field == "containerResource" && is_empty(&source["container"]) {
            causes.push(Cause::required(&format!("{path}.container"), "must specify a container"));
        }
    } else {
        let name = &source["metric"]["name"];
        match name.as_str().unwrap_or_default() {
            "" => causes.push(Cause::required(&format!("{path}.metric.name"), "must specify a metric name")),
            name => metadata::check_format(name, names::path_segment, &format!("{path}.metric.name"), causes),
        }
    }
    let empty = Value::Object(Map::new());
    let (target, path) = (source.get("target").unwrap_or(&empty), format!("{path}.target"));
    target_of_metric(target, &path, causes);
    let [first, second] = either;
    let reported = if *first == "averageUtilization" { first } else { second };
    match present(target, either).len() {
        0 => causes.push(Cause::required(&format!("{path}.{reported}"), why)),
        2 if first != second && *field != "object" => {
            let (reported, why) = if *field == "external" {
                ("value", "may not set both a target value for metric and a per-pod target")
            } else {
                ("averageValue", "may not set both a target raw value and a target utilization")
            };
            causes.push(Cause::forbidden(&format!("{path}.{reported}"), why));
        }
        _ => {}
    }
}

fn target_of_metric(target: &Value, path: &str, causes: &mut Vec<Cause>) {
    let kind = text(target, "type");
    let at = format!("{path}.type");
    if kind.is_empty() {
        causes.push(Cause::required(&at, "must specify a metric target type"));
    }
    if !matches!(kind, "Utilization" | "Value" | "AverageValue") {
        causes.push(Cause::invalid(&at, &kind.into(), "must be either Utilization, Value, or AverageValue"));
    }
    for field in ["value", "averageValue"] {
        if Quantity::of(&target[field]).is_some_and(|quantity| !quantity.is_positive()) {
            causes.push(Cause::invalid(&format!("{path}.{field}"), &target[field], "must be positive"));
        }
    }
    let share = &target["averageUtilization"];
    if share.as_i64().is_some_and(|share| share < 1) {
        causes.push(Cause::invalid(&format!("{path}.averageUtilization"), share, "must be greater than 0"));
    }
}

/// Higher ones are reserved for Kubernetes.
const HIGHEST: i64 = 1_000_000_000;

pub(super) const PRIORITY: [Field; 2] =
    [(".", Rule::Check(priority)), ("preemptionPolicy", Rule::OneOf(&["PreemptLowerPriority", "Never"]))];

fn priority(class: &Value, _: &str, causes: &mut Vec<Cause>) {
    let name = text(&class["metadata"], "name");
    let known = matches!(name, "system-cluster-critical" | "system-node-critical");
    if name.starts_with("system-") && !known {
        let why = format!(
            "priority class names with 'system-' prefix are reserved for system use only. error: {name} is not a known system priority class"
        );
        causes.push(Cause::forbidden("metadata.name", &why));
    } else if !known && class["value"].as_i64().is_some_and(|value| value > HIGHEST) {
        let why = format!("maximum allowed value of a user defined priority is {HIGHEST}");
        causes.push(Cause::forbidden("value", &why));
    }
}

pub(super) const STORAGE: [Field; 6] = [
    ("provisioner", Rule::Check(provisioner)),
    (".", Rule::Check(storage)),
    ("reclaimPolicy", Rule::OneOf(&["Delete", "Retain"])),
    ("volumeBindingMode", Rule::OneOf(&["Immediate", "WaitForFirstConsumer"])),
    ("allowedTopologies[].matchLabelExpressions[].key", Rule::Check(topology)),
    ("allowedTopologies[].matchLabelExpressions[].values", Rule::Need("")),
];

fn provisioner(name: &Value, path: &str, causes: &mut Vec<Cause>) {
    let name = name.as_str().unwrap_or_default().to_lowercase();
    if !name.is_empty() {
        metadata::check_format(&name, names::qualified, path, causes);
    }
}

fn topology(key: &Value, path: &str, causes: &mut Vec<Cause>) {
    metadata::check_format(key.as_str().unwrap_or_default(), names::qualified, path, causes);
}

fn storage(class: &Value, _: &str, causes: &mut Vec<Cause>) {
    if text(class, "provisioner").is_empty() {
        causes.push(Cause::required("provisioner", ""));
    }
    let parameters = class["parameters"].as_object();
    if parameters.is_some_and(|parameters| parameters.contains_key("")) {
        causes.push(Cause::invalid("parameters", &json!(""), "field can not be empty."));
    }
}

pub(super) const API_SERVICE: [Field; 7] = [
    (".", Rule::Check(version_dot_group)),
    ("spec!.group", Rule::Form(names::subdomain)),
    ("spec!.groupPriorityMinimum", Rule::Between(1, 20_000, "must be positive and less than 20000")),
    ("spec!.versionPriority", Rule::Between(1, 1000, "must be positive and less than 1000")),
    ("spec!.service.namespace", Rule::Need("")),
    ("spec!.service.name", Rule::Need("")),
    (
        "spec!.service.port",
        Rule::Between(1, 65_535, "port is not valid: must be between 1 and 65535, inclusive"),
    ),
];

fn version_dot_group(service: &Value, _: &str, causes: &mut Vec<Cause>) {
    let spec = &service["spec"];
    let (group, version) = (text(spec, "group"), text(spec, "version"));
    let name = text(&service["metadata"], "name");
    let wanted = format!("{version}.{group}");
    if name != wanted {
        let why = format!("must be `spec.version+\".\"+spec.group`: {}", Value::from(wanted));
        causes.push(Cause::invalid("metadata.name", &name.into(), &why));
    }
    metadata::check_format(version, names::dns_1035, "spec.version", causes);
    if group.is_empty() && version != "v1" {
        let why = "only v1 may have an empty group and it better be legacy kube";
        causes.push(Cause::required("spec.group", why));
    }
    for field in
        ["groupPriorityMinimum", "versionPriority"].into_iter().filter(|field| spec.get(field).is_none())
    {
        let max = if field == "versionPriority" { 1000 } else { 20_000 };
        let why = format!("must be positive and less than {max}");
        causes.push(Cause::invalid(&format!("spec.{field}"), &json!(0), &why));
    }
    let insecure = spec["insecureSkipTLSVerify"] == true;
    let mut fail = |why| causes.push(Cause::invalid("spec.insecureSkipTLSVerify", &json!(true), why));
    if is_empty(&spec["service"]) && spec.get("service").is_none() {
        if insecure {
            fail("local APIServices may not have insecureSkipTLSVerify");
        }
    } else if insecure && !is_empty(&spec["caBundle"]) {
        fail("may not be true if caBundle is present");
    }
}
