//! Reviews of rights.

use serde_json::{Value, json};

use super::{
    refusal::Refusal,
    request::{Answer, Outcome, Request},
    state::State,
    target::{Target, Verb},
};
use crate::{
    authz::{Ask, Authorization, User},
    json::{list, text},
    schema::validate::Cause,
};

/// Answers reviews, which are not stored.
pub(super) fn review(state: &mut State, request: &Request) -> Result<Option<Outcome>, Refusal> {
    let target = &request.target;
    let Verb::Create(body) = &request.verb else { return Ok(None) };
    let user = &request.user;
    let answer = match (target.group.as_str(), target.version.as_str(), target.resource.as_str()) {
        ("authorization.k8s.io", "v1", "selfsubjectaccessreviews") => {
            access(state, user, body, "SelfSubjectAccessReview")?
        }
        ("authorization.k8s.io", "v1", "subjectaccessreviews") => {
            access(state, &other(body)?, body, "SubjectAccessReview")?
        }
        ("authentication.k8s.io", "v1", "selfsubjectreviews") => {
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {},
                    "status": {"userInfo": about(user)}})
        }
        ("authorization.k8s.io" | "authentication.k8s.io", ..) => {
            return Err(Refusal::not_simulated(
                "reviews other than SelfSubjectAccessReview, SubjectAccessReview and SelfSubjectReview",
            ));
        }
        _ => return Ok(None),
    };
    Ok(Some(Outcome::Object(Answer { code: 201, object: answer, warnings: Vec::new(), kind: None })))
}

fn access(state: &mut State, user: &User, body: &Value, kind: &str) -> Result<Value, Refusal> {
    let Authorization { allowed, reason } = state.rights.verdict(&state.objects, user, &reviewed(body)?);
    let mut status = json!({"allowed": allowed});
    if !reason.is_empty() {
        status["reason"] = reason.into();
    }
    let spec = body.get("spec").cloned().unwrap_or_default();
    Ok(json!({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "metadata": {}, "spec": spec,
              "status": status}))
}

/// The user that a review of another's rights names.
fn other(body: &Value) -> Result<User, Refusal> {
    let spec = &body["spec"];
    let (name, groups) = (text(spec, "user"), list(&spec["groups"]));
    if name.is_empty() && groups.is_empty() {
        let why = "at least one of user or group must be specified";
        let cause = Cause::invalid("spec.user", &"".into(), why);
        return Err(Refusal::invalid("SubjectAccessReview", "authorization.k8s.io", "", &[cause]));
    }
    // Exactly the groups of the request, without those that authentication would add.
    let groups = groups.iter().filter_map(Value::as_str).map(str::to_owned).collect();
    Ok(User { groups, ..User::by_rbac(name, &[]) })
}

/// Like in Kubernetes, without empty fields.
fn about(user: &User) -> Value {
    let mut about = json!({"username": user.name, "groups": user.groups});
    if !user.uid.is_empty() {
        about["uid"] = user.uid.clone().into();
    }
    if !user.extra.is_empty() {
        about["extra"] = json!(user.extra);
    }
    about
}

fn reviewed(body: &Value) -> Result<Ask, Refusal> {
    let [resource, path] = ["/spec/resourceAttributes", "/spec/nonResourceAttributes"]
        .map(|pointer| body.pointer(pointer).filter(|attributes| !attributes.is_null()));
    let text = |attributes: &Value, field: &str| text(attributes, field).to_owned();
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
        _ => Err(Refusal::not_simulated("access reviews without exactly one kind of attributes")),
    }
}
