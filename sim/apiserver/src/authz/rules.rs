//! Fixed rights, independent of RBAC objects.

use super::ask::{Ask, qualified};

/// Allowed actions; `*`: all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`
    pub verbs: Vec<String>,
    /// API groups; empty: core.
    pub groups: Vec<String>,
    /// Plural names, such as `pods/status`.
    pub resources: Vec<String>,
    /// Object names; empty: all.
    pub names: Vec<String>,
    /// Namespaces; empty: all.
    pub namespaces: Vec<String>,
}

impl Rule {
    pub(crate) fn allows(&self, ask: &Ask) -> bool {
        let Ask::Resource { verb, target } = ask else { return false };
        let any = |list: &[String], wanted: &str| list.iter().any(|have| have == "*" || have == wanted);
        let within = |list: &[String], wanted: &str| list.is_empty() || any(list, wanted);
        any(&self.verbs, verb)
            && any(&self.groups, &target.group)
            && any(&self.resources, &qualified(target))
            && within(&self.names, &target.name)
            && within(&self.namespaces, &target.namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::target::{Query, Target};

    #[test]
    fn a_rule_allows_exactly_its_verbs_and_resources() {
        let list = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>();
        let rule = Rule {
            verbs: list(&["get", "list"]),
            groups: list(&[""]),
            resources: list(&["configmaps"]),
            namespaces: list(&["a"]),
            ..Rule::default()
        };
        let may = |verb: &str, resource: &str, namespace: &str| {
            let target =
                Target { resource: resource.into(), namespace: namespace.into(), ..Target::default() };
            rule.allows(&Ask::of(verb, &target, &Query::default()))
        };
        assert!(may("get", "configmaps", "a"));
        assert!(!may("get", "configmaps", "b"));
        assert!(!may("get", "secrets", "a"));
        assert!(!may("delete", "configmaps", "a"));
        assert!(!rule.allows(&Ask::path("get", "/api")));
    }
}
