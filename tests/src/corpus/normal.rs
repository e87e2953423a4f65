//! Normalisation of objects for comparison across clusters.

use std::{collections::BTreeMap, fmt::Write as _};

use serde_json::{Map, Value};
use tidewatch_api::names::labels;

/// Objects by kind, group, namespace and name: `Deployment.apps ns/name`.
pub type Objects = BTreeMap<String, Value>;

/// Fields that each API server sets.
const OF_THE_SERVER: [&str; 6] =
    ["uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink"];
/// The Job controller labels pods with the Job's uid.
const JOB_UIDS: [&str; 2] = ["controller-uid", "batch.kubernetes.io/controller-uid"];
/// Placeholder for allocated values.
const ALLOCATED: &str = "(allocated)";
/// Longest displayed value.
const MAX_SHOWN: usize = 60;
/// Most differences displayed per object.
const MAX_PATHS: usize = 5;

/// Returns an object's key.
#[must_use]
pub fn key(object: &Value) -> String {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let group =
        text("/apiVersion").split_once('/').map_or_else(String::new, |(group, _)| format!(".{group}"));
    let slash = if text("/metadata/namespace").is_empty() { "" } else { "/" };
    format!("{}{group} {}{slash}{}", text("/kind"), text("/metadata/namespace"), text("/metadata/name"))
}

/// Removes status, server-set fields, allocated values, and Kyma's labels and annotations.
#[must_use]
pub fn normalised(mut object: Value) -> Value {
    if let Some(object) = object.as_object_mut() {
        object.remove("status");
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|field, _| !OF_THE_SERVER.contains(&field.as_str()));
        for marks in ["labels", "annotations"] {
            retain(metadata, marks, |name| !is_of_kyma(name));
        }
    }
    match object["kind"].as_str() {
        Some("Service") => service(&mut object),
        Some("Job") => job(&mut object),
        Some("Secret") if object["type"] == "kubernetes.io/service-account-token" => {
            for (at, field) in [("", "data"), ("/metadata/annotations", "kubernetes.io/service-account.uid")]
            {
                remove(&mut object, at, field);
            }
        }
        Some("PersistentVolumeClaim") => remove(&mut object, "/spec", "volumeName"),
        Some("ServiceAccount") => remove(&mut object, "", "secrets"),
        _ => {}
    }
    object
}

/// Whether Kyma's lifecycle managers add this label or annotation.
fn is_of_kyma(name: &str) -> bool {
    let prefix = name.split_once('/').map_or("", |(prefix, _)| prefix);
    prefix.ends_with("kyma-project.io") || [labels::COMPONENT, labels::PART_OF].contains(&name)
}

fn service(object: &mut Value) {
    remove(object, "/spec", "healthCheckNodePort");
    let Some(spec) = object["spec"].as_object_mut() else { return };
    if spec.get("clusterIP").is_some_and(|ip| ip != "None") {
        spec.insert("clusterIP".to_owned(), ALLOCATED.into());
        spec.insert("clusterIPs".to_owned(), ALLOCATED.into());
    }
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        remove(port, "", "nodePort");
    }
}

fn job(object: &mut Value) {
    for at in ["/spec/selector/matchLabels", "/spec/template/metadata/labels", "/metadata/labels"] {
        for label in JOB_UIDS {
            remove(object, at, label);
        }
    }
}

fn remove(object: &mut Value, at: &str, field: &str) {
    if let Some(parent) = object.pointer_mut(at).and_then(Value::as_object_mut) {
        parent.remove(field);
    }
}

/// Filters a string map and removes it if empty.
fn retain(parent: &mut Map<String, Value>, field: &str, keeps: impl Fn(&str) -> bool) {
    let Some(map) = parent.get_mut(field).and_then(Value::as_object_mut) else { return };
    map.retain(|name, _| keeps(name));
    if map.is_empty() {
        parent.remove(field);
    }
}

/// Returns one line per object that differs from kubectl's. Hides values of Secrets.
#[must_use]
pub fn differences(ours: &Objects, theirs: &Objects) -> Vec<String> {
    let mut lines = Vec::new();
    for (key, theirs) in theirs {
        let Some(ours) = ours.get(key) else {
            lines.push(format!("{key}: it is not there"));
            continue;
        };
        let mut paths = Vec::new();
        compare(&normalised(ours.clone()), &normalised(theirs.clone()), String::new(), &mut paths);
        if paths.is_empty() {
            continue;
        }
        let more = paths.len().saturating_sub(MAX_PATHS);
        let shown = paths.into_iter().take(MAX_PATHS).map(|path| path.shown(is_secret(theirs)));
        let mut line = format!("{key}: {}", shown.collect::<Vec<_>>().join("; "));
        if more > 0 {
            let _ = write!(line, "; and {more} more");
        }
        lines.push(line);
    }
    let added = ours.keys().filter(|key| !theirs.contains_key(*key));
    lines.extend(added.map(|key| format!("{key}: kubectl has not made it")));
    lines
}

fn is_secret(object: &Value) -> bool {
    object["kind"] == "Secret" && object["apiVersion"] == "v1"
}

struct Difference {
    path: String,
    ours: Option<Value>,
    theirs: Option<Value>,
}

impl Difference {
    fn shown(&self, conceal: bool) -> String {
        let path = self.path.trim_start_matches('.');
        if conceal {
            return path.to_owned();
        }
        let value = |value: Option<&Value>| {
            let text = value.map_or_else(|| "nothing".to_owned(), Value::to_string);
            let cut = text.char_indices().nth(MAX_SHOWN).map(|(at, _)| at);
            cut.map_or_else(|| text.clone(), |at| format!("{}…", &text[..at]))
        };
        format!("{path} is {}, by kubectl {}", value(self.ours.as_ref()), value(self.theirs.as_ref()))
    }
}

/// Collects the innermost differences. API servers limit the depth.
fn compare(ours: &Value, theirs: &Value, path: String, found: &mut Vec<Difference>) {
    let differ = |path: String, ours: Option<&Value>, theirs: Option<&Value>| Difference {
        path,
        ours: ours.cloned(),
        theirs: theirs.cloned(),
    };
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => {
            for (field, value) in ours {
                let path = format!("{path}.{field}");
                match theirs.get(field) {
                    Some(other) => compare(value, other, path, found),
                    None => found.push(differ(path, Some(value), None)),
                }
            }
            let lacking = theirs.iter().filter(|(field, _)| !ours.contains_key(*field));
            found.extend(lacking.map(|(field, value)| differ(format!("{path}.{field}"), None, Some(value))));
        }
        (Value::Array(ours), Value::Array(theirs)) => {
            for at in 0..ours.len().max(theirs.len()) {
                let path = format!("{path}[{at}]");
                match (ours.get(at), theirs.get(at)) {
                    (Some(ours), Some(theirs)) => compare(ours, theirs, path, found),
                    (ours, theirs) => found.push(differ(path, ours, theirs)),
                }
            }
        }
        _ if ours == theirs => {}
        _ => found.push(differ(path, Some(ours), Some(theirs))),
    }
}

/// Returns the fields that controllers do not report in the status.
///
/// Manager timestamps reveal a change even after it is reverted.
#[must_use]
pub fn specified(objects: &Objects) -> Objects {
    let mut objects = objects.clone();
    for object in objects.values_mut() {
        remove(object, "", "status");
        remove(object, "/metadata", "resourceVersion");
        if let Some(managers) = object.pointer_mut("/metadata/managedFields").and_then(Value::as_array_mut) {
            managers.retain(|manager| manager["subresource"] != "status");
        }
    }
    objects
}

/// Returns the created, deleted and changed objects.
#[must_use]
pub fn changes(before: &Objects, after: &Objects) -> Vec<String> {
    let changed = before.iter().filter_map(|(key, was)| match after.get(key) {
        None => Some(format!("{key} has gone")),
        Some(now) if now != was => Some(format!("{key} was changed by {}", last_manager(now))),
        Some(_) => None,
    });
    let came = after.keys().filter(|key| !before.contains_key(*key)).map(|key| format!("{key} has come"));
    changed.chain(came).collect()
}

fn last_manager(object: &Value) -> &str {
    let managers = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let last = managers.max_by_key(|manager| manager["time"].as_str().unwrap_or_default().to_owned());
    last.and_then(|manager| manager["manager"].as_str()).unwrap_or("an unknown manager")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn objects(all: &[Value]) -> Objects {
        all.iter().map(|object| (key(object), object.clone())).collect()
    }

    #[test]
    fn cluster_specific_fields_are_left_out() {
        let metadata = json!({"name": "x", "namespace": "n", "uid": "u", "resourceVersion": "7", "generation": 3,
            "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": [],
            "labels": {"operator.kyma-project.io/managed-by": "kyma", "app.kubernetes.io/component": "m", "app": "x"},
            "annotations": {"deprecated-operator.kyma-project.io/owned-by": "a/b"}});
        let rest = json!({"name": "x", "namespace": "n", "labels": {"app": "x"}});
        let cases = [
            (
                json!({"kind": "ConfigMap", "data": {"uid": "1"}}),
                json!({"kind": "ConfigMap", "data": {"uid": "1"}}),
            ),
            (
                json!({"kind": "Service", "spec": {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "healthCheckNodePort": 1,
                       "ports": [{"port": 80, "nodePort": 30000}]}, "status": {"loadBalancer": {}}}),
                json!({"kind": "Service", "spec": {"clusterIP": ALLOCATED, "clusterIPs": ALLOCATED, "ports": [{"port": 80}]}}),
            ),
            (
                json!({"kind": "Service", "spec": {"clusterIP": "None", "clusterIPs": ["None"]}}),
                json!({"kind": "Service", "spec": {"clusterIP": "None", "clusterIPs": ["None"]}}),
            ),
            (
                json!({"kind": "Job", "spec": {"selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}},
                       "template": {"metadata": {"labels": {"controller-uid": "u", "job-name": "x"}}}}}),
                json!({"kind": "Job", "spec": {"selector": {"matchLabels": {}}, "template": {"metadata": {"labels": {"job-name": "x"}}}}}),
            ),
            (
                json!({"kind": "Secret", "type": "kubernetes.io/service-account-token", "data": {"token": "t"}}),
                json!({"kind": "Secret", "type": "kubernetes.io/service-account-token"}),
            ),
            (
                json!({"kind": "Secret", "type": "Opaque", "data": {"token": "t"}}),
                json!({"kind": "Secret", "type": "Opaque", "data": {"token": "t"}}),
            ),
            (json!({"kind": "ServiceAccount", "secrets": [{}]}), json!({"kind": "ServiceAccount"})),
            (
                json!({"kind": "PersistentVolumeClaim", "spec": {"volumeName": "v", "a": 1}}),
                json!({"kind": "PersistentVolumeClaim", "spec": {"a": 1}}),
            ),
        ];
        for (mut object, mut wanted) in cases {
            object["metadata"] = metadata.clone();
            wanted["metadata"] = rest.clone();
            assert_eq!(normalised(object), wanted);
        }
    }

    #[test]
    fn each_difference_is_reported_with_its_path() {
        let deployment = |env: Value, replicas: Value| {
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "n"},
                   "spec": {"replicas": replicas, "env": env}})
        };
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "r"}});
        let theirs = objects(&[deployment(json!([{"name": "A", "value": ""}]), json!(1)), role.clone()]);
        assert!(differences(&theirs, &theirs).is_empty());
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "more"}});
        let ours =
            objects(&[deployment(json!([{"name": "A"}, {"name": "B"}]), json!("x".repeat(100))), namespace]);
        assert_eq!(
            differences(&ours, &theirs),
            [
                "ClusterRole.rbac.authorization.k8s.io r: it is not there".to_owned(),
                format!(
                    "Deployment.apps n/d: spec.env[0].value is nothing, by kubectl \"\"; spec.env[1] is {{\"name\":\"B\"}}, by kubectl \
                     nothing; spec.replicas is \"{}…, by kubectl 1",
                    "x".repeat(59)
                ),
                "Namespace more: kubectl has not made it".to_owned(),
            ]
        );
        let many: Vec<u32> = (0..9).collect();
        let line = differences(
            &objects(&[deployment(json!(many), json!(1))]),
            &objects(&[deployment(json!([]), json!(1))]),
        );
        assert!(line[0].ends_with("; and 4 more"), "{line:?}");
    }

    #[test]
    fn secret_values_are_not_shown() {
        let secret = |value: &str| {
            objects(&[
                json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "n"},
                             "type": "Opaque", "data": {"k": value}}),
            ])
        };
        assert_eq!(differences(&secret("YQ=="), &secret("Yg==")), ["Secret n/s: data.k"]);
    }

    #[test]
    fn only_spec_writes_are_changes_even_if_undone() {
        let object = |version: &str, time: &str, status: u32| {
            objects(&[
                json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "resourceVersion": version,
                "managedFields": [{"manager": "m", "time": time}, {"manager": "c", "time": version, "subresource": "status"}]},
                "spec": {}, "status": status}),
            ])
        };
        let before = specified(&object("1", "t1", 1));
        assert!(changes(&before, &specified(&object("2", "t1", 2))).is_empty());
        assert_eq!(changes(&before, &specified(&object("2", "t2", 1))), ["Service s was changed by m"]);
        assert_eq!(changes(&before, &Objects::new()), ["Service s has gone"]);
        assert_eq!(changes(&Objects::new(), &before), ["Service s has come"]);
    }
}
