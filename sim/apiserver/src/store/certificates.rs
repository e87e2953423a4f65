//! `CertificateSigningRequests`: server-set fields, and the rights to approve and to sign.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{refusal::Refusal, request::Request, state::State, target::Target};
use crate::{
    authz::{Ask, MASTERS, User},
    json::{list, text},
    kinds::{Kind, certificates},
    object::{
        meta::{self, child_mut, put},
        stored,
    },
};

/// Issues certificates for users of the API server.
const USER_SIGNER: &str = "kubernetes.io/kube-apiserver-client";
/// Only `/approval` changes them.
const DECISIONS: [&str; 2] = ["Approved", "Denied"];

/// Sets the requesting user, whatever the request says.
pub(super) fn set_requester(object: &mut Value, user: &User) {
    let spec = child_mut(object, "spec");
    put(spec, "username", Some(json!(user.name)).filter(|_| !user.name.is_empty()));
    put(spec, "uid", Some(json!(user.uid)).filter(|_| !user.uid.is_empty()));
    put(spec, "groups", Some(json!(user.groups)).filter(|_| !user.groups.is_empty()));
    put(spec, "extra", Some(json!(user.extra)).filter(|_| !user.extra.is_empty()));
}

/// Restores the status except for the conditions.
pub(super) fn keep_all_but_conditions(object: &mut Value, live: &Value) {
    let conditions = object.pointer("/status/conditions").cloned();
    let mut status = live.get("status").cloned().unwrap_or_else(|| json!({}));
    put(meta::as_object(&mut status), "conditions", conditions);
    put(meta::as_object(object), "status", Some(status));
}

/// Restores the content of decisions. Added and removed ones stay so, to be refused.
pub(super) fn keep_decision(object: &mut Value, live: &Value) {
    for decision in DECISIONS {
        let is_decision = |condition: &&Value| condition["type"] == decision;
        let before: Vec<Value> =
            list(&live["status"]["conditions"]).iter().filter(is_decision).cloned().collect();
        let Some(Value::Array(conditions)) = object.pointer_mut("/status/conditions") else { return };
        let after = conditions.iter_mut().filter(|condition| condition["type"] == decision);
        let after: Vec<&mut Value> = after.collect();
        if after.len() == before.len() {
            after.into_iter().zip(before).for_each(|(new, old)| *new = old);
        }
    }
}

/// Sets missing times of conditions.
pub(super) fn set_times(object: &mut Value, live: &Value, now: Timestamp) {
    let now = stored::time(now.as_second());
    let before = list(&live["status"]["conditions"]);
    let conditions = object.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten().filter(|condition| condition.is_object()) {
        let same = |old: &&Value| ["type", "status"].iter().all(|field| old[*field] == condition[*field]);
        let transition = before.iter().find(same).map(|old| old["lastTransitionTime"].clone());
        let times = [
            ("lastUpdateTime", now.clone()),
            ("lastTransitionTime", transition.filter(Value::is_string).unwrap_or_else(|| now.clone())),
        ];
        for (field, time) in times {
            if condition[field].is_null() {
                condition[field] = time;
            }
        }
    }
}

/// As the admission plugin `CertificateSubjectRestriction` does: no request for an administrator.
pub(super) fn check_subject(kind: &Kind, object: &Value) -> Result<(), Refusal> {
    let organizations = certificates::organizations(&object["spec"]["request"]).unwrap_or_default();
    if text(&object["spec"], "signerName") != USER_SIGNER || !organizations.iter().any(|one| one == MASTERS) {
        return Ok(());
    }
    let why = format!("use of {USER_SIGNER} signer with {MASTERS} group is not allowed");
    Err(Refusal::forbidden(&kind.plural, &kind.group, meta::name(object), &why))
}

/// As the admission plugins `CertificateApproval` and `CertificateSigning` do.
pub(super) fn authorize(
    state: &mut State,
    kind: &Kind,
    request: &Request,
    live: &Value,
    object: &Value,
) -> Result<(), Refusal> {
    let changed = |field: &str| live["status"].get(field) != object["status"].get(field);
    let verb = match request.target.subresource.as_str() {
        "approval" => "approve",
        "status" if changed("certificate") || changed("conditions") => "sign",
        _ => return Ok(()),
    };
    let signer = text(&live["spec"], "signerName");
    let domain = signer.split('/').next().unwrap_or_default();
    let mut may = |name: String| {
        let target = Target {
            group: kind.group.clone(),
            version: "*".to_owned(),
            resource: "signers".to_owned(),
            name,
            ..Target::default()
        };
        let ask = Ask::Resource { verb: verb.to_owned(), target };
        state.rights.verdict(&state.objects, &request.user, &ask).allowed
    };
    if may(signer.to_owned()) || may(format!("{domain}/*")) {
        return Ok(());
    }
    let why = format!("user not permitted to {verb} requests with signerName {signer:?}");
    Err(Refusal::forbidden(&kind.plural, &kind.group, meta::name(live), &why))
}
