//! Who may do what. Most users have all rights, or a short list of their own; what others may do, the cluster's RBAC
//! objects say.

mod ask;
mod covers;
mod rbac;
mod rules;

pub(crate) use ask::Ask;
pub(crate) use covers::missing;
pub(crate) use rbac::{Binding, Held, Lacking, PolicyRule, RoleRef, Verdict, everything, rules_of};
pub use rules::Rule;

/// Those who may do everything, whatever RBAC objects say.
const MASTERS: &str = "system:masters";
/// Whoever has shown who they are.
const AUTHENTICATED: &str = "system:authenticated";
const UNAUTHENTICATED: &str = "system:unauthenticated";
const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";

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
    /// What any of these allows, and discovery.
    Rules(Vec<Rule>),
    /// What the cluster's RBAC objects allow at the time, and what they allow everybody on a cluster as Kubernetes starts it.
    Rbac,
    /// Nothing but discovery.
    Nothing,
}

impl User {
    /// Someone who may do everything.
    pub fn admin(name: &str) -> Self {
        Self { name: name.to_owned(), groups: vec![MASTERS.to_owned()], access: Access::Admin }
    }

    /// Someone who may do what RBAC objects say, in these groups and in `system:authenticated`.
    pub fn by_rbac(name: &str, groups: &[&str]) -> Self {
        let groups = groups.iter().copied().chain([AUTHENTICATED]).map(str::to_owned).collect();
        Self { name: name.to_owned(), groups, access: Access::Rbac }
    }

    /// A service account, which need not exist; it may do what RBAC objects say.
    pub fn service_account(namespace: &str, name: &str) -> Self {
        let groups = [SERVICE_ACCOUNTS, &format!("{SERVICE_ACCOUNTS}:{namespace}")];
        Self::by_rbac(&service_account(namespace, name), &groups)
    }

    /// Someone without credentials; RBAC objects say what they may do.
    pub fn anonymous() -> Self {
        let groups = vec![UNAUTHENTICATED.to_owned()];
        Self { name: "system:anonymous".to_owned(), groups, access: Access::Rbac }
    }

    /// Whether nothing need be asked about them.
    pub(crate) fn may_all(&self) -> bool {
        self.access == Access::Admin || (self.access == Access::Rbac && self.is_master())
    }

    fn is_master(&self) -> bool {
        self.is_in(MASTERS)
    }

    fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|have| have == group)
    }
}

fn service_account(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}
