//! Validation of built-in kinds, from Kubernetes. `tests/differential/cases` compares it with a real API
//! server.

mod access;
mod containers;
mod core;
pub(crate) mod metadata;
pub(crate) mod names;
mod network;
mod pods;
mod policies;
pub(crate) mod quantity;
mod schedule;
mod scheduling;
pub(crate) mod selectors;
mod volumes;
mod webhooks;
mod workloads;

use std::collections::HashSet;

use serde_json::{Map, Value};

use self::names::Format;
pub(crate) use self::{
    core::change_of_claim,
    pods::{change as change_of_pod, status as status_of_pod},
};
use super::Kind;
use crate::{
    json::{join, list, text},
    schema::validate::Cause,
};

/// Most rules ignore missing values.
#[derive(Clone, Copy)]
enum Rule {
    /// Required, with a reason.
    Need(&'static str),
    /// Required, with this format.
    Named(Format),
    /// Optional, with this format.
    Form(Format),
    /// Minimum and message.
    AtLeast(i64, &'static str),
    /// Inclusive bounds and message.
    Between(i64, i64, &'static str),
    Port,
    /// A port; 0 counts as missing.
    NeededPort,
    PortOrName,
    /// Whether to allow more than 100%.
    CountOrShare(bool),
    /// Words in message order.
    OneOf(&'static [&'static str]),
    /// As `OneOf`, but required.
    Only(&'static [&'static str]),
    Labels,
    Selector,
    /// Must be missing; the reason.
    Forbidden(&'static str),
    /// The field that must be unique in the list.
    Once(&'static str),
    Fields(&'static [Field]),
    Check(fn(&Value, &str, &mut Vec<Cause>)),
}

/// Path and rule. `[]`: each item; `!`: missing counts as empty; `.`: the value itself.
type Field = (&'static str, Rule);

const NOT_NEGATIVE: Rule = Rule::AtLeast(0, "must be greater than or equal to 0");
const ANY_ID: Rule = Rule::Between(0, 2_147_483_647, "must be between 0 and 2147483647, inclusive");
const BETWEEN_PORTS: &str = "must be between 1 and 65535, inclusive";
const PROTOCOL: Rule = Rule::OneOf(&["SCTP", "TCP", "UDP"]);

pub(crate) fn check(object: &Value, kind: &Kind) -> Vec<Cause> {
    let mut causes = Vec::new();
    metadata::known_finalizers(&object["metadata"], "metadata", &mut causes);
    let tables: &[&[Field]] = match (kind.group.as_str(), kind.kind.as_str()) {
        ("", "Pod") => &[&pods::POD],
        ("", "Service") => &[&network::SERVICE],
        ("", "Secret") => &[&core::SECRET],
        ("", "ConfigMap") => &[&core::CONFIG_MAP],
        ("", "Namespace") => &[&core::NAMESPACE],
        ("", "PersistentVolumeClaim") => &[&core::CLAIM],
        ("", "Event") => &[&core::EVENT],
        ("events.k8s.io", "Event") => &[&core::NEW_EVENT],
        ("apps", "Deployment") => &[&workloads::WORKLOAD, &workloads::DEPLOYMENT],
        ("apps", "ReplicaSet") => &[&workloads::WORKLOAD, &workloads::REPLICA_SET],
        ("apps", "StatefulSet") => &[&workloads::WORKLOAD, &workloads::STATEFUL_SET],
        ("apps", "DaemonSet") => &[&workloads::WORKLOAD, &workloads::DAEMON_SET],
        ("batch", "Job") => &[&workloads::JOB],
        ("batch", "CronJob") => &[&workloads::CRON_JOB],
        ("coordination.k8s.io", _) => &[&core::LEASE],
        ("networking.k8s.io", "NetworkPolicy") => &[&network::POLICY],
        ("policy", _) => &[&policies::DISRUPTION],
        ("autoscaling", _) => &[&policies::AUTOSCALER],
        ("scheduling.k8s.io", _) => &[&policies::PRIORITY],
        ("storage.k8s.io", _) => &[&policies::STORAGE],
        ("apiregistration.k8s.io", _) => &[&policies::API_SERVICE],
        ("admissionregistration.k8s.io", _) => &[&webhooks::CONFIGURATION],
        ("rbac.authorization.k8s.io", "Role") => &[&access::ROLE],
        ("rbac.authorization.k8s.io", "ClusterRole") => &[&access::CLUSTER_ROLE],
        ("rbac.authorization.k8s.io", "RoleBinding") => &[&access::BINDING, &access::ANY_ROLE],
        ("rbac.authorization.k8s.io", "ClusterRoleBinding") => {
            &[&access::BINDING, &access::CLUSTER_ROLE_ONLY]
        }
        _ => &[],
    };
    for table in tables {
        fields(object, table, "", &mut causes);
    }
    causes
}

/// Names a feature without validation.
pub(crate) fn unsupported(object: &Value, kind: &Kind) -> Option<String> {
    let (spec, template) = match (kind.group.as_str(), kind.kind.as_str()) {
        ("", "Pod") => ("/spec", ""),
        ("apps", _) | ("batch", "Job") => ("/spec", "/template/spec"),
        ("batch", "CronJob") => ("/spec/jobTemplate/spec", "/template/spec"),
        ("admissionregistration.k8s.io", _) => {
            let with = list(&object["webhooks"]).iter().any(|webhook| !is_empty(&webhook["matchConditions"]));
            return with.then(|| "validation of match conditions of webhooks".to_owned());
        }
        _ => return None,
    };
    let spec = object.pointer(spec)?;
    if let Some(field) = present(spec, &["podFailurePolicy", "successPolicy"]).first() {
        return Some(format!("validation of {field}"));
    }
    volumes::unsupported(spec.pointer(template)?)
}

fn fields(value: &Value, table: &[Field], path: &str, causes: &mut Vec<Cause>) {
    for (field, rule) in table {
        walk(value, field, path, &mut |value, path| judge(*rule, value, path, causes));
    }
}

/// Calls `with` per item, or for the value, if any.
fn walk(value: &Value, field: &str, path: &str, with: &mut dyn FnMut(Option<&Value>, &str)) {
    if field == "." {
        return with(Some(value), path);
    }
    let (name, rest) = field.split_once('.').map_or((field, None), |(name, rest)| (name, Some(rest)));
    let empty = Value::Object(Map::new());
    let mut next = |value: Option<&Value>, path: &str| match (rest, value) {
        (Some(rest), Some(value)) => walk(value, rest, path, with),
        (Some(_), None) => {}
        (None, value) => with(value, path),
    };
    if let Some(name) = name.strip_suffix("[]") {
        let path = join(path, name);
        for (index, item) in list(&value[name]).iter().enumerate() {
            next(Some(item), &format!("{path}[{index}]"));
        }
        return;
    }
    let (name, otherwise) = name.strip_suffix('!').map_or((name, None), |name| (name, Some(&empty)));
    next(value.get(name).filter(|value| !value.is_null()).or(otherwise), &join(path, name));
}

fn judge(rule: Rule, value: Option<&Value>, path: &str, causes: &mut Vec<Cause>) {
    let Some(value) = value.filter(|value| !is_empty(value)) else {
        return match rule {
            Rule::Need(why) => causes.push(Cause::required(path, why)),
            Rule::Named(_) => causes.push(Cause::required(path, "")),
            Rule::Only(words) => {
                causes.push(Cause::unsupported(
                    path,
                    value.filter(|v| v.is_string()).unwrap_or(&"".into()),
                    words,
                ));
            }
            // An empty object lacks its fields.
            Rule::Fields(table) => {
                if let Some(value) = value.filter(|value| value.is_object()) {
                    fields(value, table, path, causes);
                }
            }
            Rule::Check(check) => {
                if let Some(value) = value {
                    check(value, path, causes);
                }
            }
            _ => {}
        };
    };
    let number = value.as_i64();
    match rule {
        Rule::Named(form) | Rule::Form(form) => {
            metadata::say(value.as_str().unwrap_or_default(), form, path, causes);
        }
        Rule::AtLeast(least, why) => judge(Rule::Between(least, i64::MAX, why), Some(value), path, causes),
        Rule::Between(least, most, why) if number.is_some_and(|number| !(least..=most).contains(&number)) => {
            causes.push(Cause::invalid(path, value, why));
        }
        Rule::Need(_) | Rule::Between(..) => {}
        Rule::NeededPort if *value == 0 => causes.push(Cause::required(path, "")),
        Rule::PortOrName if value.is_string() => {
            judge(Rule::Form(names::port_name), Some(value), path, causes);
        }
        Rule::Port | Rule::NeededPort | Rule::PortOrName => {
            judge(Rule::Between(1, 65_535, BETWEEN_PORTS), Some(value), path, causes);
        }
        Rule::CountOrShare(_) if value.is_number() => judge(NOT_NEGATIVE, Some(value), path, causes),
        Rule::CountOrShare(more) => {
            judge(Rule::Form(names::percent), Some(value), path, causes);
            if !more && share(value).is_some_and(|share| share > 100) {
                causes.push(Cause::invalid(path, value, "must not be greater than 100%"));
            }
        }
        Rule::OneOf(words) | Rule::Only(words) => {
            if value.as_str().is_none_or(|word| !words.contains(&word)) {
                causes.push(Cause::unsupported(path, value, words));
            }
        }
        Rule::Labels => metadata::labels(value, path, causes),
        Rule::Selector => selectors::check(value, path, causes),
        Rule::Forbidden(why) => causes.push(Cause::forbidden(path, why)),
        Rule::Once(field) => once(value, field, path, causes),
        Rule::Fields(table) => fields(value, table, path, causes),
        Rule::Check(check) => check(value, path, causes),
    }
}

fn once(items: &Value, field: &str, path: &str, causes: &mut Vec<Cause>) {
    let mut seen = HashSet::new();
    for (index, item) in list(items).iter().enumerate() {
        let value = &item[field];
        if !is_empty(value) && !seen.insert(value) {
            causes.push(Cause::duplicate(&format!("{path}[{index}].{field}"), value));
        }
    }
}

/// Whether a value is unset; numbers and booleans never are.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

pub(super) fn texts(value: &Value) -> impl Iterator<Item = &str> {
    list(value).iter().filter_map(Value::as_str)
}

fn share(value: &Value) -> Option<u64> {
    value.as_str()?.strip_suffix('%')?.parse().ok()
}

/// Set fields of a union.
fn present<'a>(value: &Value, of: &'a [&'a str]) -> Vec<&'a str> {
    of.iter().copied().filter(|field| value.get(field).is_some_and(|value| !value.is_null())).collect()
}
