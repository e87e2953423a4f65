//! Garbage collector.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    cluster::Cluster,
    delete::{FOREGROUND, ORPHAN, Propagation},
    log::Key,
};
use crate::{
    fields::managed::{Door, Writer},
    kinds::Kind,
    object::{
        Stored,
        meta::{self, metadata_mut},
    },
};

impl Cluster {
    /// Deletes objects without existing owners; otherwise removes lost owners.
    pub(super) fn collect(&mut self, now: Timestamp) {
        while let Some(key) = self.suspects.pop_first() {
            let Some(stored) = self.objects.get(&key).filter(|stored| !stored.is_deleted()).cloned() else {
                continue;
            };
            let object = stored.render();
            let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
            let owners = owners.map_or(&[][..], Vec::as_slice);
            let there: Vec<Option<bool>> = owners.iter().map(|owner| self.is_there(owner, &key)).collect();
            let Some(kind) = self.kind_of(&key) else { continue };
            if !there.is_empty() && there.iter().all(|there| *there == Some(false)) {
                self.end(&kind, &key, &stored, Propagation::Background, now);
            } else if there.contains(&Some(false)) && !there.contains(&None) {
                let gone: Vec<Value> = owners
                    .iter()
                    .zip(&there)
                    .filter(|(_, there)| **there == Some(false))
                    .map(|(o, _)| o.clone())
                    .collect();
                let mut object = Self::render(&kind, &stored);
                drop_from(&mut object, "ownerReferences", |owner| gone.contains(owner));
                self.write_as(&writer(&kind), &kind, &stored, object, now);
            }
        }
    }

    /// `None`: the kind is not served, so existence is unknown.
    fn is_there(&self, reference: &Value, dependent: &Key) -> Option<bool> {
        let text = |field: &str| reference.get(field).and_then(Value::as_str).unwrap_or_default();
        let named = |kind: &&Arc<Kind>| kind.kind == text("kind") && kind.api_version() == text("apiVersion");
        let kind = self.kinds().find(named)?;
        if kind.namespaced && dependent.namespace.is_empty() {
            return None;
        }
        let owner = self.objects.get(&Self::key(kind, &dependent.namespace, text("name")));
        Some(owner.is_some_and(|owner| owner.uid.to_string() == text("uid")))
    }

    pub(super) fn propagate(&mut self, now: Timestamp) {
        let waiting: Vec<(Key, Arc<Stored>)> = self.deleted().collect();
        for (key, stored) in waiting {
            let object = stored.render();
            let finalizers = meta::finalizers(&object);
            let Some(kind) = self.kind_of(&key) else { continue };
            let dependents = self.dependents.get(&stored.uid).cloned().unwrap_or_default();
            if finalizers.contains(&ORPHAN) {
                for dependent in &dependents {
                    self.disown(dependent, stored.uid, now);
                }
                self.release(&kind, &key, ORPHAN, now);
            } else if finalizers.contains(&FOREGROUND) {
                for dependent in &dependents {
                    let Some(owned) = self.objects.get(dependent).cloned() else { continue };
                    if let (false, Some(kind)) = (owned.is_deleted(), self.kind_of(dependent)) {
                        self.end(&kind, dependent, &owned, Propagation::Foreground, now);
                    }
                }
                let left = self.dependents.get(&stored.uid);
                if left.is_none_or(|left| !left.iter().any(|key| self.blocks(key, stored.uid))) {
                    self.release(&kind, &key, FOREGROUND, now);
                }
            }
        }
    }

    fn blocks(&self, dependent: &Key, owner: Uuid) -> bool {
        let Some(stored) = self.objects.get(dependent) else { return false };
        let object = stored.render();
        let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
        owners.into_iter().flatten().any(|reference| {
            is_of(reference, owner) && reference.get("blockOwnerDeletion") == Some(&json!(true))
        })
    }

    fn disown(&mut self, dependent: &Key, owner: Uuid, now: Timestamp) {
        let (Some(stored), Some(kind)) = (self.objects.get(dependent).cloned(), self.kind_of(dependent))
        else {
            return;
        };
        let mut object = Self::render(&kind, &stored);
        drop_from(&mut object, "ownerReferences", |reference| is_of(reference, owner));
        self.write_as(&writer(&kind), &kind, &stored, object, now);
    }

    /// Removes a finalizer; without others, the object.
    pub(super) fn release(&mut self, kind: &Kind, key: &Key, finalizer: &str, now: Timestamp) {
        let Some(stored) = self.objects.get(key).cloned() else { return };
        let mut object = Self::render(kind, &stored);
        drop_from(&mut object, "finalizers", |one| one == finalizer);
        // Namespaces also wait for content.
        if meta::finalizers(&object).is_empty() && !kind.is("", "namespaces") {
            self.remove(key);
            return;
        }
        self.write_as(&writer(kind), kind, &stored, object, now);
    }
}

fn writer(kind: &Kind) -> Writer {
    Writer {
        manager: "kube-controller-manager".to_owned(),
        api_version: kind.api_version(),
        subresource: String::new(),
        door: Door::Whole,
    }
}

fn is_of(reference: &Value, owner: Uuid) -> bool {
    reference.get("uid").and_then(Value::as_str) == Some(&owner.to_string())
}

/// Removes an emptied list too.
fn drop_from(object: &mut Value, list: &str, goes: impl Fn(&Value) -> bool) {
    let metadata = metadata_mut(object);
    let Some(items) = metadata.get_mut(list).and_then(Value::as_array_mut) else { return };
    items.retain(|item| !goes(item));
    if items.is_empty() {
        metadata.remove(list);
    }
}
