use std::collections::BTreeMap;

use serde_json::{Value, json};
use tidewatch_api::{
    inventory::union,
    object::{Gvk, ObjectRef},
};

use super::*;
use crate::prune::prune;

mod order;

const NAME: (&str, &str) = ("kcp-system", "m");

fn object(api_version: &str, kind: &str, namespace: Option<&str>, name: &str) -> Value {
    let mut object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}});
    if let Some(namespace) = namespace {
        object["metadata"]["namespace"] = namespace.into();
    }
    object
}

fn rendered() -> Vec<Value> {
    let mut crd = object("apiextensions.k8s.io/v1", "CustomResourceDefinition", None, "beacons.x.dev");
    crd["spec"] = json!({"group": "x.dev", "scope": "Namespaced", "names": {"kind": "Beacon"}});
    vec![
        object("x.dev/v1", "Beacon", None, "b"),
        object("apps/v1", "Deployment", Some("s"), "d"),
        object("rbac.authorization.k8s.io/v1", "ClusterRole", Some("wrong"), "r"),
        object("v1", "ConfigMap", None, "c"),
        crd,
        object("v1", "Namespace", None, "s"),
    ]
}

fn scopes() -> BTreeMap<Gvk, Scope> {
    BTreeMap::from([
        (Gvk::of("apps/v1", "Deployment"), Scope::Namespaced),
        (Gvk::of("v1", "ConfigMap"), Scope::Namespaced),
        (Gvk::of("v1", "Namespace"), Scope::Cluster),
        (Gvk::of("rbac.authorization.k8s.io/v1", "ClusterRole"), Scope::Cluster),
        (Gvk::of("apiextensions.k8s.io/v1", "CustomResourceDefinition"), Scope::Cluster),
    ])
}

fn names(objects: &[Value]) -> Vec<&str> {
    objects.iter().filter_map(|o| o["metadata"]["name"].as_str()).collect()
}

#[test]
fn objects_are_ordered_and_namespaced() {
    let bundle = bundle(NAME, rendered(), &scopes()).unwrap();
    assert_eq!(names(&bundle.first), ["beacons.x.dev", "s"]);
    assert_eq!(names(&bundle.main), ["d", "r", "c"]);
    assert_eq!(names(&bundle.custom), ["b"]);
    let text: Vec<String> = bundle.objects.iter().map(ToString::to_string).collect();
    assert_eq!(
        text[..4],
        [
            "Beacon.x.dev default/b",
            "Deployment.apps s/d",
            "ClusterRole.rbac.authorization.k8s.io r",
            "ConfigMap default/c"
        ]
    );
    assert_eq!(bundle.main[0]["metadata"]["labels"]["operator.kyma-project.io/managed-by"], "kyma");
}

#[test]
fn only_kinds_not_defined_by_the_bundle_are_discovered() {
    let kinds = foreign_kinds(&rendered());
    assert!(kinds.contains(&Gvk::of("apps/v1", "Deployment")));
    assert!(!kinds.contains(&Gvk::of("x.dev/v1", "Beacon")));
}

#[test]
fn an_empty_render_is_an_error() {
    assert_eq!(bundle(NAME, vec![], &scopes()), Err(BundleError::Empty));
    let unnamed = bundle(NAME, vec![json!({"kind": "X"})], &scopes()).unwrap();
    assert_eq!((unnamed.main.len(), unnamed.objects.len()), (1, 0), "it has no place in the inventory");
}

#[test]
fn the_first_of_two_equal_objects_wins() {
    let mut second = object("v1", "ConfigMap", Some("default"), "c");
    second["data"] = json!({"of": "the second"});
    let role = |namespace| object("rbac.authorization.k8s.io/v1", "ClusterRole", namespace, "r");
    let twice = vec![object("v1", "ConfigMap", None, "c"), second, role(None), role(Some("s"))];
    let bundle = bundle(NAME, twice, &scopes()).unwrap();
    assert_eq!(names(&bundle.main), ["c", "r"]);
    assert_eq!(bundle.objects.len(), 2);
    assert_eq!(bundle.main[0]["data"], Value::Null);
}

#[test]
fn pruning_removes_the_difference_in_a_safe_order() {
    let old = bundle(NAME, rendered(), &scopes()).unwrap().objects;
    let keep: Vec<ObjectRef> = old.iter().filter(|o| o.name == "c").cloned().collect();
    let order: Vec<String> = prune(&old, &keep).into_iter().map(|o| o.name).collect();
    assert_eq!(order, ["b", "d", "r", "beacons.x.dev", "s"]);
    assert!(prune(&old, &old).is_empty());
    let home =
        ObjectRef { gvk: Gvk::of("v1", "Namespace"), namespace: String::new(), name: "kyma-system".into() };
    assert!(prune(&[home], &[]).is_empty());
}

#[test]
fn webhooks_go_after_custom_resources_and_before_servers() {
    let of = |api_version: &str, kind: &str| ObjectRef {
        gvk: Gvk::of(api_version, kind),
        namespace: String::new(),
        name: kind.into(),
    };
    let inventory = [
        of("v1", "Service"),
        of("apps/v1", "Deployment"),
        of("apiregistration.k8s.io/v1", "APIService"),
        of("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"),
        of("x.dev/v1", "Beacon"),
    ];
    let order: Vec<String> = prune(&inventory, &[]).into_iter().map(|o| o.name).collect();
    assert_eq!(order, ["Beacon", "APIService", "ValidatingWebhookConfiguration", "Deployment", "Service"]);
}

#[test]
fn a_new_version_of_a_kind_is_the_same_object() {
    let old = ObjectRef { gvk: Gvk::of("x.dev/v1", "Beacon"), namespace: "n".into(), name: "b".into() };
    let new = ObjectRef { gvk: Gvk::of("x.dev/v2", "Beacon"), ..old.clone() };
    assert!(prune(std::slice::from_ref(&old), std::slice::from_ref(&new)).is_empty());
    assert_eq!(union(&[old], std::slice::from_ref(&new)), [new]);
}
