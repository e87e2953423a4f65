use serde_json::Value;
use tidewatch_api::object::ObjectRef;

use super::{
    Facts, Says, deadline, pods,
    seen::{Condition, Seen, UNSEEN},
    text,
};

/// Ready: newest generation observed, replicas updated and available, none left of older revisions.
pub(super) fn deployment(object: Seen<'_>, facts: &Facts<'_>) -> Says {
    if object.is_unseen() {
        return Says::Processing(UNSEEN.into());
    }
    let wanted = object.spec()["replicas"].as_i64().unwrap_or(1);
    if let Some(stuck) = object.condition("Progressing").filter(Condition::fails) {
        let what = match pods::cause(facts) {
            Some(cause) => format!("it makes no progress: {}", cause.text),
            None => format!("it makes no progress: {}", told(stuck.message, stuck.reason)),
        };
        // The module allows more time than the API server's default.
        let early = stuck.reason == "ProgressDeadlineExceeded"
            && facts.deadline > deadline::DEADLINE
            && !deadline::gives_itself_time(object.0, facts);
        return if early { Says::Processing(what) } else { Says::Error(what) };
    }
    if let Some(failure) = object.condition("ReplicaFailure").filter(Condition::holds) {
        return Says::Error(format!("its pods cannot be created: {}", told(failure.message, failure.reason)));
    }
    let updated = object.count("updatedReplicas");
    if is_scaled(object, updated) {
        return Says::Ready;
    }
    let rest = if updated < wanted && object.spec()["paused"].as_bool() == Some(true) {
        "its rollout is paused".to_owned()
    } else if updated < wanted || object.count("availableReplicas") < wanted {
        unavailable(wanted)
    } else if object.count("replicas") > updated {
        "replicas of its previous version are still there".to_owned()
    } else {
        return Says::Ready;
    };
    pods::instead_of(rest, facts)
}

/// Whether a Deployment is complete and only scaled, as by a `HorizontalPodAutoscaler`, with enough available pods.
fn is_scaled(object: Seen<'_>, updated: i64) -> bool {
    let progressing = object.condition("Progressing").filter(Condition::holds);
    updated > 0
        && object.count("replicas") == updated
        && object.holds("Available")
        && progressing.is_some_and(|condition| condition.reason == "NewReplicaSetAvailable")
}

/// Ready: all replicas are ready, and those from the partition on are updated.
pub(super) fn stateful_set(object: Seen<'_>, facts: &Facts<'_>) -> Says {
    if object.is_unseen() {
        return Says::Processing(UNSEEN.into());
    }
    let (spec, status) = (object.spec(), object.status());
    let wanted = spec["replicas"].as_i64().unwrap_or(1);
    let strategy = &spec["updateStrategy"];
    let renewed = if strategy["type"].as_str() == Some("OnDelete") {
        0
    } else {
        let partition = strategy["rollingUpdate"]["partition"].as_i64().unwrap_or(0).max(0);
        wanted.saturating_sub(partition).max(0)
    };
    let ready = object.count("readyReplicas");
    // Older API servers do not count available replicas.
    let available = status["availableReplicas"].as_i64().unwrap_or(ready);
    let rest = if ready.min(available) < wanted || object.count("updatedReplicas") < renewed {
        unavailable(wanted)
    } else if object.count("replicas") > wanted {
        "it is being scaled down".to_owned()
    } else {
        return Says::Ready;
    };
    pods::instead_of(rest, facts)
}

/// Ready: each node has an available pod, also updated unless updates are manual. Zero nodes are ready.
pub(super) fn daemon_set(object: Seen<'_>, facts: &Facts<'_>) -> Says {
    if object.is_unseen() {
        return Says::Processing(UNSEEN.into());
    }
    let wanted = object.count("desiredNumberScheduled");
    let by_hand = object.spec()["updateStrategy"]["type"].as_str() == Some("OnDelete");
    let old = !by_hand && object.count("updatedNumberScheduled") < wanted;
    if !old && object.count("numberAvailable") >= wanted {
        return Says::Ready;
    }
    // The number of nodes changes, so it is omitted.
    pods::instead_of("its pod is not available on every node".into(), facts)
}

/// Whether the cluster deletes a Job after its end.
#[must_use]
pub fn goes_when_finished(object: &Value) -> bool {
    let is_job = ObjectRef::of(object).is_some_and(|id| id.gvk.group == "batch" && id.gvk.kind == "Job");
    is_job && object["spec"]["ttlSecondsAfterFinished"].is_u64() && object["spec"]["suspend"] != true
}

/// Returns a Job's result, possibly before its last pods end.
#[must_use]
pub fn end_of(job: &Value) -> Option<End> {
    let holds = |conditions: [&str; 2]| conditions.iter().any(|condition| Seen(job).holds(condition));
    if holds(["Complete", "SuccessCriteriaMet"]) {
        return Some(End::Complete);
    }
    holds(["Failed", "FailureTarget"]).then_some(End::Failed)
}

/// Result of a Job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Success.
    Complete,
    /// Failure.
    Failed,
}

/// Suspended Jobs are ready: waiting is intended.
pub(super) fn job(object: Seen<'_>, facts: &Facts<'_>) -> Says {
    if object.holds("Complete") {
        return Says::Ready;
    }
    for failed in ["Failed", "FailureTarget"] {
        if let Some(failed) = object.condition(failed).filter(Condition::holds) {
            let why = match failed.reason {
                "BackoffLimitExceeded" => "its pods failed as often as it allows".to_owned(),
                "DeadlineExceeded" => "it ran longer than it allows".to_owned(),
                reason => told(failed.message, reason),
            };
            return Says::Error(match pods::cause(facts) {
                Some(cause) => format!("it failed: {why}: {}", cause.text),
                None => format!("it failed: {why}"),
            });
        }
    }
    if object.spec()["suspend"].as_bool() == Some(true) {
        return Says::Ready;
    }
    let rest = if object.holds("SuccessCriteriaMet") {
        "its last pods are ending"
    } else if object.count("failed") > 0 {
        "its pods fail and are tried again"
    } else {
        "it is not complete"
    };
    pods::instead_of(rest.to_owned(), facts)
}

fn unavailable(wanted: i64) -> String {
    if wanted == 1 {
        "its replica is not available".to_owned()
    } else {
        format!("not all of its {wanted} replicas are updated and available")
    }
}

fn told(message: &str, reason: &str) -> String {
    match text::tame(message) {
        empty if empty.is_empty() => text::name(reason),
        message => message,
    }
}
