//! Users and their source of rights.

use std::collections::BTreeMap;

use super::rules::Rule;

/// Has all rights, regardless of RBAC.
pub(crate) const MASTERS: &str = "system:masters";
pub(super) const AUTHENTICATED: &str = "system:authenticated";
pub(super) const UNAUTHENTICATED: &str = "system:unauthenticated";
const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";
/// Key in [`User::extra`] of the credential that the user sent.
pub(crate) const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// A requesting user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Name.
    pub name: String,
    /// Unique id; may be empty.
    pub uid: String,
    /// Groups.
    pub groups: Vec<String>,
    /// More attributes by key.
    pub extra: BTreeMap<String, Vec<String>>,
    /// Access rights.
    pub access: Access,
}

/// Source of rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everything.
    Admin,
    /// Discovery and these rules.
    Rules(Vec<Rule>),
    /// RBAC objects and Kubernetes' default bindings.
    Rbac,
    /// Discovery only.
    Nothing,
}

impl User {
    /// Creates an administrator.
    pub fn admin(name: &str) -> Self {
        Self { access: Access::Admin, ..Self::by_rbac(name, &[MASTERS]) }
    }

    /// Creates an RBAC user in `system:authenticated` and these groups.
    pub fn by_rbac(name: &str, groups: &[&str]) -> Self {
        let groups = groups.iter().copied().chain([AUTHENTICATED]).map(str::to_owned).collect();
        Self {
            name: name.to_owned(),
            uid: String::new(),
            groups,
            extra: BTreeMap::new(),
            access: Access::Rbac,
        }
    }

    /// Creates an RBAC service account, existing or not.
    pub fn service_account(namespace: &str, name: &str) -> Self {
        let groups = [SERVICE_ACCOUNTS, &format!("{SERVICE_ACCOUNTS}:{namespace}")];
        Self::by_rbac(&service_account(namespace, name), &groups)
    }

    /// Creates an RBAC user without credentials.
    pub fn anonymous() -> Self {
        let groups = vec![UNAUTHENTICATED.to_owned()];
        Self { groups, ..Self::by_rbac("system:anonymous", &[]) }
    }

    /// Whether checks may be skipped.
    pub(crate) fn may_all(&self) -> bool {
        self.access == Access::Admin || (self.access == Access::Rbac && self.is_master())
    }

    pub(super) fn is_master(&self) -> bool {
        self.is_in(MASTERS)
    }

    pub(super) fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|have| have == group)
    }
}

pub(crate) fn service_account(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}
