//! Authorization by the cluster's RBAC objects.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};

use super::{
    cluster::Cluster,
    log::Key,
    refusal::Refusal,
    request::{Answer, Outcome, Request, Target, Verb},
};
use crate::{
    authz::{
        Access, Ask, Binding, Held, Lacking, PolicyRule, RoleRef, User, Verdict, everything, missing,
        rules_of,
    },
    kinds::{Kind, builtin},
    object::meta,
};

pub(super) const RBAC: &str = "rbac.authorization.k8s.io";
/// Cached users; a full cache is cleared.
const MOST_USERS: usize = 64;

/// Rights of users, cleared when RBAC objects change. Empty if RBAC is unused, to save memory.
#[derive(Debug, Default)]
pub(super) struct Known(BTreeMap<String, (Vec<String>, Arc<Held>)>);

impl Known {
    pub(super) fn changed(&mut self, key: &Key) {
        if !self.0.is_empty() && key.resource.ends_with(RBAC) {
            self.0.clear();
        }
    }
}

impl Cluster {
    pub(crate) fn verdict(&mut self, user: &User, ask: &Ask) -> Verdict {
        user.verdict(ask).unwrap_or_else(|| self.held(user).verdict(ask))
    }

    pub(crate) fn authorize(&mut self, user: &User, ask: &Ask) -> Result<(), Refusal> {
        let verdict = self.verdict(user, ask);
        if verdict.allowed { Ok(()) } else { Err(ask.refusal(user, &verdict.reason)) }
    }

    fn held(&mut self, user: &User) -> Arc<Held> {
        if let Some((groups, held)) = self.known.0.get(&user.name)
            && *groups == user.groups
        {
            return Arc::clone(held);
        }
        let bindings = self.bindings("clusterrolebindings").chain(self.bindings("rolebindings"));
        let held = Arc::new(Held::of(user, bindings, |role, namespace| self.role(role, namespace)));
        if self.known.0.len() >= MOST_USERS {
            self.known.0.clear();
        }
        self.known.0.insert(user.name.clone(), (user.groups.clone(), Arc::clone(&held)));
        held
    }

    fn bindings(&self, plural: &str) -> impl Iterator<Item = Binding> {
        let objects = builtin::find(RBAC, "v1", plural).map(|kind| self.range(kind, ""));
        let objects = objects.into_iter().flatten();
        objects.map(|(key, stored)| Binding::of(&stored.render(), &key.namespace, &key.name))
    }

    fn role(&self, role: &RoleRef, namespace: &str) -> Result<Vec<PolicyRule>, Lacking> {
        let RoleRef { kind, name } = role;
        let lacking = || Lacking { singular: kind.to_lowercase(), name: name.clone() };
        let (plural, namespace) = if kind == "Role" { ("roles", namespace) } else { ("clusterroles", "") };
        let kind = builtin::find(RBAC, "v1", plural).ok_or_else(lacking)?;
        match self.objects.get(&Self::key(kind, namespace, name)) {
            Some(stored) => Ok(rules_of(&stored.render())),
            // Built in, unless stored.
            None if plural == "clusterroles" && name == "cluster-admin" => Ok(everything()),
            None => Err(lacking()),
        }
    }

    /// Users may only grant rights that they have, unless they may `escalate` or `bind`. `before`: the
    /// previous object.
    pub(super) fn confirm(
        &mut self,
        kind: &Kind,
        request: &Request,
        before: Option<&Value>,
        object: &Value,
    ) -> Result<(), Refusal> {
        let user = Arc::clone(&request.user);
        if kind.group != RBAC || user.access != Access::Rbac || user.may_all() {
            return Ok(());
        }
        if before.is_some_and(|before| same_but_for_holders(before, object)) {
            return Ok(());
        }
        let namespace = request.target.namespace.as_str();
        let ask = |verb: &str, resource: &str, name: &str| Ask::Resource {
            verb: verb.to_owned(),
            target: Target {
                group: RBAC.to_owned(),
                version: "v1".to_owned(),
                resource: resource.to_owned(),
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                subresource: String::new(),
            },
        };
        let wanted = if kind.plural.ends_with("bindings") {
            let role = RoleRef::of(object);
            let resource = if role.kind == "Role" { "roles" } else { "clusterroles" };
            if self.verdict(&user, &ask("bind", resource, &role.name)).allowed {
                return Ok(());
            }
            // Kubernetes reports the binding's kind.
            self.role(&role, namespace).map_err(|lacking| Refusal::not_found(kind, &lacking.name))?
        } else {
            // Creates are authorized without a name.
            if self.verdict(&user, &ask("escalate", &kind.plural, &request.target.name)).allowed {
                return Ok(());
            }
            // Aggregated roles may get any right.
            let aggregated = object.get("aggregationRule").is_some_and(|rule| !rule.is_null());
            if aggregated { everything() } else { rules_of(object) }
        };
        let held = self.held(&user);
        let missing = missing(&held.rules(namespace), &wanted);
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
        let troubles = held.troubles(namespace, Some(&kind.plural));
        if !troubles.is_empty() {
            why = format!("{why}; resolution errors: [{troubles}]");
        }
        Err(Refusal::forbidden(&kind.plural, RBAC, meta::name(object), &why))
    }

    /// Answers self-reviews, which are not stored.
    pub(super) fn review(&mut self, request: &Request) -> Result<Option<Outcome>, Refusal> {
        let target = &request.target;
        let Verb::Create(body) = &request.verb else { return Ok(None) };
        let user = &request.user;
        let answer = match (target.group.as_str(), target.version.as_str(), target.resource.as_str()) {
            ("authorization.k8s.io", "v1", "selfsubjectaccessreviews") => {
                let Verdict { allowed, reason } = self.verdict(user, &reviewed(body)?);
                let mut status = json!({"allowed": allowed});
                if !reason.is_empty() {
                    status["reason"] = reason.into();
                }
                let spec = body.get("spec").cloned().unwrap_or_default();
                json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "metadata": {},
                    "spec": spec, "status": status})
            }
            ("authentication.k8s.io", "v1", "selfsubjectreviews") => {
                json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {},
                    "status": {"userInfo": {"username": user.name, "groups": user.groups}}})
            }
            ("authorization.k8s.io" | "authentication.k8s.io", ..) => {
                return Err(Refusal::not_simulated(
                    "reviews other than SelfSubjectAccessReview and SelfSubjectReview",
                ));
            }
            _ => return Ok(None),
        };
        Ok(Some(Outcome::Object(Answer { code: 201, object: answer, warnings: Vec::new(), kind: None })))
    }
}

fn reviewed(body: &Value) -> Result<Ask, Refusal> {
    let [resource, path] = ["/spec/resourceAttributes", "/spec/nonResourceAttributes"]
        .map(|pointer| body.pointer(pointer).filter(|attributes| !attributes.is_null()));
    let text = |attributes: &Value, field: &str| {
        attributes.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    match (resource, path) {
        (Some(attributes), None) => Ok(Ask::Resource {
            verb: text(attributes, "verb"),
            target: Target {
                group: text(attributes, "group"),
                version: text(attributes, "version"),
                resource: text(attributes, "resource"),
                namespace: text(attributes, "namespace"),
                name: text(attributes, "name"),
                subresource: text(attributes, "subresource"),
            },
        }),
        (None, Some(attributes)) => Ok(Ask::path(&text(attributes, "verb"), &text(attributes, "path"))),
        _ => Err(Refusal::not_simulated("access reviews of nothing, and of two things at once")),
    }
}

/// Ignores the metadata that the garbage collector changes.
fn same_but_for_holders(before: &Value, after: &Value) -> bool {
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
