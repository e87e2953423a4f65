//! Who may do what: a verdict much simpler than RBAC's. RBAC objects are stored and have no effect.

use crate::store::{Target, Verb};

/// Someone who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// As messages name them.
    pub name: String,
    /// Groups.
    pub groups: Vec<String>,
    /// What they may do.
    pub access: Access,
}

/// What somebody may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everything.
    Admin,
    /// What any of these allows.
    Rules(Vec<Rule>),
    /// Nothing but discovery.
    Nothing,
}

/// What is allowed; `*` stands for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`
    pub verbs: Vec<String>,
    /// API groups; empty text for the core group.
    pub groups: Vec<String>,
    /// Plural names, with `/status` and so on for subresources.
    pub resources: Vec<String>,
    /// Only these names; all if empty.
    pub names: Vec<String>,
    /// Only in these namespaces; all if empty.
    pub namespaces: Vec<String>,
}

impl User {
    /// Someone who may do everything.
    pub fn admin(name: &str) -> Self {
        Self { name: name.to_owned(), groups: vec!["system:masters".to_owned()], access: Access::Admin }
    }

    /// Someone without credentials.
    pub fn anonymous() -> Self {
        let groups = vec!["system:unauthenticated".to_owned()];
        Self { name: "system:anonymous".to_owned(), groups, access: Access::Nothing }
    }

    pub(crate) fn may(&self, verb: &str, target: &Target) -> bool {
        match &self.access {
            Access::Admin => true,
            Access::Nothing => false,
            Access::Rules(rules) => rules.iter().any(|rule| rule.allows(verb, target)),
        }
    }

    /// The message of a refusal, as RBAC words it.
    pub(crate) fn refusal(&self, verb: &Verb, target: &Target) -> String {
        let place = if target.namespace.is_empty() {
            "at the cluster scope".to_owned()
        } else {
            format!("in the namespace \"{}\"", target.namespace)
        };
        format!(
            "User \"{}\" cannot {} resource \"{}\" in API group \"{}\" {place}",
            self.name,
            verb.name(),
            qualified(target),
            target.group
        )
    }
}

impl Rule {
    fn allows(&self, verb: &str, target: &Target) -> bool {
        let any = |list: &[String], wanted: &str| list.iter().any(|have| have == "*" || have == wanted);
        let within = |list: &[String], wanted: &str| list.is_empty() || any(list, wanted);
        any(&self.verbs, verb)
            && any(&self.groups, &target.group)
            && any(&self.resources, &qualified(target))
            && within(&self.names, &target.name)
            && within(&self.namespaces, &target.namespace)
    }
}

fn qualified(target: &Target) -> String {
    if target.subresource.is_empty() {
        target.resource.clone()
    } else {
        format!("{}/{}", target.resource, target.subresource)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_allows_what_it_names() {
        let list = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>();
        let rule = Rule {
            verbs: list(&["get", "list"]),
            groups: list(&[""]),
            resources: list(&["configmaps"]),
            namespaces: list(&["a"]),
            ..Rule::default()
        };
        let user = User { name: "u".into(), groups: Vec::new(), access: Access::Rules(vec![rule]) };
        let target = |resource: &str, namespace: &str| Target {
            resource: resource.into(),
            namespace: namespace.into(),
            ..Target::default()
        };
        assert!(user.may("get", &target("configmaps", "a")));
        assert!(!user.may("get", &target("configmaps", "b")));
        assert!(!user.may("get", &target("secrets", "a")));
        assert!(!user.may("delete", &target("configmaps", "a")));
        assert!(User::admin("x").may("delete", &target("secrets", "q")));
        assert!(!User::anonymous().may("get", &target("configmaps", "a")));
    }
}
