//! Roles and bindings.

use serde_json::{Value, json};

use super::{
    names,
    rule::{Field, Rule},
    values::is_empty,
};
use crate::{
    json::{list, text},
    schema::cause::Cause,
};

const RBAC: &str = "rbac.authorization.k8s.io";

pub(super) const ROLE: [Field; 1] = [("rules[]", Rule::Check(namespaced_rule))];
pub(super) const CLUSTER_ROLE: [Field; 2] =
    [("rules[]", Rule::Check(rule)), ("aggregationRule", Rule::Check(aggregation))];
pub(super) const BINDING: [Field; 3] = [
    ("roleRef!.apiGroup", Rule::OneOf(&[RBAC])),
    ("roleRef!.name", Rule::Named(names::path_segment)),
    ("subjects[]", Rule::Check(subject)),
];
pub(super) const ANY_ROLE: [Field; 1] = [("roleRef!.kind", Rule::Only(&["Role", "ClusterRole"]))];
pub(super) const CLUSTER_ROLE_ONLY: [Field; 2] =
    [("roleRef!.kind", Rule::Only(&["ClusterRole"])), ("subjects[]", Rule::Check(somewhere))];

fn rule(rule: &Value, path: &str, causes: &mut Vec<Cause>) {
    rule_in(rule, path, None, causes);
}

fn namespaced_rule(rule: &Value, path: &str, causes: &mut Vec<Cause>) {
    rule_in(rule, path, Some("namespaced rules cannot apply to non-resource URLs"), causes);
}

fn rule_in(rule: &Value, path: &str, no_urls: Option<&str>, causes: &mut Vec<Cause>) {
    let mut need = |field: &str, why: &str| {
        if is_empty(&rule[field]) {
            causes.push(Cause::required(&format!("{path}.{field}"), why));
        }
    };
    need("verbs", "verbs must contain at least one value");
    let urls = &rule["nonResourceURLs"];
    if is_empty(urls) {
        need("apiGroups", "resource rules must supply at least one api group");
        return need("resources", "resource rules must supply at least one resource");
    }
    let both = ["apiGroups", "resources", "resourceNames"].iter().any(|field| !is_empty(&rule[*field]));
    let both = both.then_some("rules cannot apply to both regular resources and non-resource URLs");
    for why in no_urls.into_iter().chain(both) {
        causes.push(Cause::invalid(&format!("{path}.nonResourceURLs"), urls, why));
    }
}

fn aggregation(rule: &Value, path: &str, causes: &mut Vec<Cause>) {
    let path = format!("{path}.clusterRoleSelectors");
    let selectors = list(&rule["clusterRoleSelectors"]);
    if selectors.is_empty() {
        let why = "at least one clusterRoleSelector required if aggregationRule is non-nil";
        causes.push(Cause::required(&path, why));
    }
    for (index, selector) in selectors.iter().enumerate() {
        let (path, before) = (format!("{path}[{index}]"), causes.len());
        super::selectors::check(selector, &path, causes);
        if causes.len() > before {
            causes.push(Cause::invalid(&path, &Value::Null, "invalid label selector."));
        }
    }
}

/// A cluster binding's `ServiceAccounts` need namespaces.
fn somewhere(subject: &Value, path: &str, causes: &mut Vec<Cause>) {
    if text(subject, "kind") == "ServiceAccount" && text(subject, "namespace").is_empty() {
        causes.push(Cause::required(&format!("{path}.namespace"), ""));
    }
}

fn subject(subject: &Value, path: &str, causes: &mut Vec<Cause>) {
    let at = |field: &str| format!("{path}.{field}");
    let name = text(subject, "name");
    if name.is_empty() {
        causes.push(Cause::required(&at("name"), ""));
    }
    let group = &subject["apiGroup"];
    match text(subject, "kind") {
        "ServiceAccount" => {
            if !name.is_empty() {
                super::metadata::check_format(name, names::subdomain, &at("name"), causes);
            }
            if !is_empty(group) {
                causes.push(Cause::unsupported(&at("apiGroup"), group, &[""]));
            }
        }
        "User" | "Group" => {
            if group != RBAC {
                causes.push(Cause::unsupported(&at("apiGroup"), group, &[RBAC]));
            }
        }
        other => {
            let supported = ["ServiceAccount", "User", "Group"];
            causes.push(Cause::unsupported(&at("kind"), &json!(other), &supported));
        }
    }
}
