//! Authorization by fixed rights or RBAC objects.

mod ask;
mod covers;
mod rbac;
mod rules;
mod user;

pub(crate) use ask::Ask;
pub(crate) use covers::missing;
pub(crate) use rbac::{
    Authorization, Binding, MissingRole, PolicyRule, RoleRef, UserGrants, everything, rules_of,
};
pub use rules::Rule;
pub use user::{Access, User};
pub(crate) use user::{CREDENTIAL_ID, MASTERS, service_account};
