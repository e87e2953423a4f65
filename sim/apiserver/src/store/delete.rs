//! delete and deletecollection.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    cluster::Cluster,
    log::Key,
    options,
    refusal::Refusal,
    request::{Answer, Outcome, Query, Request},
};
use crate::{
    kinds::Kind,
    object::{
        Stored,
        meta::{self, metadata_mut},
        stored,
    },
    schema::validate::Cause,
};

pub(super) const FOREGROUND: &str = "foregroundDeletion";
pub(super) const ORPHAN: &str = "orphan";
/// Keeps a CRD until its objects are gone.
pub(super) const CRD_CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

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
                Marked::Held(object) | Marked::Passing(object) => {
                    Outcome::Object(Answer { code: 200, object, warnings, kind: Some(Arc::clone(kind)) })
                }
                Marked::Waiting => Self::answer_with(kind, &stored, 200, warnings),
            });
        }
        let key = Self::key(kind, &request.target.namespace, name);
        match self.end(kind, &key, &stored, propagation, now) {
            Some(marked) => Ok(Self::answer_with(kind, &marked, 200, warnings)),
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
        let Outcome::List(listed) = self.list(kind, request)? else { return Err(Refusal::unknown_path()) };
        let (dry, propagation, _) = how(kind, &request.query, options)?;
        for item in &listed.items {
            let key = Self::key(kind, meta::text(item, "namespace").unwrap_or_default(), meta::name(item));
            let Some(stored) = self.objects.get(&key).cloned() else { continue };
            preconditions(kind, &stored, options)?;
            if !dry {
                self.end(kind, &key, &stored, propagation, now);
            }
        }
        Ok(Outcome::List(listed))
    }

    /// Deletes or marks an object; returns the marked one.
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
            Marked::Passing(object) => {
                let marked = self.store(kind, object, now);
                self.remove(key);
                Some(marked)
            }
        }
    }

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
        let graceful = kind.is("", "pods");
        if !held && !graceful {
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
        if held { Marked::Held(object) } else { Marked::Passing(object) }
    }
}

/// Result of a deletion.
enum Marked {
    /// Removed at once.
    Free,
    /// Already deleted and unchanged.
    Waiting,
    /// Marked, with finalizers or content.
    Held(Value),
    /// Marked for grace, then removed, since nothing runs.
    Passing(Value),
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

const PODS_STAY: &str = "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning";

/// Returns dry run, propagation and warnings.
fn how(kind: &Kind, query: &Query, options: &Value) -> Result<(bool, Propagation, Vec<String>), Refusal> {
    let query = options::of_delete(query, options)?;
    let (dry, mode) = options::dry_run(&query);
    let (propagation, mut causes) = propagation(&query);
    causes.extend(mode);
    options::refuse("DeleteOptions", &causes)?;
    // Default of old clients.
    if query.orphan.is_none() && query.propagation.is_none() && kind.is("batch", "jobs") {
        return Ok((dry, Propagation::Orphan, vec![PODS_STAY.to_owned()]));
    }
    Ok((dry, propagation, Vec::new()))
}

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

fn propagation(query: &Query) -> (Propagation, Vec<Cause>) {
    const FIELD: &str = "propagationPolicy";
    let Some(policy) = query.propagation.as_deref() else {
        let kept = query.orphan == Some(true);
        return (if kept { Propagation::Orphan } else { Propagation::Background }, Vec::new());
    };
    let given = Value::from(policy);
    let both = "orphanDependents and deletionPropagation cannot be both set";
    let mut causes: Vec<Cause> =
        query.orphan.map(|_| Cause::invalid(FIELD, &given, both)).into_iter().collect();
    let propagation = match policy {
        "Orphan" => Propagation::Orphan,
        "Foreground" => Propagation::Foreground,
        "Background" => Propagation::Background,
        _ => {
            causes.push(Cause::unsupported(FIELD, &given, &["Foreground", "Background", "Orphan", "nil"]));
            Propagation::Background
        }
    };
    (propagation, causes)
}

/// Kinds that answer with the object.
const SHOWN: [(&str, &str); 3] =
    [("", "services"), ("", "serviceaccounts"), ("storage.k8s.io", "storageclasses")];

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
