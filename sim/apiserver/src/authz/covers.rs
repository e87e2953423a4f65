//! Privilege escalation check. Pure.

use std::{collections::BTreeSet, sync::Arc};

use super::rbac::{PolicyRule, is_url};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Right<'a> {
    Resource { group: &'a str, resource: &'a str, name: Option<&'a str>, verb: &'a str },
    Url { url: &'a str, verb: &'a str },
}

/// Describes uncovered rights in Kubernetes' wording, sorted.
pub(crate) fn missing(held: &[&PolicyRule], wanted: &[PolicyRule]) -> Vec<String> {
    let rights = wanted.iter().flat_map(rights);
    let missing_rights: Vec<Right<'_>> =
        rights.filter(|right| !held.iter().any(|rule| covers(rule, right))).collect();
    describe(&missing_rights)
}

fn rights(rule: &PolicyRule) -> Vec<Right<'_>> {
    let mut rights = Vec::new();
    for group in &rule.groups {
        for resource in &rule.resources {
            for verb in &rule.verbs {
                let right = |name| Right::Resource { group, resource, name, verb };
                if rule.names.is_empty() {
                    rights.push(right(None));
                }
                rights.extend(rule.names.iter().map(|name| right(Some(&**name))));
            }
        }
    }
    for url in &rule.urls {
        rights.extend(rule.verbs.iter().map(|verb| Right::Url { url, verb }));
    }
    rights
}

fn covers(rule: &PolicyRule, right: &Right<'_>) -> bool {
    let has = |list: &[Arc<str>], wanted: &str| list.iter().any(|have| **have == *wanted);
    let any = |list: &[Arc<str>], wanted: &str| has(list, "*") || has(list, wanted);
    match *right {
        Right::Resource { group, resource, name, verb } => {
            let subresource = resource.split_once('/').map(|(_, subresource)| format!("*/{subresource}"));
            any(&rule.verbs, verb)
                && any(&rule.groups, group)
                && (any(&rule.resources, resource)
                    || subresource.is_some_and(|all| has(&rule.resources, &all)))
                && (rule.names.is_empty() || name.is_some_and(|name| has(&rule.names, name)))
        }
        Right::Url { url, verb } => any(&rule.verbs, verb) && rule.urls.iter().any(|have| is_url(have, url)),
    }
}

/// Joins verbs on one resource.
fn describe(missing_rights: &[Right<'_>]) -> Vec<String> {
    let mut lines = BTreeSet::new();
    let mut verbs_of: Vec<(Right<'_>, Vec<&str>)> = Vec::new();
    for right in missing_rights {
        match *right {
            Right::Url { url, verb } => {
                lines.insert(format!("{{NonResourceURLs:[{url:?}], Verbs:[{verb:?}]}}"));
            }
            Right::Resource { group, resource, name, verb } => {
                let same = Right::Resource { group, resource, name, verb: "" };
                match verbs_of.iter_mut().find(|(other, _)| *other == same) {
                    Some((_, verbs)) => verbs.push(verb),
                    None => verbs_of.push((same, vec![verb])),
                }
            }
        }
    }
    for (right, verbs) in verbs_of {
        let Right::Resource { group, resource, name, .. } = right else { continue };
        let names = name.map(|name| format!("ResourceNames:[{name:?}], ")).unwrap_or_default();
        let verbs = verbs.iter().map(|verb| format!("{verb:?}")).collect::<Vec<_>>().join(" ");
        lines.insert(format!("{{APIGroups:[{group:?}], Resources:[{resource:?}], {names}Verbs:[{verbs}]}}"));
    }
    lines.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::authz::rules_of;

    fn lacks(held: Value, wanted: Value) -> Vec<String> {
        let (held, wanted) = (rules_of(&json!({"rules": held})), rules_of(&json!({"rules": wanted})));
        missing(&held.iter().collect::<Vec<_>>(), &wanted)
    }

    #[test]
    fn covered_permissions_may_be_granted() {
        let pods =
            json!([{"apiGroups": ["", "apps"], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]}]);
        for held in [
            json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]),
            json!([{"apiGroups": ["", "apps"], "resources": ["pods", "*/log"], "verbs": ["list", "get", "watch"]}]),
            // Each right by another rule.
            json!([
                {"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]},
                {"apiGroups": ["apps"], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]},
                {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get", "list"]},
            ]),
        ] {
            assert_eq!(lacks(held.clone(), pods.clone()), [""; 0], "{held}");
        }
        let urls = json!([{"nonResourceURLs": ["/a/b", "/a/*"], "verbs": ["get"]}]);
        assert_eq!(lacks(json!([{"nonResourceURLs": ["/a/*"], "verbs": ["get"]}]), urls), [""; 0]);
    }

    #[test]
    fn missing_permissions_are_listed() {
        let wanted = json!([
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["s"], "verbs": ["get"]},
            {"nonResourceURLs": ["/x"], "verbs": ["get"]},
        ]);
        let held = json!([
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["pods"], "resourceNames": ["p"], "verbs": ["list"]},
            {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["t"], "verbs": ["*"]},
        ]);
        assert_eq!(
            lacks(held, wanted),
            [
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["list" "watch"]}"#,
                r#"{APIGroups:[""], Resources:["secrets"], ResourceNames:["s"], Verbs:["get"]}"#,
                r#"{NonResourceURLs:["/x"], Verbs:["get"]}"#,
            ]
        );
        let star = json!([{"apiGroups": [""], "resources": ["*"], "verbs": ["get"]}]);
        let named = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]}]);
        assert_eq!(lacks(named, star), [r#"{APIGroups:[""], Resources:["*"], Verbs:["get"]}"#]);
    }
}
