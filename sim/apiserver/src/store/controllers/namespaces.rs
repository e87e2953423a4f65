//! Namespaces: deletes the content of deleted ones.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::conditions::same_conditions;
use crate::{
    kinds::{Kind, builtin},
    object::{Stored, meta, stored},
    store::{
        deletion::{self, Propagation},
        log::Key,
        render::render,
        state::State,
    },
};

/// Deletes the content of deleted namespaces.
pub(super) fn clean_up(state: &mut State, now: Timestamp) {
    let Some(kind) = builtin::find("", "v1", "namespaces") else { return };
    let terminating: Vec<(Key, Arc<Stored>)> =
        state.objects.terminating().filter(|(key, _)| key.resource == kind.storage).collect();
    for (key, stored) in terminating {
        delete_content(state, &key.name, now);
        if state.objects.content(&key.name).next().is_none() {
            finalize(state, kind, &key, &stored, now);
            continue;
        }
        let mut object = render(kind, &stored);
        if update_conditions(state, &mut object, &key.name, now) {
            state.write_status(kind, &stored, object, "kube-controller-manager", now);
        }
    }
}

fn delete_content(state: &mut State, namespace: &str, now: Timestamp) {
    let content: Vec<(Key, Arc<Stored>)> =
        state.objects.content(namespace).map(|(key, stored)| (key.clone(), Arc::clone(stored))).collect();
    for (key, stored) in content {
        if let (false, Some(kind)) = (stored.is_deleted(), state.served.kind_of(&key)) {
            deletion::delete(state, &kind, &key, &stored, Propagation::Background, now);
        }
    }
}

/// Removes an empty namespace, unless other finalizers keep it.
fn finalize(state: &mut State, kind: &Kind, key: &Key, stored: &Stored, now: Timestamp) {
    let mut object = render(kind, stored);
    if meta::finalizers(&object).is_empty() {
        state.remove(key);
        return;
    }
    let mut changed = update_conditions(state, &mut object, &key.name, now);
    if object.pointer("/spec/finalizers").is_some() {
        meta::child_mut(&mut object, "spec").remove("finalizers");
        changed = true;
    }
    if changed {
        state.store(kind, object, now);
    }
}

/// Returns whether the conditions changed.
fn update_conditions(state: &State, object: &mut Value, namespace: &str, now: Timestamp) -> bool {
    let conditions = Content::of(state, namespace).conditions(now);
    if same_conditions(object.pointer("/status/conditions"), &conditions) {
        return false;
    }
    meta::child_mut(object, "status").insert("conditions".into(), conditions);
    true
}

/// Numbers of a namespace's objects.
#[derive(Default)]
struct Content {
    by_resource: Counts,
    by_finalizer: Counts,
}

/// Counts in order of appearance.
#[derive(Default)]
struct Counts(Vec<(String, usize)>);

impl Counts {
    fn add(&mut self, name: &str) {
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, count)) => *count += 1,
            None => self.0.push((name.to_owned(), 1)),
        }
    }

    /// `verb`: between name and count.
    fn text(&self, verb: &str) -> String {
        let part = |(name, count): &(String, usize)| format!("{name} {verb} {count} resource instances");
        self.0.iter().map(part).collect::<Vec<_>>().join(", ")
    }
}

impl Content {
    fn of(state: &State, namespace: &str) -> Self {
        let mut content = Self::default();
        for (key, stored) in state.objects.content(namespace) {
            // Kubernetes appends the dot to core resources.
            let dot = if key.resource.contains('.') { "" } else { "." };
            content.by_resource.add(&format!("{}{dot}", key.resource));
            for finalizer in meta::finalizers(&stored.render()) {
                content.by_finalizer.add(finalizer);
            }
        }
        content
    }

    fn conditions(&self, now: Timestamp) -> Value {
        let time = stored::time(now.as_second());
        let condition = |kind: &str, is_true: bool, reason: &str, message: &str| json!({"type": kind, "status": if is_true { "True" } else { "False" }, "reason": reason, "message": message, "lastTransitionTime": time});
        let content = if self.by_resource.0.is_empty() {
            let message = "All content successfully removed";
            condition("NamespaceContentRemaining", false, "ContentRemoved", message)
        } else {
            let message = format!("Some resources are remaining: {}", self.by_resource.text("has"));
            condition("NamespaceContentRemaining", true, "SomeResourcesRemain", &message)
        };
        let finalizers = if self.by_finalizer.0.is_empty() {
            let message = "All content-preserving finalizers finished";
            condition("NamespaceFinalizersRemaining", false, "ContentHasNoFinalizers", message)
        } else {
            let finalizers = self.by_finalizer.text("in");
            let message = format!("Some content in the namespace has finalizers remaining: {finalizers}");
            condition("NamespaceFinalizersRemaining", true, "SomeFinalizersRemain", &message)
        };
        json!([
            condition(
                "NamespaceDeletionDiscoveryFailure",
                false,
                "ResourcesDiscovered",
                "All resources successfully discovered"
            ),
            condition(
                "NamespaceDeletionGroupVersionParsingFailure",
                false,
                "ParsedGroupVersions",
                "All legacy kube types successfully parsed"
            ),
            condition(
                "NamespaceDeletionContentFailure",
                false,
                "ContentDeleted",
                "All content successfully deleted, may be waiting on finalization"
            ),
            content,
            finalizers,
        ])
    }
}
