//! Users may only grant rights that they have, unless they may `escalate` or `bind`.

use serde_json::Value;

use super::{
    refusal::Refusal,
    request::Request,
    rights::{RBAC, role_rules},
    state::State,
    target::Target,
};
use crate::{
    authz::{Access, Ask, PolicyRule, RoleRef, everything, missing, rules_of},
    kinds::Kind,
    object::meta,
};

/// Checks a changed RBAC object. `before`: the previous object.
pub(super) fn check(
    state: &mut State,
    kind: &Kind,
    request: &Request,
    before: Option<&Value>,
    object: &Value,
) -> Result<(), Refusal> {
    let user = &request.user;
    if kind.group != RBAC || user.access != Access::Rbac || user.may_all() {
        return Ok(());
    }
    if before.is_some_and(|before| differ_only_in_owners(before, object)) {
        return Ok(());
    }
    let Some(wanted) = granted(state, kind, request, object)? else { return Ok(()) };
    let namespace = request.target.namespace.as_str();
    let grants = state.rights.grants(&state.objects, user);
    let missing = missing(&grants.rules(namespace), &wanted);
    if missing.is_empty() {
        return Ok(());
    }
    let groups: Vec<String> = user.groups.iter().map(|group| format!("{group:?}")).collect();
    let mut why = format!(
        "user {:?} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
        user.name,
        groups.join(" "),
        missing.join("\n")
    );
    let errors = grants.missing_roles(namespace, Some(&kind.plural));
    if !errors.is_empty() {
        why = format!("{why}; resolution errors: [{errors}]");
    }
    Err(Refusal::forbidden(&kind.plural, RBAC, meta::name(object), &why))
}

/// Rules that the object grants. `None`: the user may grant any.
fn granted(
    state: &mut State,
    kind: &Kind,
    request: &Request,
    object: &Value,
) -> Result<Option<Vec<PolicyRule>>, Refusal> {
    let namespace = request.target.namespace.as_str();
    let mut may = |verb: &str, resource: &str, name: &str| {
        let target = Target {
            group: RBAC.to_owned(),
            version: "v1".to_owned(),
            resource: resource.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            subresource: String::new(),
        };
        let ask = Ask::Resource { verb: verb.to_owned(), target };
        state.rights.verdict(&state.objects, &request.user, &ask).allowed
    };
    if kind.plural.ends_with("bindings") {
        let role = RoleRef::of(object);
        let resource = if role.kind == "Role" { "roles" } else { "clusterroles" };
        if may("bind", resource, &role.name) {
            return Ok(None);
        }
        // Kubernetes reports the binding's kind.
        let rules = role_rules(&state.objects, &role, namespace);
        return rules.map(Some).map_err(|missing| Refusal::not_found(kind, &missing.name));
    }
    // Creates are authorized without a name.
    if may("escalate", &kind.plural, &request.target.name) {
        return Ok(None);
    }
    // Aggregated roles may get any right.
    let aggregated = object.get("aggregationRule").is_some_and(|rule| !rule.is_null());
    Ok(Some(if aggregated { everything() } else { rules_of(object) }))
}

/// Ignores the metadata that the garbage collector changes.
fn differ_only_in_owners(before: &Value, after: &Value) -> bool {
    let plain = |object: &Value| {
        let mut object = object.clone();
        let metadata = meta::metadata_mut(&mut object);
        for field in ["finalizers", "ownerReferences", "managedFields"] {
            metadata.remove(field);
        }
        object
    };
    plain(before) == plain(after)
}
