use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::json;

use crate::{
    clusters::objects::*,
    reconcile::tests::{not_found, runtime_on},
};

fn buoys(versions: &Value) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "buoys.x.dev"},
        "spec": {"group": "x.dev", "names": {"kind": "Buoy", "plural": "buoys"}, "versions": versions}})
}

fn buoy(version: &str) -> ObjectRef {
    let gvk = Gvk::of(&format!("x.dev/{version}"), "Buoy");
    ObjectRef { gvk, namespace: "n".into(), name: "a".into() }
}

#[test]
fn reads_a_kind_in_its_served_storage_version() {
    let version =
        |name: &str, served: bool, storage: bool| json!({"name": name, "served": served, "storage": storage});
    for (versions, read_in) in [
        (json!([version("v1", true, true)]), Some("v1")),
        (json!([version("v1", true, false), version("v2", true, true)]), Some("v2")),
        (json!([version("v2", true, true), version("v1", true, false)]), Some("v2")),
        (json!([version("v1", true, false), version("v2", false, true)]), Some("v1")),
        (json!([version("v1", false, true)]), None),
        (json!([]), None),
        (Value::Null, None),
    ] {
        let kind = defined_kind(&buoys(&versions));
        assert_eq!(kind.as_ref().map(|kind| kind.version.as_str()), read_in, "{versions}");
    }
}

/// A runtime that stores Buoys in v1beta1 and cannot convert them to v1alpha1; and the requested paths.
fn runtime_without_converter() -> (Gated, Arc<Mutex<Vec<String>>>) {
    let paths = Arc::new(Mutex::new(Vec::new()));
    let recorder = Arc::clone(&paths);
    let kinds = |version: &str| {
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("x.dev/{version}"), "resources": [
            {"name": "buoys", "singularName": "", "namespaced": true, "kind": "Buoy", "verbs": ["get", "list", "delete"]}]})
    };
    let runtime = runtime_on(move |path| {
        recorder.lock().push(path.to_owned());
        let metadata = json!({"name": "a", "namespace": "n", "uid": "u"});
        match path {
            "/apis/x.dev/v1alpha1" => (200, kinds("v1alpha1")),
            "/apis/x.dev/v1beta1" => (200, kinds("v1beta1")),
            path if path.ends_with("/customresourcedefinitions/buoys.x.dev") => (
                200,
                buoys(
                    &json!([{"name": "v1alpha1", "served": true}, {"name": "v1beta1", "served": true, "storage": true}]),
                ),
            ),
            path if path.ends_with("/customresourcedefinitions") => not_found(),
            "/apis/apiextensions.k8s.io/v1" => (
                200,
                json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "apiextensions.k8s.io/v1", "resources": [
                    {"name": "customresourcedefinitions", "singularName": "", "namespaced": false,
                     "kind": "CustomResourceDefinition", "verbs": ["get"]}]}),
            ),
            path if path.starts_with("/apis/x.dev/v1alpha1/") => (
                500,
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500, "reason": "InternalError",
                    "message": "conversion webhook for x.dev/v1beta1, Kind=Buoy failed: Post \"https://x.n.svc\": no such host"}),
            ),
            "/apis/x.dev/v1beta1/buoys" => (
                200,
                json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": "1"},
                    "items": [{"metadata": metadata}]}),
            ),
            "/apis/x.dev/v1beta1/namespaces/n/buoys/a" => (
                200,
                json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}),
            ),
            _ => not_found(),
        }
    });
    (runtime, paths)
}

#[tokio::test]
async fn without_converter_lists_and_deletes_in_the_storage_version() {
    let (runtime, paths) = runtime_without_converter();
    let old = buoy("v1alpha1");
    let page = list(&runtime, &old.gvk, "", 10).await.unwrap();
    assert_eq!(page.first.iter().map(|listed| listed.object.name.as_str()).collect::<Vec<_>>(), ["a"]);
    assert_eq!(find(&runtime, &old).await.unwrap().unwrap().uid, "u");
    assert_eq!(delete(&runtime, &old, "u").await.unwrap(), Deleted::Going);
    assert_eq!(served(&runtime, old.gvk.clone()).await.unwrap().version, "v1beta1");
    paths.lock().clear();
    list(&runtime, &buoy("v1beta1").gvk, "", 10).await.unwrap();
    assert!(
        paths.lock().iter().all(|path| !path.contains("customresourcedefinitions")),
        "the CRD is read only where the version differs"
    );
}

#[tokio::test]
async fn conversion_webhook_failures_count_as_webhook_failures() {
    let (runtime, _) = runtime_without_converter();
    let wanted =
        json!({"apiVersion": "x.dev/v1alpha1", "kind": "Buoy", "metadata": {"name": "a", "namespace": "n"}});
    let error = apply(&runtime, &wanted, "m").await.unwrap_err();
    assert!(error.is_of_webhook() && error.is_of_conversion(), "{}", error.message());
    let missing = get(&runtime, &buoy("v1")).await.unwrap_err();
    assert!(!missing.is_of_webhook(), "{}", missing.message());
}

/// While an agent's request is awaited, it is looked for every half second.
#[tokio::test]
async fn a_missing_object_that_the_api_server_names_costs_one_call() {
    for (name, discoveries) in [("a", 1), ("", 2)] {
        let paths = Arc::new(Mutex::new(Vec::new()));
        let recorder = Arc::clone(&paths);
        let runtime = runtime_on(move |path| {
            recorder.lock().push(path.to_owned());
            let kinds = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "x.dev/v1", "resources": [
                {"name": "buoys", "singularName": "", "namespaced": true, "kind": "Buoy", "verbs": ["get"]}]});
            match path {
                "/apis/x.dev/v1" => (200, kinds),
                _ => {
                    let (code, mut status) = not_found();
                    status["details"] = json!({"name": name, "group": "x.dev", "kind": "buoys"});
                    (code, status)
                }
            }
        });
        assert_eq!(get(&runtime, &buoy("v1")).await.unwrap(), None);
        let count = paths.lock().iter().filter(|path| *path == "/apis/x.dev/v1").count();
        assert_eq!(count, discoveries, "{name:?}");
    }
}
