//! `APIServices`. Only local ones are available: nothing runs behind Services, so their requests get 503.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::conditions::same_conditions;
use crate::{
    json::{list, text},
    kinds::{Kind, builtin},
    object::{Stored, meta, stored},
    store::{render::render, state::State},
};

const GROUP: &str = "apiregistration.k8s.io";
const PLURAL: &str = "apiservices";

pub(crate) fn is_api_service(kind: &Kind) -> bool {
    kind.is(GROUP, PLURAL)
}

/// Initial status; those of Services are judged later.
pub(crate) fn first_status(object: &Value) -> Option<Value> {
    let local = object.pointer("/spec/service").is_none();
    let time = object.pointer("/metadata/creationTimestamp").cloned().unwrap_or_default();
    local.then(|| json!({"conditions": [local_condition(&time)]}))
}

fn local_condition(time: &Value) -> Value {
    condition("True", "Local", "Local APIServices are always available", time)
}

fn condition(status: &str, reason: &str, message: &str, time: &Value) -> Value {
    json!({"type": "Available", "status": status, "reason": reason, "message": message, "lastTransitionTime": time})
}

fn api_services(state: &State) -> impl Iterator<Item = (&Arc<Kind>, &Arc<Stored>)> {
    let kind = builtin::find(GROUP, "v1", PLURAL);
    kind.into_iter().flat_map(|kind| state.objects.range(kind, "").map(move |(_, stored)| (kind, stored)))
}

/// Group versions delegated to Services.
pub(crate) fn delegated(state: &State) -> impl Iterator<Item = (String, String)> {
    let all = api_services(state).map(|(_, stored)| stored.render());
    let all = all.filter(|object| object.pointer("/spec/service").is_some());
    let named = all.map(|object| {
        let spec = &object["spec"];
        (text(spec, "group").to_owned(), text(spec, "version").to_owned())
    });
    // Locally served versions are not delegated.
    named.filter(|(group, version)| !state.served.has_group_version(group, version))
}

/// Updates changed availability.
pub(super) fn update(state: &mut State, now: Timestamp) {
    let time = stored::time(now.as_second());
    let all: Vec<_> =
        api_services(state).map(|(kind, stored)| (Arc::clone(kind), Arc::clone(stored))).collect();
    for (kind, stored) in all {
        let mut object = render(&kind, &stored);
        let conditions = json!([availability(state, &object, &time)]);
        if !same_conditions(object.pointer("/status/conditions"), &conditions) {
            meta::child_mut(&mut object, "status").insert("conditions".into(), conditions);
            state.write_status(&kind, &stored, object, "kube-apiserver", now);
        }
    }
}

fn availability(state: &State, object: &Value, time: &Value) -> Value {
    let Some(wanted) = object.pointer("/spec/service") else { return local_condition(time) };
    let (name, namespace) = (text(wanted, "name"), text(wanted, "namespace"));
    let service = format!("service/{name} in {}", Value::from(namespace));
    let kind = builtin::find("", "v1", "services");
    let found = kind.and_then(|kind| state.objects.find(kind, namespace, name));
    let Some(found) = found.map(|stored| stored.render()) else {
        return condition("False", "ServiceNotFound", &format!("{service} is not present"), time);
    };
    let port = &wanted["port"];
    if !list(&found["spec"]["ports"]).iter().any(|one| one["port"] == *port) {
        let why = format!("{service} is not listening on port {port}");
        return condition("False", "ServicePortError", &why, time);
    }
    condition("False", "EndpointsNotFound", &format!("cannot find endpointslices for {service}"), time)
}
