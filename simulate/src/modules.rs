//! The modules of a simulated fleet: made up, of realistic size, the same in each run. Pure.

use serde_json::{Value, json};
use tidewatch_api::names::RUNTIME_NAMESPACE;

/// The highest version that is made up.
pub const VERSIONS: u32 = 9;
/// Most modules; each is a CRD in each runtime.
pub const MOST: usize = 100;

/// Something that identifies an object in a cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    /// API group; empty for the core group.
    pub group: String,
    /// API version.
    pub version: String,
    /// Plural name.
    pub resource: String,
    /// Empty without one.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// The name of the n-th module: letters only, as the ecosystem wants them.
pub fn name(module: usize) -> String {
    let letter = |n: usize| char::from(b'a' + u8::try_from(n % 26).unwrap_or_default());
    format!("tide-{}{}{}", letter(module / 676), letter(module / 26), letter(module))
}

/// Its OCM component.
pub fn component(module: usize) -> String {
    format!("tidewatch.dev/module/{}", name(module))
}

/// A version as it is written.
pub fn version(number: u32) -> String {
    format!("{number}.0.0")
}

fn group(module: usize) -> String {
    format!("{}.simulated.tidewatch.dev", name(module))
}

fn meta(name: &str, namespace: &str) -> Value {
    json!({"name": name, "namespace": namespace})
}

/// The objects of a version of a module, what tells most about progress first.
pub fn objects(module: usize, number: u32) -> Vec<(Id, Value)> {
    let (own, version) = (name(module), version(number));
    let id = |group: &str, version: &str, resource: &str, namespace: &str, name: &str| Id {
        group: group.into(),
        version: version.into(),
        resource: resource.into(),
        namespace: namespace.into(),
        name: name.into(),
    };
    let space = RUNTIME_NAMESPACE;
    let keeper = format!("{own}-keeper");
    let app = json!({"app.kubernetes.io/name": own});
    let container = json!({
        "name": "keeper", "image": format!("example.local/{own}:{version}"), "args": ["--leader-elect"],
        "env": [{"name": "MODULE", "value": own}, {"name": "VERSION", "value": version}],
        "ports": [{"containerPort": 8080, "name": "metrics", "protocol": "TCP"}],
        "resources": {"limits": {"cpu": "100m", "memory": "64Mi"}, "requests": {"cpu": "10m", "memory": "32Mi"}},
        "securityContext": {"allowPrivilegeEscalation": false},
    });
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta(&keeper, space),
        "spec": {"replicas": 2, "selector": {"matchLabels": app}, "template": {
            "metadata": {"labels": app},
            "spec": {"containers": [container], "serviceAccountName": keeper, "terminationGracePeriodSeconds": 10}}},
    });
    let settings = format!("{own}-settings");
    let text = format!(
        "# settings of {own} {version}\n{}",
        "lamp: fresnel, period: 10 s, colour: white\n".repeat(24)
    );
    let settings_map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta(&settings, space),
        "data": {"version": version, "settings.txt": text},
    });
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta(&keeper, space)});
    let crd_name = format!("lights.{}", group(module));
    let mut all = vec![
        (id("apps", "v1", "deployments", space, &keeper), deployment),
        (id("", "v1", "configmaps", space, &settings), settings_map),
        (id("", "v1", "serviceaccounts", space, &keeper), account),
        (
            id("apiextensions.k8s.io", "v1", "customresourcedefinitions", "", &crd_name),
            crd(module, &crd_name),
        ),
    ];
    if number.is_multiple_of(2) {
        // So that each step up creates or prunes something.
        let extra = format!("{own}-extra");
        let body = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta(&extra, space), "data": {"even": version},
        });
        all.push((id("", "v1", "configmaps", space, &extra), body));
    }
    all
}

fn crd(module: usize, name: &str) -> Value {
    let schema = json!({"type": "object", "description": "Light is one light.", "properties": {
        "spec": {"type": "object", "properties": {
            "colour": {"type": "string", "description": "Of the light.", "default": "white"},
            "periodSeconds": {"type": "integer", "minimum": 1, "maximum": 60}}},
        "status": {"type": "object", "properties": {"state": {"type": "string"}}}}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": name},
        "spec": {"group": group(module), "scope": "Namespaced",
            "names": {"kind": "Light", "listKind": "LightList", "plural": "lights", "singular": "light"},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": schema}}]},
    })
}

/// The default custom resource of a module.
pub fn default_cr(module: usize) -> (Id, Value) {
    let id = Id {
        group: group(module),
        version: "v1".into(),
        resource: "lights".into(),
        namespace: RUNTIME_NAMESPACE.into(),
        name: name(module),
    };
    let body = json!({
        "apiVersion": format!("{}/v1", group(module)), "kind": "Light",
        "metadata": meta(&name(module), RUNTIME_NAMESPACE), "spec": {"periodSeconds": 10},
    });
    (id, body)
}

/// A version's manifest: YAML of several documents.
pub fn raw_manifest(module: usize, number: u32) -> String {
    let documents: Vec<String> =
        objects(module, number).iter().map(|(_, object)| object.to_string()).collect();
    documents.join("\n---\n")
}

/// Whether `actual` has everything that `wanted` says. Lists have to be of the same length.
pub fn has(actual: &Value, wanted: &Value) -> bool {
    match (actual, wanted) {
        (Value::Object(actual), Value::Object(wanted)) => {
            wanted.iter().all(|(key, value)| actual.get(key).is_some_and(|actual| has(actual, value)))
        }
        (Value::Array(actual), Value::Array(wanted)) => {
            actual.len() == wanted.len()
                && actual.iter().zip(wanted).all(|(actual, wanted)| has(actual, wanted))
        }
        (actual, wanted) => actual == wanted,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_letters_and_differ() {
        let names: BTreeSet<String> = (0..MOST).map(name).collect();
        assert_eq!(names.len(), MOST);
        assert!(names.iter().all(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '-')));
    }

    #[test]
    fn each_step_up_changes_creates_or_prunes() {
        let ids = |number| objects(0, number).into_iter().map(|(id, _)| id).collect::<BTreeSet<_>>();
        assert_eq!(ids(2).difference(&ids(1)).count(), 1);
        assert_eq!(ids(2).difference(&ids(3)).count(), 1);
        let image =
            |number| objects(0, number)[0].1["spec"]["template"]["spec"]["containers"][0]["image"].clone();
        assert_ne!(image(1), image(2));
    }

    #[test]
    fn what_is_there_besides_does_no_harm() {
        let wanted = json!({"spec": {"a": 1, "list": [{"b": 2}]}});
        assert!(has(&json!({"spec": {"a": 1, "list": [{"b": 2, "c": 3}], "d": 4}, "status": {}}), &wanted));
        assert!(!has(&json!({"spec": {"a": 1, "list": [{"b": 2}, {"b": 2}]}}), &wanted));
        assert!(!has(&json!({"spec": {"a": 2, "list": [{"b": 2}]}}), &wanted));
        assert!(!has(&json!({}), &wanted));
    }
}
