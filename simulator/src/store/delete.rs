//! delete and deletecollection.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    cluster::Cluster,
    log::Key,
    refusal::Refusal,
    request::{Answer, Listed, Outcome, Query, Request},
    rules::dry_run,
    selector::Selector,
};
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
/// Holds a CRD until its objects are gone.
pub(super) const CRD_CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Namespaces that nobody may delete.
const FOR_EVER: [&str; 3] = ["default", "kube-system", "kube-public"];

impl Cluster {
    pub(super) fn delete(
        &mut self,
        kind: &Arc<Kind>,
        request: &Request,
        options: &Value,
        now: Timestamp,
    ) -> Result<Outcome, Refusal> {
        let (dry, propagation, warnings) = how(kind, &request.query, options)?;
        let name = &request.target.name;
        if kind.plural == "namespaces" && kind.group.is_empty() && FOR_EVER.contains(&name.as_str()) {
            return Err(Refusal::forbidden("namespaces", "", name, "this namespace may not be deleted"));
        }
        let stored = self.lookup(kind, &request.target.namespace, name)?;
        preconditions(kind, &stored, options)?;
        if dry {
            return Ok(match Self::marked(kind, &stored, propagation, now) {
                Marked::Free => gone(kind, &stored),
                Marked::Held(object) => {
                    Outcome::Object(Answer { code: 200, object, warnings, kind: Some(Arc::clone(kind)) })
                }
                Marked::Waiting => Self::answer_with(kind, &stored, 200, warnings),
            });
        }
        let key = Self::key(kind, &request.target.namespace, name);
        match self.end(kind, &key, &stored, propagation, now) {
            Some(waiting) => Ok(Self::answer_with(kind, &waiting, 200, warnings)),
            None => Ok(gone(kind, &stored)),
        }
    }

    pub(super) fn delete_collection(
        &mut self,
        kind: &Arc<Kind>,
        request: &Request,
        options: &Value,
        now: Timestamp,
    ) -> Result<Outcome, Refusal> {
        let query = &request.query;
        let selector = Selector::parse(&query.label_selector, &query.field_selector, kind)?;
        let (dry, propagation, _) = how(kind, query, options)?;
        let all: Vec<(Key, Arc<Stored>)> = self
            .range(kind, &request.target.namespace)
            .filter(|(_, stored)| selector.matches_stored(kind, stored))
            .map(|(key, stored)| (key.clone(), Arc::clone(stored)))
            .collect();
        let mut items = Vec::new();
        for (key, stored) in all {
            preconditions(kind, &stored, options)?;
            items.push(Self::render(kind, &stored));
            if !dry {
                self.end(kind, &key, &stored, propagation, now);
            }
        }
        let revision = self.revision;
        Ok(Outcome::List(Listed {
            items,
            revision,
            next: String::new(),
            remaining: None,
            kind: Arc::clone(kind),
        }))
    }

    /// Deletes an object, or, if something holds it, marks it as deleted and returns it.
    pub(super) fn end(
        &mut self,
        kind: &Arc<Kind>,
        key: &Key,
        stored: &Arc<Stored>,
        propagation: Propagation,
        now: Timestamp,
    ) -> Option<Arc<Stored>> {
        match Self::marked(kind, stored, propagation, now) {
            Marked::Free => {
                self.remove(key);
                None
            }
            Marked::Waiting => Some(Arc::clone(stored)),
            Marked::Held(object) => Some(self.store(kind, object, now)),
        }
    }

    /// What a deletion makes of an object.
    fn marked(kind: &Kind, stored: &Stored, propagation: Propagation, now: Timestamp) -> Marked {
        let mut object = Self::render(kind, stored);
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
        let held = !finalizers.is_empty() || kind.is("", "namespaces");
        if !held {
            return Marked::Free;
        }
        if stored.is_deleted() && finalizers.len() == before {
            return Marked::Waiting;
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
        Marked::Held(object)
    }
}

/// What a deletion makes of an object.
enum Marked {
    /// It goes at once.
    Free,
    /// It was deleted before, and nothing changes.
    Waiting,
    /// Something holds it: it is marked as deleted.
    Held(Value),
}

/// What becomes of what an object owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Propagation {
    /// It goes afterwards.
    Background,
    /// It goes before.
    Foreground,
    /// It stays.
    Orphan,
}

const PODS_STAY: &str = "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning";

/// Whether it is but tried, what becomes of what the object owns, and a warning about that. A body says all of it:
/// beside one, the query counts for nothing.
fn how(kind: &Kind, query: &Query, options: &Value) -> Result<(bool, Propagation, Vec<String>), Refusal> {
    let mut query = query.clone();
    if !options.is_null() {
        let modes = options.get("dryRun").and_then(Value::as_array);
        query.dry_run = modes.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
        let policy = options.get("propagationPolicy").and_then(Value::as_str);
        policy.unwrap_or_default().clone_into(&mut query.propagation);
    }
    let dry = dry_run(&query, "DeleteOptions")?;
    let propagation = match options.get("orphanDependents").and_then(Value::as_bool) {
        Some(true) => Propagation::Orphan,
        Some(false) => Propagation::Background,
        // From before there was a choice.
        None if query.propagation.is_empty() && kind.is("batch", "jobs") => {
            return Ok((dry, Propagation::Orphan, vec![PODS_STAY.to_owned()]));
        }
        None => propagation(&query.propagation)?,
    };
    Ok((dry, propagation, Vec::new()))
}

/// Whether it is the object that is meant.
fn preconditions(kind: &Kind, stored: &Stored, options: &Value) -> Result<(), Refusal> {
    for (field, what, have) in [
        ("uid", "UID", stored.uid.to_string()),
        ("resourceVersion", "ResourceVersion", stored.revision.to_string()),
    ] {
        let wanted = options.get("preconditions").and_then(|all| all.get(field)).and_then(Value::as_str);
        if let Some(wanted) = wanted.filter(|wanted| *wanted != have) {
            return Err(Refusal::precondition(kind, stored.name(), what, wanted, &have));
        }
    }
    Ok(())
}

fn propagation(given: &str) -> Result<Propagation, Refusal> {
    match given {
        "" | "Background" => Ok(Propagation::Background),
        "Foreground" => Ok(Propagation::Foreground),
        "Orphan" => Ok(Propagation::Orphan),
        other => {
            let message = format!(
                "Unsupported value: {}: supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\"",
                Value::from(other)
            );
            let cause =
                crate::schema::validate::Cause::new("propagationPolicy", "FieldValueNotSupported", message);
            Err(Refusal::invalid("DeleteOptions", "meta.k8s.io", "", &[cause]))
        }
    }
}

/// Kinds of which the object itself is the answer.
const SHOWN: [(&str, &str); 3] =
    [("", "services"), ("", "serviceaccounts"), ("storage.k8s.io", "storageclasses")];

/// The answer for an object that is gone at once.
fn gone(kind: &Arc<Kind>, stored: &Stored) -> Outcome {
    if SHOWN.iter().any(|(group, plural)| kind.is(group, plural)) {
        return Cluster::answer_with(kind, stored, 200, Vec::new());
    }
    let mut details = json!({"name": &**stored.name(), "kind": kind.plural, "uid": stored.uid.to_string()});
    if !kind.group.is_empty() {
        details["group"] = kind.group.clone().into();
    }
    let object = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
    Outcome::Object(Answer { code: 200, object, warnings: Vec::new(), kind: None })
}
