//! Authorization by the cluster's RBAC objects.

use std::{collections::BTreeMap, sync::Arc};

use super::{log::Key, objects::Objects, refusal::Refusal};
use crate::{
    authz::{
        Ask, Authorization, Binding, MissingRole, PolicyRule, RoleRef, User, UserGrants, everything, rules_of,
    },
    kinds::builtin,
};

pub(super) const RBAC: &str = "rbac.authorization.k8s.io";
/// Cached users; a full cache is cleared.
const MAX_USERS: usize = 64;

/// Grants of users, cleared when RBAC objects change. Empty if RBAC is unused, to save memory.
#[derive(Debug, Default)]
pub(super) struct Rights(BTreeMap<String, Cached>);

#[derive(Debug)]
struct Cached {
    groups: Vec<String>,
    grants: Arc<UserGrants>,
}

impl Rights {
    pub(super) fn object_changed(&mut self, key: &Key) {
        if !self.0.is_empty() && key.resource.ends_with(RBAC) {
            self.0.clear();
        }
    }

    pub(super) fn verdict(&mut self, objects: &Objects, user: &User, ask: &Ask) -> Authorization {
        user.verdict(ask).unwrap_or_else(|| self.grants(objects, user).verdict(ask))
    }

    pub(super) fn authorize(&mut self, objects: &Objects, user: &User, ask: &Ask) -> Result<(), Refusal> {
        let verdict = self.verdict(objects, user, ask);
        if verdict.allowed { Ok(()) } else { Err(ask.refusal(&user.name, &verdict.reason)) }
    }

    pub(super) fn grants(&mut self, objects: &Objects, user: &User) -> Arc<UserGrants> {
        if let Some(cached) = self.0.get(&user.name).filter(|cached| cached.groups == user.groups) {
            return Arc::clone(&cached.grants);
        }
        let bindings = bindings(objects, "clusterrolebindings").chain(bindings(objects, "rolebindings"));
        let grants = UserGrants::of(user, bindings, |role, namespace| role_rules(objects, role, namespace));
        let grants = Arc::new(grants);
        if self.0.len() >= MAX_USERS {
            self.0.clear();
        }
        let cached = Cached { groups: user.groups.clone(), grants: Arc::clone(&grants) };
        self.0.insert(user.name.clone(), cached);
        grants
    }
}

fn bindings(objects: &Objects, plural: &str) -> impl Iterator<Item = Binding> {
    let objects = builtin::find(RBAC, "v1", plural).map(|kind| objects.range(kind, ""));
    let objects = objects.into_iter().flatten();
    objects.map(|(key, stored)| Binding::of(&stored.render(), &key.namespace, &key.name))
}

/// Rules of a stored or built-in role.
pub(super) fn role_rules(
    objects: &Objects,
    role: &RoleRef,
    namespace: &str,
) -> Result<Vec<PolicyRule>, MissingRole> {
    let RoleRef { kind, name } = role;
    let missing = || MissingRole { singular: kind.to_lowercase(), name: name.clone() };
    let (plural, namespace) = if kind == "Role" { ("roles", namespace) } else { ("clusterroles", "") };
    let kind = builtin::find(RBAC, "v1", plural).ok_or_else(missing)?;
    match objects.find(kind, namespace, name) {
        Some(stored) => Ok(rules_of(&stored.render())),
        // Built in, unless stored.
        None if plural == "clusterroles" && name == "cluster-admin" => Ok(everything()),
        None => Err(missing()),
    }
}
