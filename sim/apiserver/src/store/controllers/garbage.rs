//! Garbage collection of dependents.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    fields::managed::{FieldScope, Writer},
    kinds::Kind,
    object::{
        Stored,
        meta::{self, metadata_mut},
    },
    store::{
        deletion::{self, FOREGROUND, ORPHAN, Propagation},
        log::Key,
        render::render,
        state::State,
    },
};

/// Deletes objects without existing owners; otherwise removes lost owners.
pub(super) fn collect(state: &mut State, now: Timestamp) {
    while let Some(key) = state.objects.next_suspect() {
        let Some(stored) = state.objects.get(&key).filter(|stored| !stored.is_deleted()).cloned() else {
            continue;
        };
        let object = stored.render();
        let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
        let owners = owners.map_or(&[][..], Vec::as_slice);
        let exist: Vec<Option<bool>> = owners.iter().map(|owner| exists(state, owner, &key)).collect();
        let Some(kind) = state.served.kind_of(&key) else { continue };
        if !exist.is_empty() && exist.iter().all(|exists| *exists == Some(false)) {
            deletion::delete(state, &kind, &key, &stored, Propagation::Background, now);
        } else if exist.contains(&Some(false)) && !exist.contains(&None) {
            let gone: Vec<Value> = owners
                .iter()
                .zip(&exist)
                .filter(|(_, exists)| **exists == Some(false))
                .map(|(owner, _)| owner.clone())
                .collect();
            let mut object = render(&kind, &stored);
            drop_from(&mut object, "ownerReferences", |owner| gone.contains(owner));
            state.write_as(&writer(&kind), &kind, &stored, object, now);
        }
    }
}

/// `None`: the kind is not served, so existence is unknown.
fn exists(state: &State, reference: &Value, dependent: &Key) -> Option<bool> {
    let text = |field: &str| reference.get(field).and_then(Value::as_str).unwrap_or_default();
    let named = |kind: &&Arc<Kind>| kind.kind == text("kind") && kind.api_version() == text("apiVersion");
    let kind = state.served.kinds().find(named)?;
    if kind.namespaced && dependent.namespace.is_empty() {
        return None;
    }
    let owner = state.objects.find(kind, &dependent.namespace, text("name"));
    Some(owner.is_some_and(|owner| owner.uid.to_string() == text("uid")))
}

/// Deletes or orphans the dependents of deleted owners.
pub(super) fn propagate(state: &mut State, now: Timestamp) {
    let terminating: Vec<(Key, Arc<Stored>)> = state.objects.terminating().collect();
    for (key, stored) in terminating {
        let object = stored.render();
        let finalizers = meta::finalizers(&object);
        let Some(kind) = state.served.kind_of(&key) else { continue };
        let dependents = state.objects.dependents(stored.uid);
        if finalizers.contains(&ORPHAN) {
            for dependent in &dependents {
                disown(state, dependent, stored.uid, now);
            }
            release(state, &kind, &key, ORPHAN, now);
        } else if finalizers.contains(&FOREGROUND) {
            for dependent in &dependents {
                let Some(owned) = state.objects.get(dependent).cloned() else { continue };
                if let (false, Some(kind)) = (owned.is_deleted(), state.served.kind_of(dependent)) {
                    deletion::delete(state, &kind, dependent, &owned, Propagation::Foreground, now);
                }
            }
            let left = state.objects.dependents(stored.uid);
            if !left.iter().any(|key| blocks(state, key, stored.uid)) {
                release(state, &kind, &key, FOREGROUND, now);
            }
        }
    }
}

fn blocks(state: &State, dependent: &Key, owner: Uuid) -> bool {
    let Some(stored) = state.objects.get(dependent) else { return false };
    let object = stored.render();
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    owners.into_iter().flatten().any(|reference| {
        references(reference, owner) && reference.get("blockOwnerDeletion") == Some(&json!(true))
    })
}

fn disown(state: &mut State, dependent: &Key, owner: Uuid, now: Timestamp) {
    let (Some(stored), Some(kind)) = (state.objects.get(dependent).cloned(), state.served.kind_of(dependent))
    else {
        return;
    };
    let mut object = render(&kind, &stored);
    drop_from(&mut object, "ownerReferences", |reference| references(reference, owner));
    state.write_as(&writer(&kind), &kind, &stored, object, now);
}

/// Removes a finalizer; without others, the object.
pub(super) fn release(state: &mut State, kind: &Kind, key: &Key, finalizer: &str, now: Timestamp) {
    let Some(stored) = state.objects.get(key).cloned() else { return };
    let mut object = render(kind, &stored);
    drop_from(&mut object, "finalizers", |one| one == finalizer);
    // Namespaces also wait for content.
    if meta::finalizers(&object).is_empty() && !kind.is("", "namespaces") {
        state.remove(key);
        return;
    }
    state.write_as(&writer(kind), kind, &stored, object, now);
}

fn writer(kind: &Kind) -> Writer {
    Writer {
        manager: "kube-controller-manager".to_owned(),
        api_version: kind.api_version(),
        subresource: String::new(),
        scope: FieldScope::Whole,
    }
}

fn references(reference: &Value, owner: Uuid) -> bool {
    reference.get("uid").and_then(Value::as_str) == Some(&owner.to_string())
}

/// Removes an emptied list too.
fn drop_from(object: &mut Value, list: &str, is_dropped: impl Fn(&Value) -> bool) {
    let metadata = metadata_mut(object);
    let Some(items) = metadata.get_mut(list).and_then(Value::as_array_mut) else { return };
    items.retain(|item| !is_dropped(item));
    if items.is_empty() {
        metadata.remove(list);
    }
}
