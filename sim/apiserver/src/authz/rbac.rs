//! RBAC evaluation. Pure.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;

use super::{
    ask::{Ask, qualified},
    rules::Rule,
    user::{AUTHENTICATED, Access, UNAUTHENTICATED, User, service_account},
};
use crate::{json::text, object::intern::intern};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Authorization {
    pub(crate) allowed: bool,
    /// The allowing binding or missing roles; may be empty.
    pub(crate) reason: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PolicyRule {
    pub(crate) verbs: Vec<Arc<str>>,
    pub(crate) groups: Vec<Arc<str>>,
    pub(crate) resources: Vec<Arc<str>>,
    pub(crate) names: Vec<Arc<str>>,
    pub(crate) urls: Vec<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RoleRef {
    pub(crate) kind: String,
    pub(crate) name: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    /// Empty for a `ClusterRoleBinding`.
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) role: RoleRef,
    pub(crate) subjects: Vec<Value>,
}

/// A missing role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MissingRole {
    /// `role` or `clusterrole`.
    pub(crate) singular: String,
    pub(crate) name: String,
}

/// All grants of one user.
#[derive(Clone, Debug, Default)]
pub(crate) struct UserGrants {
    /// Member of `system:masters`.
    all: bool,
    everywhere: Vec<Grant>,
    /// By namespace.
    within: BTreeMap<Arc<str>, Vec<Grant>>,
}

#[derive(Clone, Debug)]
struct Grant {
    /// Describes the binding.
    by: String,
    rules: Result<Vec<PolicyRule>, MissingRole>,
}

impl User {
    /// `None`: RBAC objects decide.
    pub(crate) fn verdict(&self, ask: &Ask) -> Option<Authorization> {
        let allowed = match &self.access {
            Access::Admin => true,
            Access::Rbac if self.is_master() => true,
            Access::Rbac => return None,
            Access::Nothing | Access::Rules(_) if matches!(ask, Ask::Path { .. }) => true,
            Access::Nothing | Access::Rules(_) if ask.is_self_review() => true,
            Access::Nothing => false,
            Access::Rules(rules) => rules.iter().any(|rule: &Rule| rule.allows(ask)),
        };
        Some(Authorization { allowed, reason: String::new() })
    }
}

impl Binding {
    /// `namespace`: empty for a `ClusterRoleBinding`.
    pub(crate) fn of(object: &Value, namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            role: RoleRef::of(object),
            subjects: object.get("subjects").and_then(Value::as_array).cloned().unwrap_or_default(),
        }
    }

    /// Describes a binding that applies.
    fn applies(&self, user: &User) -> Option<String> {
        let subject = self.subjects.iter().find(|subject| self.is_subject(subject, user))?;
        let (kind, name) = (text(subject, "kind"), text(subject, "name"));
        let subject = match kind {
            "ServiceAccount" => format!("{kind} {:?}", format!("{name}/{}", self.namespace_of(subject))),
            _ => format!("{kind} {name:?}"),
        };
        let role = format!("{} {:?} to {subject}", self.role.kind, self.role.name);
        Some(if self.namespace.is_empty() {
            format!("ClusterRoleBinding {:?} of {role}", self.name)
        } else {
            format!("RoleBinding {:?} of {role}", format!("{}/{}", self.name, self.namespace))
        })
    }

    fn is_subject(&self, subject: &Value, user: &User) -> bool {
        let name = text(subject, "name");
        match text(subject, "kind") {
            "User" => user.name == name,
            "Group" => user.is_in(name),
            "ServiceAccount" => {
                let namespace = self.namespace_of(subject);
                !namespace.is_empty() && user.name == service_account(namespace, name)
            }
            _ => false,
        }
    }

    fn namespace_of<'a>(&'a self, subject: &'a Value) -> &'a str {
        Some(text(subject, "namespace")).filter(|namespace| !namespace.is_empty()).unwrap_or(&self.namespace)
    }
}

impl RoleRef {
    pub(crate) fn of(binding: &Value) -> Self {
        let role = binding.get("roleRef").unwrap_or(&Value::Null);
        Self { kind: text(role, "kind").to_owned(), name: text(role, "name").to_owned() }
    }
}

impl UserGrants {
    /// `role` finds rules for a binding's namespace (empty: cluster).
    pub(crate) fn of(
        user: &User,
        bindings: impl IntoIterator<Item = Binding>,
        role: impl Fn(&RoleRef, &str) -> Result<Vec<PolicyRule>, MissingRole>,
    ) -> Self {
        let mut grants = Self { all: user.is_master(), ..Self::default() };
        grants.everywhere.extend(default_grants(user));
        for binding in bindings {
            let Some(by) = binding.applies(user) else { continue };
            let grant = Grant { by, rules: role(&binding.role, &binding.namespace) };
            if binding.namespace.is_empty() {
                grants.everywhere.push(grant);
            } else {
                grants.within.entry(intern(&binding.namespace)).or_default().push(grant);
            }
        }
        grants
    }

    fn grants(&self, namespace: &str) -> impl Iterator<Item = &Grant> {
        let within = if namespace.is_empty() { None } else { self.within.get(namespace) };
        self.everywhere.iter().chain(within.into_iter().flatten())
    }

    /// An empty namespace selects cluster-wide rules.
    pub(crate) fn rules(&self, namespace: &str) -> Vec<&PolicyRule> {
        self.grants(namespace).filter_map(|grant| grant.rules.as_ref().ok()).flatten().collect()
    }

    /// Names missing roles; `of` overrides their kind.
    pub(crate) fn missing_roles(&self, namespace: &str, of: Option<&str>) -> String {
        let mut all: Vec<String> = Vec::new();
        for missing in self.grants(namespace).filter_map(|grant| grant.rules.as_ref().err()) {
            let message = missing.message(of);
            if !all.contains(&message) {
                all.push(message);
            }
        }
        if all.len() > 1 { format!("[{}]", all.join(", ")) } else { all.concat() }
    }

    pub(crate) fn verdict(&self, ask: &Ask) -> Authorization {
        if self.all {
            return Authorization { allowed: true, reason: String::new() };
        }
        let namespace = match ask {
            Ask::Resource { target, .. } => target.namespace.as_str(),
            Ask::Path { .. } => "",
        };
        let allows = |grant: &&Grant| {
            grant.rules.as_ref().is_ok_and(|rules| rules.iter().any(|rule| rule.allows(ask)))
        };
        if let Some(grant) = self.grants(namespace).find(allows) {
            return Authorization { allowed: true, reason: format!("RBAC: allowed by {}", grant.by) };
        }
        let missing_roles = self.missing_roles(namespace, None);
        let reason = if missing_roles.is_empty() { missing_roles } else { format!("RBAC: {missing_roles}") };
        Authorization { allowed: false, reason }
    }
}

impl MissingRole {
    fn message(&self, of: Option<&str>) -> String {
        format!("{}.rbac.authorization.k8s.io {:?} not found", of.unwrap_or(&self.singular), self.name)
    }
}

impl PolicyRule {
    fn of(rule: &Value) -> Self {
        let list = |field: &str| {
            let items = rule.get(field).and_then(Value::as_array).into_iter().flatten();
            items.filter_map(Value::as_str).map(intern).collect()
        };
        Self {
            verbs: list("verbs"),
            groups: list("apiGroups"),
            resources: list("resources"),
            names: list("resourceNames"),
            urls: list("nonResourceURLs"),
        }
    }

    fn allows(&self, ask: &Ask) -> bool {
        match ask {
            Ask::Resource { verb, target } => {
                any(&self.verbs, verb)
                    && any(&self.groups, &target.group)
                    && self.names_resource(&qualified(target), &target.subresource)
                    && (self.names.is_empty() || self.names.iter().any(|name| **name == *target.name))
            }
            Ask::Path { verb, path } => {
                any(&self.verbs, verb) && self.urls.iter().any(|url| is_url(url, path))
            }
        }
    }

    fn names_resource(&self, wanted: &str, subresource: &str) -> bool {
        let any_of = |have: &str| !subresource.is_empty() && have.strip_prefix("*/") == Some(subresource);
        self.resources.iter().any(|have| matches!(&**have, "*") || **have == *wanted || any_of(have))
    }
}

/// `rule` may end with `*`.
pub(super) fn is_url(rule: &str, path: &str) -> bool {
    rule == path || rule.ends_with('*') && path.starts_with(rule.trim_end_matches('*'))
}

pub(super) fn any(list: &[Arc<str>], wanted: &str) -> bool {
    list.iter().any(|have| &**have == "*" || **have == *wanted)
}

pub(crate) fn rules_of(role: &Value) -> Vec<PolicyRule> {
    role.get("rules").and_then(Value::as_array).into_iter().flatten().map(PolicyRule::of).collect()
}

/// Kubernetes' default grants, not stored, to save memory per cluster.
fn default_grants(user: &User) -> Vec<Grant> {
    let rule = |verb: &str, group: &str, resources: &[&str], urls: &[&str]| {
        let list = |items: &[&str]| items.iter().map(|item| intern(item)).collect();
        let groups = if urls.is_empty() { list(&[group]) } else { Vec::new() };
        PolicyRule {
            verbs: list(&[verb]),
            groups,
            resources: list(resources),
            names: Vec::new(),
            urls: list(urls),
        }
    };
    let grant = |name: &str, group: &str, rules: Vec<PolicyRule>| {
        let by = format!("ClusterRoleBinding {name:?} of ClusterRole {name:?} to Group {group:?}");
        Grant { by, rules: Ok(rules) }
    };
    let public = ["/healthz", "/livez", "/readyz", "/version", "/version/"];
    let mut grants = Vec::new();
    if user.is_in(AUTHENTICATED) {
        let oneself = vec![
            rule(
                "create",
                "authorization.k8s.io",
                &["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
                &[],
            ),
            rule("create", "authentication.k8s.io", &["selfsubjectreviews"], &[]),
        ];
        grants.push(grant("system:basic-user", AUTHENTICATED, oneself));
        let discovery = ["/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*"];
        let discovery = [&discovery[..], &public].concat();
        grants.push(grant("system:discovery", AUTHENTICATED, vec![rule("get", "", &[], &discovery)]));
    }
    for group in [AUTHENTICATED, UNAUTHENTICATED].into_iter().filter(|group| user.is_in(group)).take(1) {
        grants.push(grant("system:public-info-viewer", group, vec![rule("get", "", &[], &public)]));
    }
    grants
}

/// Rules of `cluster-admin`.
pub(crate) fn everything() -> Vec<PolicyRule> {
    let all = || vec![intern("*")];
    vec![
        PolicyRule { verbs: all(), groups: all(), resources: all(), ..PolicyRule::default() },
        PolicyRule { verbs: all(), urls: all(), ..PolicyRule::default() },
    ]
}

#[cfg(test)]
mod tests;
