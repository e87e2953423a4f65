use serde_json::Value;
use tidewatch_api::object::ObjectRef;

use super::{
    Facts, Judgement, deadline, pods, text,
    view::{Condition, NOT_OBSERVED, ObjectView},
};

/// Ready: newest generation observed, replicas updated and available, none left of older revisions.
pub(super) fn deployment(object: ObjectView<'_>, facts: &Facts<'_>) -> Judgement {
    if object.is_unobserved() {
        return Judgement::Processing(NOT_OBSERVED.into());
    }
    let wanted = object.spec()["replicas"].as_i64().unwrap_or(1);
    if let Some(stalled) = object.condition("Progressing").filter(Condition::fails) {
        let cause = match pods::cause(facts) {
            Some(cause) => format!("it makes no progress: {}", cause.text),
            None => format!("it makes no progress: {}", message_or_reason(stalled.message, stalled.reason)),
        };
        // The module allows more time than the API server's default.
        let early = stalled.reason == "ProgressDeadlineExceeded"
            && facts.deadline > deadline::DEADLINE
            && !deadline::sets_own_deadline(object.0, facts);
        return if early { Judgement::Processing(cause) } else { Judgement::Error(cause) };
    }
    if let Some(failure) = object.condition("ReplicaFailure").filter(Condition::holds) {
        return Judgement::Error(format!(
            "its pods cannot be created: {}",
            message_or_reason(failure.message, failure.reason)
        ));
    }
    let updated = object.count("updatedReplicas");
    if is_scaled(object, updated) {
        return Judgement::Ready;
    }
    let rest = if updated < wanted && object.spec()["paused"].as_bool() == Some(true) {
        "its rollout is paused".to_owned()
    } else if updated < wanted || object.count("availableReplicas") < wanted {
        unavailable(wanted)
    } else if object.count("replicas") > updated {
        "replicas of its previous version are still there".to_owned()
    } else {
        return Judgement::Ready;
    };
    pods::pod_cause_or(rest, facts)
}

/// Whether a Deployment is complete and only scaled, as by a `HorizontalPodAutoscaler`, with enough available pods.
fn is_scaled(object: ObjectView<'_>, updated: i64) -> bool {
    let progressing = object.condition("Progressing").filter(Condition::holds);
    updated > 0
        && object.count("replicas") == updated
        && object.holds("Available")
        && progressing.is_some_and(|condition| condition.reason == "NewReplicaSetAvailable")
}

/// Ready: all replicas are ready, and those from the partition on are updated.
pub(super) fn stateful_set(object: ObjectView<'_>, facts: &Facts<'_>) -> Judgement {
    if object.is_unobserved() {
        return Judgement::Processing(NOT_OBSERVED.into());
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
        return Judgement::Ready;
    };
    pods::pod_cause_or(rest, facts)
}

/// Ready: each node has an available pod, also updated unless updates are manual. Zero nodes are ready.
pub(super) fn daemon_set(object: ObjectView<'_>, facts: &Facts<'_>) -> Judgement {
    if object.is_unobserved() {
        return Judgement::Processing(NOT_OBSERVED.into());
    }
    let wanted = object.count("desiredNumberScheduled");
    let by_hand = object.spec()["updateStrategy"]["type"].as_str() == Some("OnDelete");
    let old = !by_hand && object.count("updatedNumberScheduled") < wanted;
    if !old && object.count("numberAvailable") >= wanted {
        return Judgement::Ready;
    }
    // The number of nodes changes, so it is omitted.
    pods::pod_cause_or("its pod is not available on every node".into(), facts)
}

/// Whether the cluster deletes a Job after its end.
#[must_use]
pub fn is_deleted_when_finished(object: &Value) -> bool {
    let is_job = ObjectRef::of(object).is_some_and(|id| id.gvk.group == "batch" && id.gvk.kind == "Job");
    is_job && object["spec"]["ttlSecondsAfterFinished"].is_u64() && object["spec"]["suspend"] != true
}

/// Returns a Job's result, possibly before its last pods end.
#[must_use]
pub fn job_result(job: &Value) -> Option<JobResult> {
    let holds = |conditions: [&str; 2]| conditions.iter().any(|condition| ObjectView(job).holds(condition));
    if holds(["Complete", "SuccessCriteriaMet"]) {
        return Some(JobResult::Complete);
    }
    holds(["Failed", "FailureTarget"]).then_some(JobResult::Failed)
}

/// Result of a Job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobResult {
    /// Success.
    Complete,
    /// Failure.
    Failed,
}

/// Suspended Jobs are ready: waiting is intended.
pub(super) fn job(object: ObjectView<'_>, facts: &Facts<'_>) -> Judgement {
    if object.holds("Complete") {
        return Judgement::Ready;
    }
    for failed in ["Failed", "FailureTarget"] {
        if let Some(failed) = object.condition(failed).filter(Condition::holds) {
            let why = match failed.reason {
                "BackoffLimitExceeded" => "its pods failed as often as it allows".to_owned(),
                "DeadlineExceeded" => "it ran longer than it allows".to_owned(),
                reason => message_or_reason(failed.message, reason),
            };
            return Judgement::Error(match pods::cause(facts) {
                Some(cause) => format!("it failed: {why}: {}", cause.text),
                None => format!("it failed: {why}"),
            });
        }
    }
    if object.spec()["suspend"].as_bool() == Some(true) {
        return Judgement::Ready;
    }
    let rest = if object.holds("SuccessCriteriaMet") {
        "its last pods are ending"
    } else if object.count("failed") > 0 {
        "its pods fail and are tried again"
    } else {
        "it is not complete"
    };
    pods::pod_cause_or(rest.to_owned(), facts)
}

fn unavailable(wanted: i64) -> String {
    if wanted == 1 {
        "its replica is not available".to_owned()
    } else {
        format!("not all of its {wanted} replicas are updated and available")
    }
}

fn message_or_reason(message: &str, reason: &str) -> String {
    match text::masked(message) {
        empty if empty.is_empty() => text::name(reason),
        message => message,
    }
}
