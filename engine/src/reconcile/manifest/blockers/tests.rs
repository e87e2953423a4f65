use serde_json::{Value, json};
use tidewatch_api::names::{annotations, field_managers};

use super::*;
use crate::{
    engine::Engine,
    index::owners::Speaker,
    reconcile::tests::{engine_on, not_found, runtime_on},
};

fn kinds(group: &str, version: &str, plural: &str, kind: &str) -> (u16, Value) {
    let answer = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{group}/{version}"),
        "resources": [{"name": plural, "singularName": "", "namespaced": true, "kind": kind, "verbs": ["get", "list"]}]});
    (200, answer)
}

/// A runtime that belongs to `owner`, with a Beacon created as a default CR.
fn runtime(owner: &'static str) -> Gated {
    runtime_on(move |path| match path {
        "/apis/operator.kyma-project.io/v1beta2" => {
            kinds("operator.kyma-project.io", "v1beta2", "kymas", "Kyma")
        }
        "/apis/x.dev/v1" => kinds("x.dev", "v1", "beacons", "Beacon"),
        "/apis/x.dev/v1/beacons" => (
            200,
            json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": "1"},
                       "items": [{"metadata": {"name": "old", "namespace": "n", "managedFields": [
                           {"manager": field_managers::DEFAULT_CR, "operation": "Apply"}]}}]}),
        ),
        path if path.ends_with("/kymas/default") => (
            200,
            json!({"apiVersion": "operator.kyma-project.io/v1beta2", "kind": "Kyma", "metadata": {"name": "default",
                       "namespace": "kyma-system", "annotations": {annotations::OWNED_BY: owner}}}),
        ),
        _ => not_found(),
    })
}

#[tokio::test]
async fn descendants_of_module_objects_are_not_user_objects() {
    let owned_by = |uid: &str, kind: &str, name: &str| json!([{"apiVersion": "x.dev/v1", "kind": kind, "name": name, "uid": uid, "controller": true}]);
    let lamp = move |name: &str, owners: Value| json!({"metadata": {"name": name, "namespace": "n", "uid": format!("lamp-{name}"), "ownerReferences": owners}});
    let runtime = runtime_on(move |path| {
        match path {
            "/apis/x.dev/v1" => (
                200,
                json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "x.dev/v1", "resources": [
                    {"name": "beacons", "singularName": "", "namespaced": true, "kind": "Beacon", "verbs": ["get", "list"]},
                    {"name": "lamps", "singularName": "", "namespaced": true, "kind": "Lamp", "verbs": ["get", "list"]},
                    {"name": "bulbs", "singularName": "", "namespaced": true, "kind": "Bulb", "verbs": ["get", "list"]}]}),
            ),
            "/apis/x.dev/v1/bulbs" => (
                200,
                json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": "1"},
                       "items": [lamp("of-ours", owned_by("lamp-a", "Lamp", "a")), lamp("of-theirs", owned_by("lamp-b", "Lamp", "b")),
                                 lamp("of-another", owned_by("gone", "Lamp", "a")), lamp("of-itself", owned_by("lamp-c", "Lamp", "c")),
                                 lamp("of-silent", owned_by("lamp-d", "Lamp", "d")), lamp("of-nobody", json!([]))]}),
            ),
            "/apis/x.dev/v1/namespaces/n/lamps/a" => (200, lamp("a", owned_by("u", "Beacon", "default"))),
            "/apis/x.dev/v1/namespaces/n/lamps/b" => (200, lamp("b", owned_by("v", "Beacon", "users"))),
            "/apis/x.dev/v1/namespaces/n/lamps/c" => (200, lamp("c", owned_by("lamp-c", "Lamp", "c"))),
            // The server of this kind is down.
            path if path.ends_with("/lamps/d") => {
                (500, json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500}))
            }
            _ => not_found(),
        }
    });
    let users = users_of(&runtime, &[Gvk::of("x.dev/v1", "Bulb")], &[cr("default")]).await.unwrap();
    let named: Vec<&str> = users.first.iter().map(|object| object.name.as_str()).collect();
    assert_eq!(
        (named, users.count),
        (vec!["of-theirs", "of-another", "of-itself", "of-silent", "of-nobody"], 5)
    );
}

fn cr(name: &str) -> ObjectRef {
    ObjectRef { gvk: Gvk::of("x.dev/v1", "Beacon"), namespace: "n".into(), name: name.into() }
}

fn crd() -> ObjectRef {
    let gvk = Gvk::of("apiextensions.k8s.io/v1", "CustomResourceDefinition");
    ObjectRef { gvk, namespace: String::new(), name: "beacons.x.dev".into() }
}

fn claim(engine: &Engine, kyma: &str, manifest: &str, object: &ObjectRef) {
    engine.dispatcher.kcp.index_mut().owners.claim(Speaker::Watch, kyma, manifest, [object]);
}

#[tokio::test]
async fn another_kymas_default_cr_is_not_deleted() {
    for (theirs, is_shared) in
        [(None, false), (Some(cr("b")), true), (Some(crd()), true), (Some(cr("c")), false)]
    {
        let (engine, _) = engine_on(|_, _| not_found());
        let lagoon = json!({"metadata": {"name": "lagoon", "uid": "u"}, "spec": {"channel": "regular"}});
        drop(engine.dispatcher.kcp.index_mut().apply_kyma(serde_json::from_value(lagoon).unwrap()));
        if let Some(theirs) = &theirs {
            claim(&engine, "lagoon", "lagoon-beacon", theirs);
        }
        let of = async |owner| {
            engine
                .dispatcher
                .reconcilers
                .manifest
                .removal
                .without_others("harbour", &runtime(owner), vec![cr("b")])
                .await
                .unwrap()
        };
        assert_eq!(of("kcp-system/lagoon").await.is_empty(), is_shared, "{theirs:?}");
        assert_eq!(of("kcp-system/harbour").await, [cr("b")], "the runtime is still this one's");
    }
}

#[tokio::test]
async fn a_former_default_cr_of_a_shared_kind_stays() {
    let module = json!({"metadata": {"name": "harbour-beacon", "namespace": "kcp-system"},
        "spec": {"resource": {"apiVersion": "x.dev/v1", "kind": "Beacon", "metadata": {"name": "new", "namespace": "n"}}}});
    let module: Manifest = serde_json::from_value(module).unwrap();
    let definitions_changed =
        BTreeMap::from([(("x.dev".to_owned(), "Beacon".to_owned()), Gvk::of("x.dev/v1", "Beacon"))]);
    for (theirs, goes) in [(None, true), (Some(crd()), false), (Some(cr("old")), false)] {
        let (engine, _) = engine_on(|_, _| not_found());
        if let Some(theirs) = &theirs {
            claim(&engine, "harbour", "harbour-lamp", theirs);
        }
        let crs = engine
            .dispatcher
            .reconcilers
            .manifest
            .removal
            .default_crs("harbour", &module, &runtime("kcp-system/harbour"), &definitions_changed)
            .await
            .unwrap();
        let wanted = if goes { vec![cr("new"), cr("old")] } else { vec![cr("new")] };
        assert_eq!(crs, wanted, "{theirs:?}");
    }
}
