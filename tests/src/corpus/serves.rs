//! Judges a module's readiness by its objects, independent of the engine's rules.

use serde_json::Value;
use tidewatch_api::State;

use super::normal::Objects;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    /// A controller will complete it.
    Time,
    /// Impossible here: no load balancers, volumes or processes in pods.
    Impossible(&'static str),
}

fn lack(object: &Value) -> Option<Lack> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let all = |has: &str, wanted: &Value| status[has].as_u64().unwrap_or(0) >= wanted.as_u64().unwrap_or(1);
    let condition = |kind: &str| {
        let mut conditions = status["conditions"].as_array().into_iter().flatten();
        conditions.any(|condition| condition["type"] == kind && condition["status"] == "True")
    };
    let serves = match object["kind"].as_str()? {
        "Deployment" => all("availableReplicas", &spec["replicas"]),
        "StatefulSet" => all("readyReplicas", &spec["replicas"]),
        "DaemonSet" => all("numberReady", &status["desiredNumberScheduled"]),
        "Job" => condition("Complete"),
        "CustomResourceDefinition" => condition("Established"),
        "Service" if spec["type"] == "LoadBalancer" && status["loadBalancer"]["ingress"].is_null() => {
            return Some(Lack::Impossible("no load balancer"));
        }
        "APIService" if !condition("Available") => {
            return Some(Lack::Impossible("no process that serves the API"));
        }
        "PersistentVolumeClaim" if status["phase"] != "Bound" => return Some(Lack::Impossible("no volumes")),
        _ => true,
    };
    (!serves).then_some(Lack::Time)
}

/// Judges a module's state. Ready requires that every object serves.
///
/// Otherwise the message must name an object that cannot serve here, and all others must serve. Returns the
/// reason for not Ready.
///
/// # Errors The state is wrong; it can become right later.
pub(super) fn judge(state: State, message: &str, objects: &Objects) -> Result<Option<String>, String> {
    let lacking: Vec<(&String, Lack)> =
        objects.iter().filter_map(|(key, object)| Some((key, lack(object)?))).collect();
    if let Some((key, _)) = lacking.iter().find(|(_, lack)| *lack == Lack::Time) {
        return Err(format!("{key} does not serve; the module is {state:?} ({message})"));
    }
    let impossible = lacking.iter().filter_map(|(key, lack)| match lack {
        Lack::Impossible(what) => Some((*key, *what)),
        Lack::Time => None,
    });
    match (state, lacking.is_empty()) {
        (State::Ready, true) => Ok(None),
        (State::Ready, false) => Err(format!("it is Ready, but not {}", lacking[0].0)),
        (_, true) => Err(format!("it is {state:?}, though each object serves: {message}")),
        (State::Processing | State::Warning, false) => {
            let mut named = impossible.filter(|(key, _)| names(message, key));
            match named.next() {
                Some((key, what)) => Ok(Some(format!("{key}: there is {what} here"))),
                None => Err(format!("it is {state:?} and names no object that cannot serve here: {message}")),
            }
        }
        (_, false) => Err(format!("it is {state:?}: {message}")),
    }
}

fn names(message: &str, key: &str) -> bool {
    let (kind, name) = key.split_once(' ').unwrap_or((key, ""));
    let kind = kind.split('.').next().unwrap_or_default();
    message.contains(kind) && message.contains(name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::corpus::normal::key;

    fn objects(all: &[&Value]) -> Objects {
        all.iter().map(|object| (key(object), (*object).clone())).collect()
    }

    #[test]
    fn readiness_must_match_the_serving_objects() {
        let metadata = json!({"name": "x", "namespace": "n"});
        let balancer = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"type": "LoadBalancer"},
                              "status": {"loadBalancer": {}}});
        let mut with_address = balancer.clone();
        with_address["status"]["loadBalancer"]["ingress"] = json!([{"ip": "192.0.2.1"}]);
        let api = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.x"}});
        let deployment = |available: u32| {
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"replicas": 2},
                   "status": {"availableReplicas": available}})
        };
        let (serving, coming) = (deployment(2), deployment(1));
        let (named, other) =
            ("Service n/x: its load balancer has no address", "Deployment.apps n/x: not all are available");
        let rightly_not = Ok(Some("Service n/x: there is no load balancer here".to_owned()));

        assert_eq!(judge(State::Ready, "", &objects(&[&serving, &with_address])), Ok(None));
        assert_eq!(judge(State::Processing, named, &objects(&[&serving, &balancer])), rightly_not);
        assert_eq!(judge(State::Warning, named, &objects(&[&serving, &balancer, &api])), rightly_not);
        assert!(
            judge(State::Processing, "APIService.apiregistration.k8s.io v1.x: its API", &objects(&[&api]))
                .is_ok()
        );
        for (state, message, objects) in [
            (State::Ready, "", objects(&[&coming])),
            (State::Ready, "", objects(&[&serving, &balancer])),
            (State::Processing, other, objects(&[&serving, &balancer])),
            (State::Processing, named, objects(&[&coming, &balancer])),
            (State::Processing, other, objects(&[&serving])),
            (State::Error, named, objects(&[&balancer])),
        ] {
            assert!(judge(state, message, &objects).is_err(), "{state:?} {message} {objects:?}");
        }
    }

    #[test]
    fn every_kind_with_readiness_is_checked() {
        let lacks = |kind: &str, status: Value| lack(&json!({"kind": kind, "spec": {}, "status": status}));
        let condition = |kind: &str| json!({"conditions": [{"type": kind, "status": "True"}]});
        for (kind, serving) in [
            ("Deployment", json!({"availableReplicas": 1})),
            ("StatefulSet", json!({"readyReplicas": 1})),
            ("DaemonSet", json!({"desiredNumberScheduled": 2, "numberReady": 2})),
            ("Job", condition("Complete")),
            ("CustomResourceDefinition", condition("Established")),
        ] {
            assert_eq!(lacks(kind, serving), None, "{kind}");
            assert_eq!(lacks(kind, json!({})), Some(Lack::Time), "{kind}");
        }
        assert_eq!(lacks("DaemonSet", json!({"desiredNumberScheduled": 0, "numberReady": 0})), None);
        assert_eq!(lacks("ConfigMap", json!({})), None);
        assert_eq!(lacks("PersistentVolumeClaim", json!({"phase": "Bound"})), None);
        assert!(matches!(lacks("PersistentVolumeClaim", json!({})), Some(Lack::Impossible(_))));
    }
}
