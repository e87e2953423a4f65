//! delete and deletecollection.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    deletion::{self, Marked, Propagation},
    log::Key,
    options, read,
    refusal::Refusal,
    request::{Answer, Outcome, Request, answer_with},
    state::State,
    target::Query,
};
use crate::{
    kinds::Kind,
    object::{Stored, meta},
    schema::validate::Cause,
};

/// Namespaces that cannot be deleted.
const UNDELETABLE: [&str; 3] = ["default", "kube-system", "kube-public"];

pub(super) fn delete(
    state: &mut State,
    kind: &Arc<Kind>,
    request: &Request,
    options: &Value,
    now: Timestamp,
) -> Result<Outcome, Refusal> {
    let DeleteOptions { dry_run, propagation, warnings } = DeleteOptions::of(kind, &request.query, options)?;
    let name = &request.target.name;
    if kind.plural == "namespaces" && kind.group.is_empty() && UNDELETABLE.contains(&name.as_str()) {
        return Err(Refusal::forbidden("namespaces", "", name, "this namespace may not be deleted"));
    }
    let stored = state.objects.lookup(kind, &request.target.namespace, name)?;
    preconditions(kind, &stored, options)?;
    if dry_run {
        return Ok(match deletion::mark(kind, &stored, propagation, now) {
            Marked::Removed => removed(kind, &stored),
            Marked::Kept(object) | Marked::RemovedAfterGrace(object) => {
                Outcome::Object(Answer { code: 200, object, warnings, kind: Some(Arc::clone(kind)) })
            }
            Marked::Unchanged => answer_with(kind, &stored, 200, warnings),
        });
    }
    let key = Key::of(kind, &request.target.namespace, name);
    match deletion::delete(state, kind, &key, &stored, propagation, now) {
        Some(marked) => Ok(answer_with(kind, &marked, 200, warnings)),
        None => Ok(removed(kind, &stored)),
    }
}

pub(super) fn delete_collection(
    state: &mut State,
    kind: &Arc<Kind>,
    request: &Request,
    options: &Value,
    now: Timestamp,
) -> Result<Outcome, Refusal> {
    let Outcome::List(listed) = read::list(state, kind, request)? else {
        return Err(Refusal::unknown_path());
    };
    let DeleteOptions { dry_run, propagation, .. } = DeleteOptions::of(kind, &request.query, options)?;
    for item in &listed.items {
        let key = Key::of(kind, meta::text(item, "namespace").unwrap_or_default(), meta::name(item));
        let Some(stored) = state.objects.get(&key).cloned() else { continue };
        preconditions(kind, &stored, options)?;
        if !dry_run {
            deletion::delete(state, kind, &key, &stored, propagation, now);
        }
    }
    Ok(Outcome::List(listed))
}

const ORPHANED_PODS: &str = "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning";

struct DeleteOptions {
    dry_run: bool,
    propagation: Propagation,
    warnings: Vec<String>,
}

impl DeleteOptions {
    /// `body` replaces the query's options.
    fn of(kind: &Kind, query: &Query, body: &Value) -> Result<Self, Refusal> {
        let query = options::of_delete(query, body)?;
        let (dry_run, mode) = options::dry_run(&query);
        let (propagation, mut causes) = propagation(&query);
        causes.extend(mode);
        options::refuse("DeleteOptions", &causes)?;
        // Default of old clients.
        if query.orphan.is_none() && query.propagation.is_none() && kind.is("batch", "jobs") {
            let warnings = vec![ORPHANED_PODS.to_owned()];
            return Ok(Self { dry_run, propagation: Propagation::Orphan, warnings });
        }
        Ok(Self { dry_run, propagation, warnings: Vec::new() })
    }
}

fn preconditions(kind: &Kind, stored: &Stored, options: &Value) -> Result<(), Refusal> {
    for (field, label, have) in [
        ("uid", "UID", stored.uid.to_string()),
        ("resourceVersion", "ResourceVersion", stored.revision.to_string()),
    ] {
        let wanted = options.get("preconditions").and_then(|all| all.get(field)).and_then(Value::as_str);
        if let Some(wanted) = wanted.filter(|wanted| *wanted != have) {
            return Err(Refusal::precondition(kind, stored.name(), label, wanted, &have));
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
const ANSWERED_WITH_OBJECT: [(&str, &str); 3] =
    [("", "services"), ("", "serviceaccounts"), ("storage.k8s.io", "storageclasses")];

fn removed(kind: &Arc<Kind>, stored: &Stored) -> Outcome {
    if ANSWERED_WITH_OBJECT.iter().any(|(group, plural)| kind.is(group, plural)) {
        return answer_with(kind, stored, 200, Vec::new());
    }
    let mut details = json!({"name": &**stored.name(), "kind": kind.plural, "uid": stored.uid.to_string()});
    if !kind.group.is_empty() {
        details["group"] = kind.group.clone().into();
    }
    let object = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
    Outcome::Object(Answer { code: 200, object, warnings: Vec::new(), kind: None })
}
