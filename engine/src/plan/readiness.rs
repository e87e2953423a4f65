//! Whether an installed workload is ready, and why not.

use serde_json::Value;

/// What one workload's status says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Readiness {
    /// It serves.
    Ready,
    /// It is on its way; an event about it will follow.
    Processing(String),
    /// It will not get there by itself.
    Error(String),
}

/// The readiness of a Deployment, from its body.
///
/// Ready: the controller has seen the newest generation, all wanted replicas are updated and available,
/// and none of an older revision is left. Error: the progress deadline is exceeded or a replica cannot be
/// created.
#[must_use]
pub fn deployment(object: &Value) -> Readiness {
    let status = &object["status"];
    let int = |v: &Value| v.as_i64().unwrap_or(0);
    let name = object["metadata"]["name"].as_str().unwrap_or("?");
    let condition = |kind: &str| {
        status["conditions"].as_array().into_iter().flatten().find(|c| c["type"].as_str() == Some(kind))
    };
    let is = |c: Option<&Value>, s: &str| c.is_some_and(|c| c["status"].as_str() == Some(s));
    let message = |c: Option<&Value>| c.and_then(|c| c["message"].as_str()).unwrap_or_default().to_owned();

    if int(&status["observedGeneration"]) < int(&object["metadata"]["generation"]) {
        return Readiness::Processing(format!(
            "Deployment {name} was changed and its controller has not seen it yet"
        ));
    }
    let progressing = condition("Progressing");
    if is(progressing, "False") {
        return Readiness::Error(format!("Deployment {name} makes no progress: {}", message(progressing)));
    }
    let failure = condition("ReplicaFailure");
    if is(failure, "True") {
        return Readiness::Error(format!("Deployment {name} cannot create its pods: {}", message(failure)));
    }
    let wanted = object["spec"]["replicas"].as_i64().unwrap_or(1);
    let (updated, available, total) =
        (int(&status["updatedReplicas"]), int(&status["availableReplicas"]), int(&status["replicas"]));
    if updated < wanted || available < wanted || total > updated {
        return Readiness::Processing(format!(
            "Deployment {name}: {available} of {wanted} replicas available, {updated} updated"
        ));
    }
    Readiness::Ready
}

/// The readiness of a set of workloads: the first error, else the first that is on its way, else ready.
#[must_use]
pub fn worst(all: impl IntoIterator<Item = Readiness>) -> Readiness {
    let rank = |r: &Readiness| match r {
        Readiness::Ready => 0,
        Readiness::Processing(_) => 1,
        Readiness::Error(_) => 2,
    };
    all.into_iter().fold(Readiness::Ready, |worst, r| if rank(&r) > rank(&worst) { r } else { worst })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn with(status: Value) -> Value {
        json!({"metadata": {"name": "d", "generation": 2}, "spec": {"replicas": 2}, "status": status})
    }

    #[test]
    fn ready_only_when_every_replica_is_new_and_available() {
        let good =
            json!({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2});
        assert_eq!(deployment(&with(good.clone())), Readiness::Ready);
        for (field, value) in
            [("observedGeneration", 1), ("updatedReplicas", 1), ("availableReplicas", 1), ("replicas", 3)]
        {
            let mut status = good.clone();
            status[field] = value.into();
            assert!(matches!(deployment(&with(status)), Readiness::Processing(_)), "{field}");
        }
        assert!(matches!(deployment(&with(Value::Null)), Readiness::Processing(_)));
    }

    #[test]
    fn a_stuck_deployment_is_an_error_with_its_reason() {
        let status = json!({"observedGeneration": 2, "conditions": [
            {"type": "Progressing", "status": "False", "message": "deadline exceeded"}]});
        let Readiness::Error(message) = deployment(&with(status)) else { panic!("not an error") };
        assert!(message.contains("deadline exceeded"));
        let status = json!({"observedGeneration": 2, "conditions": [
            {"type": "ReplicaFailure", "status": "True", "message": "quota"}]});
        assert!(matches!(deployment(&with(status)), Readiness::Error(m) if m.contains("quota")));
    }

    #[test]
    fn no_replicas_wanted_is_ready() {
        let object = json!({"metadata": {"name": "d", "generation": 1}, "spec": {"replicas": 0},
                            "status": {"observedGeneration": 1}});
        assert_eq!(deployment(&object), Readiness::Ready);
    }

    #[test]
    fn errors_outrank_processing() {
        let p = Readiness::Processing("p".into());
        let e = Readiness::Error("e".into());
        assert_eq!(worst([Readiness::Ready, p.clone(), e.clone(), p.clone()]), e);
        assert_eq!(worst([p.clone(), Readiness::Ready]), p);
        assert_eq!(worst([]), Readiness::Ready);
    }
}
