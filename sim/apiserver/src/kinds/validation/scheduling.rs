//! Tolerations, affinity, spreading.

use serde_json::Value;

use super::{
    metadata, names,
    rule::{Field, Rule, fields},
    selectors,
    values::{is_empty, texts},
};
use crate::{
    json::{list, text},
    schema::cause::Cause,
};

pub(super) fn toleration(toleration: &Value, path: &str, causes: &mut Vec<Cause>) {
    let (key, operator, value) =
        (text(toleration, "key"), text(toleration, "operator"), text(toleration, "value"));
    let (operator_at, effect_at) = (format!("{path}.operator"), format!("{path}.effect"));
    if !key.is_empty() {
        metadata::check_format(key, names::qualified, &format!("{path}.key"), causes);
    } else if operator != "Exists" {
        let why =
            "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        causes.push(Cause::invalid(&operator_at, &operator.into(), why));
    }
    let effect = text(toleration, "effect");
    if toleration.get("tolerationSeconds").is_some() && effect != "NoExecute" {
        let why = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        causes.push(Cause::invalid(&effect_at, &effect.into(), why));
    }
    match operator {
        "" | "Equal" => metadata::check_format(value, names::label_value, &operator_at, causes),
        "Exists" if !value.is_empty() => {
            let why = "value must be empty when `operator` is 'Exists'";
            causes.push(Cause::invalid(&operator_at, &value.into(), why));
        }
        "Exists" => {}
        other => causes.push(Cause::unsupported(&operator_at, &other.into(), &["Equal", "Exists"])),
    }
    let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    if !effect.is_empty() && !effects.contains(&effect) {
        causes.push(Cause::unsupported(&effect_at, &effect.into(), &effects));
    }
}

const SPREAD: [Field; 5] = [
    ("topologyKey", Rule::Need("can not be empty")),
    ("whenUnsatisfiable", Rule::Only(&["DoNotSchedule", "ScheduleAnyway"])),
    ("nodeAffinityPolicy", Rule::OneOf(&["Honor", "Ignore"])),
    ("nodeTaintsPolicy", Rule::OneOf(&["Honor", "Ignore"])),
    ("labelSelector", Rule::Selector),
];

pub(super) fn spread(constraints: &Value, path: &str, causes: &mut Vec<Cause>) {
    let all = list(constraints);
    for (index, one) in all.iter().enumerate() {
        let path = format!("{path}[{index}]");
        fields(one, &SPREAD, &path, causes);
        let mut at_least_one = |field: &str| {
            if one[field].as_i64().is_some_and(|number| number < 1) {
                causes.push(Cause::invalid(
                    &format!("{path}.{field}"),
                    &one[field],
                    "must be greater than zero",
                ));
            }
        };
        at_least_one("maxSkew");
        at_least_one("minDomains");
        let (key, how) = (text(one, "topologyKey"), text(one, "whenUnsatisfiable"));
        if one.get("minDomains").is_some() && how != "DoNotSchedule" {
            let why = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {how}");
            causes.push(Cause::invalid(&format!("{path}.minDomains"), &one["minDomains"], &why));
        }
        let again =
            |other: &Value| (text(other, "topologyKey"), text(other, "whenUnsatisfiable")) == (key, how);
        if all.iter().skip(index + 1).any(again) {
            let at = format!("{path}.{{topologyKey, whenUnsatisfiable}}");
            causes.push(Cause::duplicate(&at, &format!("{{{key}, {how}}}").into()));
        }
    }
}

pub(super) const AFFINITY: [Field; 8] = [
    ("podAffinity.requiredDuringSchedulingIgnoredDuringExecution[]", Rule::Fields(&TERM)),
    ("podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[]", Rule::Fields(&TERM)),
    ("podAffinity.preferredDuringSchedulingIgnoredDuringExecution[]", Rule::Fields(&WEIGHTED)),
    ("podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[]", Rule::Fields(&WEIGHTED)),
    (
        "nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms",
        Rule::Need("must have at least one node selector term"),
    ),
    (
        "nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[]",
        Rule::Check(node_term),
    ),
    ("nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[].weight", WEIGHT),
    ("nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[].preference", Rule::Check(node_term)),
];
const WEIGHT: Rule = Rule::Between(1, 100, "must be in the range 1-100");
const WEIGHTED: [Field; 2] = [("weight", WEIGHT), ("podAffinityTerm!", Rule::Fields(&TERM))];
const TERM: [Field; 4] = [
    (".", Rule::Check(topology)),
    ("labelSelector", Rule::Selector),
    ("namespaceSelector", Rule::Selector),
    ("namespaces", Rule::Check(namespaces)),
];

fn topology(term: &Value, path: &str, causes: &mut Vec<Cause>) {
    let (key, path) = (text(term, "topologyKey"), format!("{path}.topologyKey"));
    if key.is_empty() {
        causes.push(Cause::required(&path, "can not be empty"));
    }
    metadata::check_format(key, names::qualified, &path, causes);
}

fn namespaces(namespaces: &Value, path: &str, causes: &mut Vec<Cause>) {
    let path = path.replace(".namespaces", ".namespace");
    for name in texts(namespaces) {
        metadata::check_format(name, names::label, &path, causes);
    }
}

fn node_term(term: &Value, path: &str, causes: &mut Vec<Cause>) {
    for (index, expression) in list(&term["matchExpressions"]).iter().enumerate() {
        let path = format!("{path}.matchExpressions[{index}]");
        let values = list(&expression["values"]);
        match text(expression, "operator") {
            "Gt" | "Lt" if values.len() != 1 => {
                let why = "must be specified single value when `operator` is 'Lt' or 'Gt'";
                causes.push(Cause::required(&format!("{path}.values"), why));
            }
            "Gt" | "Lt" => {}
            _ => selectors::requirement(expression, &path, causes),
        }
        metadata::check_format(text(expression, "key"), names::qualified, &format!("{path}.key"), causes);
    }
    for (index, field) in list(&term["matchFields"]).iter().enumerate() {
        let path = format!("{path}.matchFields[{index}]");
        if field["key"] != "metadata.name" {
            causes.push(Cause::invalid(
                &format!("{path}.key"),
                &field["key"],
                "not a valid field selector key",
            ));
        }
        if is_empty(&field["values"]) {
            let why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
            causes.push(Cause::required(&format!("{path}.values"), why));
        }
    }
}
