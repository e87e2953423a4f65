//! CRDs: establishes new ones, and deletes the objects of deleted ones.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::garbage;
use crate::{
    object::{Stored, meta, stored},
    store::{
        definitions::{is_established, served_key},
        deletion::{self, CRD_CLEANUP, Propagation},
        log::Key,
        render::render,
        state::{CRDS, State},
    },
};

pub(super) fn establish(state: &mut State, key: &Key, now: Timestamp) {
    let (Some(stored), Some(kind)) = (state.objects.get(key).cloned(), state.served.kind_of(key)) else {
        return;
    };
    let mut object = render(&kind, &stored);
    let established = is_established(&object);
    let time = stored::time(now.as_second());
    let condition = |kind: &str, reason: &str, message: &str| json!({"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": time});
    let names = object.pointer("/spec/names").cloned().unwrap_or_default();
    let status = meta::child_mut(&mut object, "status");
    status.insert("acceptedNames".into(), names);
    let conditions = status.get("conditions").cloned().filter(|_| established);
    status.insert(
        "conditions".into(),
        conditions.unwrap_or(json!([
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ])),
    );
    state.write_status(&kind, &stored, object, "kube-apiserver", now);
}

/// Deletes the objects of deleted CRDs.
pub(super) fn clean_up(state: &mut State, now: Timestamp) {
    let terminating: Vec<(Key, Arc<Stored>)> =
        state.objects.terminating().filter(|(key, _)| &*key.resource == CRDS).collect();
    for (key, stored) in terminating {
        let mut object = stored.render();
        let is_left = delete_objects(state, &served_key(&object), now);
        let Some(kind) = state.served.kind_of(&key) else { continue };
        if !is_left && meta::finalizers(&object).contains(&CRD_CLEANUP) {
            garbage::release(state, &kind, &key, CRD_CLEANUP, now);
            continue;
        }
        let conditions = object.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
        let pending = conditions.into_iter().flatten().find(|one| one["reason"] == "InstanceDeletionPending");
        if let Some(Value::Object(pending)) = pending.filter(|_| is_left) {
            pending.insert("reason".into(), "InstanceDeletionInProgress".into());
            pending.insert("message".into(), "CustomResource deletion is in progress".into());
            state.store(&kind, object, now);
        }
    }
}

/// Returns whether finalizers keep objects.
fn delete_objects(state: &mut State, resource: &str, now: Timestamp) -> bool {
    let objects: Vec<(Key, Arc<Stored>)> =
        state.objects.of_resource(resource).map(|(key, stored)| (key.clone(), Arc::clone(stored))).collect();
    let mut is_left = false;
    for (key, stored) in objects {
        if let Some(kind) = state.served.kind_of(&key) {
            is_left |= deletion::delete(state, &kind, &key, &stored, Propagation::Background, now).is_some();
        }
    }
    is_left
}
