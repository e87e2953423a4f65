//! Marks objects for deletion, or removes them.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{log::Key, render::render, state::State};
use crate::{
    kinds::Kind,
    object::{
        Stored,
        meta::{self, metadata_mut},
        stored,
    },
};

pub(super) const FOREGROUND: &str = "foregroundDeletion";
pub(super) const ORPHAN: &str = "orphan";
/// Keeps a CRD until its objects are gone.
pub(super) const CRD_CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Result of a deletion.
pub(super) enum Marked {
    /// Removed at once.
    Removed,
    /// Already deleted and unchanged.
    Unchanged,
    /// Marked, with finalizers or content.
    Kept(Value),
    /// Marked for grace, then removed, since nothing runs.
    RemovedAfterGrace(Value),
}

/// Handling of dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Propagation {
    /// Deleted afterwards.
    Background,
    /// Deleted first.
    Foreground,
    /// Kept.
    Orphan,
}

/// Deletes or marks an object; returns the marked one.
pub(super) fn delete(
    state: &mut State,
    kind: &Kind,
    key: &Key,
    stored: &Arc<Stored>,
    propagation: Propagation,
    now: Timestamp,
) -> Option<Arc<Stored>> {
    match mark(kind, stored, propagation, now) {
        Marked::Removed => {
            state.remove(key);
            None
        }
        Marked::Unchanged => Some(Arc::clone(stored)),
        Marked::Kept(object) => Some(state.store(kind, object, now)),
        Marked::RemovedAfterGrace(object) => {
            let marked = state.store(kind, object, now);
            state.remove(key);
            Some(marked)
        }
    }
}

/// Computes the effect of a deletion.
pub(super) fn mark(kind: &Kind, stored: &Stored, propagation: Propagation, now: Timestamp) -> Marked {
    let mut object = render(kind, stored);
    let mut finalizers: Vec<String> = meta::finalizers(&object).into_iter().map(str::to_owned).collect();
    let before = finalizers.len();
    let extra = match propagation {
        Propagation::Foreground => Some(FOREGROUND),
        Propagation::Orphan => Some(ORPHAN),
        Propagation::Background => None,
    };
    let crd = kind.is("apiextensions.k8s.io", "customresourcedefinitions").then_some(CRD_CLEANUP);
    for one in [extra, crd].into_iter().flatten() {
        if !finalizers.iter().any(|have| have == one) {
            finalizers.push(one.to_owned());
        }
    }
    let is_kept = !finalizers.is_empty() || kind.is("", "namespaces");
    let is_graceful = kind.is("", "pods");
    if !is_kept && !is_graceful {
        return Marked::Removed;
    }
    if stored.is_deleted() && finalizers.len() == before {
        return Marked::Unchanged;
    }
    if kind.is("", "namespaces") {
        meta::child_mut(&mut object, "status").insert("phase".into(), json!("Terminating"));
    }
    let metadata = metadata_mut(&mut object);
    if !finalizers.is_empty() {
        metadata.insert("finalizers".into(), json!(finalizers));
    }
    if !stored.is_deleted() {
        metadata.insert("deletionTimestamp".into(), stored::time(now.as_second()));
        if crd.is_none() && !kind.is("", "namespaces") {
            metadata.insert("deletionGracePeriodSeconds".into(), json!(0));
        }
        if crd.is_none() && stored.generation > 0 {
            metadata.insert("generation".into(), json!(stored.generation + 1));
        }
    }
    if let (Some(_), false, Some(Value::Array(conditions))) =
        (crd, stored.is_deleted(), object.pointer_mut("/status/conditions"))
    {
        conditions.push(json!({
            "type": "Terminating", "status": "True", "reason": "InstanceDeletionPending",
            "message": "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
            "lastTransitionTime": stored::time(now.as_second()),
        }));
    }
    if is_kept { Marked::Kept(object) } else { Marked::RemovedAfterGrace(object) }
}
