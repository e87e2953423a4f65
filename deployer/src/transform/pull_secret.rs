use serde_json::{Value, json};
use tidewatch_api::{
    Manager,
    object::{ObjectRef, is_manager},
};

use super::{CONTAINERS, TransformError, containers_of, pod_spec};

/// Variable with the Secret's name, for workloads of a module's manager.
pub const VARIABLE: &str = "SKR_IMG_PULL_SECRET";

/// Adds the Secret, and the variable in the manager or, if undeclared, in every workload.
pub(super) fn add(object: &mut Value, secret: &str, manager: Option<&Manager>) -> Result<(), TransformError> {
    let Some(id) = ObjectRef::of(object) else { return Ok(()) };
    let Some(pods) = pod_spec(object) else { return Ok(()) };
    let entry = json!({"name": secret});
    match pods["imagePullSecrets"].as_array_mut() {
        Some(secrets) if secrets.contains(&entry) => {}
        Some(secrets) => secrets.push(entry),
        None => pods["imagePullSecrets"] = json!([entry]),
    }
    if manager.is_some_and(|manager| !is_manager(manager, &id)) {
        return Ok(());
    }
    for container in containers_of(object, CONTAINERS) {
        let variable = json!({"name": VARIABLE, "value": secret});
        match container["env"].as_array_mut() {
            Some(env) if env.iter().any(|v| v["name"] == VARIABLE) => {
                let container = container["name"].as_str().unwrap_or_default().to_owned();
                return Err(TransformError::VariableSet { object: id.to_string(), container });
            }
            Some(env) => env.push(variable),
            None => container["env"] = json!([variable]),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(kind: &str, name: &str, pods: Value) -> Value {
        json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": "default"},
               "spec": {"template": {"spec": pods}}})
    }

    fn manager(name: &str) -> Manager {
        Manager {
            group: "apps".into(),
            version: "v1".into(),
            kind: "Deployment".into(),
            name: name.into(),
            ..Manager::default()
        }
    }

    fn reported(object: &Value) -> bool {
        let containers = object["spec"]["template"]["spec"]["containers"].as_array().unwrap();
        containers.iter().all(|c| {
            c["env"].as_array().is_some_and(|env| env.contains(&json!({"name": VARIABLE, "value": "pull"})))
        })
    }

    #[test]
    fn workloads_get_pull_secrets_and_managers_their_name() {
        let pods = json!({"containers": [{"name": "a"}, {"name": "b", "env": [{"name": "X", "value": "1"}]}],
                          "imagePullSecrets": [{"name": "own"}]});
        for (kind, name, named, sets_variable) in [
            ("Deployment", "m", Some(manager("m")), true),
            ("Deployment", "other", Some(manager("m")), false),
            ("StatefulSet", "m", Some(manager("m")), false),
            ("StatefulSet", "any", None, true),
        ] {
            let mut object = workload(kind, name, pods.clone());
            add(&mut object, "pull", named.as_ref()).unwrap();
            let secrets = &object["spec"]["template"]["spec"]["imagePullSecrets"];
            assert_eq!(*secrets, json!([{"name": "own"}, {"name": "pull"}]));
            assert_eq!(reported(&object), sets_variable, "{kind} {name}");
        }
    }

    #[test]
    fn pull_secrets_are_added_once_with_a_reserved_variable() {
        let mut object = workload("Deployment", "m", json!({"imagePullSecrets": [{"name": "pull"}]}));
        add(&mut object, "pull", None).unwrap();
        assert_eq!(object["spec"]["template"]["spec"]["imagePullSecrets"], json!([{"name": "pull"}]));
        let pods = json!({"containers": [{"name": "a", "env": [{"name": VARIABLE, "value": "x"}]}]});
        let error = add(&mut workload("Deployment", "m", pods), "pull", None).unwrap_err();
        assert!(error.to_string().contains("container a of Deployment.apps default/m"), "{error}");
    }

    #[test]
    fn other_kinds_and_workloads_without_pods_are_unchanged() {
        for mut object in [
            workload("Job", "m", json!({})),
            workload("DaemonSet", "m", json!({})),
            json!({"kind": "Deployment"}),
            json!(1),
        ] {
            let before = object.clone();
            add(&mut object, "pull", None).unwrap();
            assert_eq!(object, before);
        }
    }
}
