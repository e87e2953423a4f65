//! Workloads: sets the status for the current spec.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::{
    object::{meta, stored},
    store::{log::Key, render::render, state::State},
};

pub(super) fn make_ready(state: &mut State, key: &Key, now: Timestamp) {
    let (Some(stored), Some(kind)) = (state.objects.get(key).cloned(), state.served.kind_of(key)) else {
        return;
    };
    let mut object = render(&kind, &stored);
    let status = status(&kind.kind, &object, state.options.runs_pods, now);
    if let Some(object) = object.as_object_mut() {
        object.insert("status".to_owned(), status);
    }
    state.write_status(&kind, &stored, object, "kube-controller-manager", now);
}

/// Without running pods, workloads that want pods stay unavailable. A `DaemonSet` wants none: there are no
/// nodes.
fn status(kind: &str, object: &Value, runs_pods: bool, now: Timestamp) -> Value {
    let generation = object.pointer("/metadata/generation").cloned().unwrap_or(json!(1));
    let mut status = object.get("status").and_then(Value::as_object).cloned().unwrap_or_default();
    status.insert("observedGeneration".into(), generation);
    if kind == "DaemonSet" {
        daemon_set(&mut status, u64::from(runs_pods));
        return status.into();
    }
    let wanted = object.pointer("/spec/replicas").and_then(Value::as_u64).unwrap_or(1);
    let available = if runs_pods { wanted } else { 0 };
    // Only StatefulSets write zeros.
    let writes_zeros = kind == "StatefulSet";
    for (field, count, zero) in [
        ("replicas", wanted, writes_zeros),
        ("updatedReplicas", wanted, writes_zeros),
        ("readyReplicas", available, false),
        ("availableReplicas", available, writes_zeros),
    ] {
        meta::put(&mut status, field, (count != 0 || zero).then(|| json!(count)));
    }
    if kind == "Deployment" {
        let missing = wanted - available;
        meta::put(&mut status, "unavailableReplicas", (missing != 0).then(|| json!(missing)));
        status.insert("conditions".into(), conditions(meta::name(object), missing == 0, now));
    }
    status.into()
}

fn daemon_set(status: &mut Map<String, Value>, nodes: u64) {
    for field in ["currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady"] {
        let count = if field == "numberMisscheduled" { 0 } else { nodes };
        status.insert(field.into(), json!(count));
    }
    for field in ["numberAvailable", "updatedNumberScheduled"] {
        meta::put(status, field, (nodes != 0).then(|| json!(nodes)));
    }
}

fn conditions(name: &str, is_available: bool, now: Timestamp) -> Value {
    let time = stored::time(now.as_second());
    let condition = |kind: &str, status: bool, reason: &str, message: &str| {
        json!({"type": kind, "status": if status { "True" } else { "False" }, "reason": reason, "message": message,
            "lastTransitionTime": time, "lastUpdateTime": time})
    };
    if is_available {
        let progressed = format!("ReplicaSet \"{name}\" has successfully progressed.");
        return json!([
            condition("Available", true, "MinimumReplicasAvailable", "Deployment has minimum availability."),
            condition("Progressing", true, "NewReplicaSetAvailable", &progressed),
        ]);
    }
    let progressing = format!("ReplicaSet \"{name}\" is progressing.");
    json!([
        condition(
            "Available",
            false,
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability."
        ),
        condition("Progressing", true, "ReplicaSetUpdated", &progressing),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment(replicas: u64) -> Value {
        json!({"metadata": {"name": "web", "generation": 3}, "spec": {"replicas": replicas}})
    }

    #[test]
    fn without_pods_only_an_empty_workload_is_available() {
        for (replicas, available) in [(0, "True"), (2, "False")] {
            let status = status("Deployment", &deployment(replicas), false, Timestamp::UNIX_EPOCH);
            assert_eq!(status["conditions"][0]["status"], available, "{status:#}");
            assert_eq!(status["observedGeneration"], 3);
        }
        let status = status("Deployment", &deployment(2), true, Timestamp::UNIX_EPOCH);
        assert_eq!((&status["availableReplicas"], &status["unavailableReplicas"]), (&json!(2), &Value::Null));
    }

    #[test]
    fn a_daemon_set_is_complete_on_every_node() {
        for (runs_pods, count) in [(false, 0), (true, 1)] {
            let status = status("DaemonSet", &json!({"metadata": {}}), runs_pods, Timestamp::UNIX_EPOCH);
            assert_eq!(
                (&status["desiredNumberScheduled"], &status["numberReady"]),
                (&json!(count), &json!(count))
            );
        }
    }
}
