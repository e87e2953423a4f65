use serde_json::{Value, json};
use tidewatch_api::names::{annotations, labels};

use super::*;
use crate::{
    reconcile::tests::{engine_on, not_found, runtime_on},
    scripted,
};

/// A Manifest in deletion with an unreadable layer.
fn manifest(entries: &[Value], annotations: &Value) -> Manifest {
    serde_json::from_value(json!({
        "metadata": {"name": "m", "namespace": "kcp-system", "uid": "u", "resourceVersion": "7", "labels": {labels::KYMA_NAME: "harbour"},
            "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [finalizers::MANIFEST], "annotations": annotations,
            "managedFields": entries},
        "spec": {"install": {"name": "raw-manifest", "source": {}}}
    }))
    .unwrap()
}

/// The outcome and the paths of KCP writes.
async fn end(manifest: Manifest) -> (Outcome, Vec<String>) {
    let (engine, requests) = engine_on(|method, path| match method {
        "PATCH" if path.contains("/manifests/m") => {
            (200, json!({"metadata": {"name": "m", "namespace": "kcp-system"}, "spec": {}}))
        }
        "POST" => (201, json!({"kind": "Event", "apiVersion": "v1", "metadata": {}, "involvedObject": {}})),
        _ => not_found(),
    });
    let runtime = runtime_on(|_| not_found());
    let force = engine.dispatcher.reconcilers.manifest.removal.forced("harbour", &manifest).await;
    let ending = engine.dispatcher.reconcilers.manifest.end("harbour", manifest, &runtime, force.as_ref());
    let finish = Box::pin(ending).await.unwrap();
    let lines = requests.lock().iter().filter(|line| line.starts_with("PATCH")).cloned().collect();
    (finish, lines)
}

#[tokio::test]
async fn keeps_the_finalizer_without_a_trusted_inventory() {
    const MANIFEST: &str = "PATCH /apis/operator.kyma-project.io/v1beta2/namespaces/kcp-system/manifests/m";
    let (finish, written) = end(manifest(&[], &json!({}))).await;
    let report = finish.report().unwrap();
    assert!(
        report.message.contains("another client has changed or removed its inventory"),
        "{}",
        report.message
    );
    assert_eq!(written, [format!("{MANIFEST}/status")], "its finalizers stay");

    let (finish, written) =
        end(manifest(&[], &json!({annotations::FORCE_DELETE: "the cluster is another team's"}))).await;
    assert!(finish == Outcome::done(), "{finish:?}");
    assert_eq!(written, [MANIFEST], "its finalizers");

    let own = json!({"manager": tidewatch_api::names::field_managers::APPLIER, "operation": "Apply", "subresource": "status",
        "fieldsV1": {"f:status": {"f:state": {}, "f:synced": {}}}});
    let (finish, written) = end(manifest(&[own], &json!({}))).await;
    assert!(finish == Outcome::done(), "nothing of it was installed: {finish:?}");
    assert_eq!(written, [MANIFEST], "its finalizers");
}

#[tokio::test]
async fn a_forged_inventory_entry_needs_the_modules_marks() {
    let (engine, _) = engine_on(|_, _| not_found());
    let runtime = runtime_on(|path| {
        let resources = |of: &str, kind: &str, namespaced: bool| {
            let resource = json!({"name": of, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": ["get", "list"]});
            (
                200,
                json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": [resource]}),
            )
        };
        let object = |name: &str, owned_by: &str| {
            let metadata = json!({"name": name, "uid": name, "labels": {labels::MANAGED_BY: labels::MANAGED_BY_RUNTIME},
                "annotations": {annotations::OWNED_BY: owned_by}});
            (
                200,
                json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}),
            )
        };
        match path {
            "/api/v1" => resources("configmaps", "ConfigMap", true),
            "/apis/authentication.k8s.io/v1" => resources("tokenreviews", "TokenReview", false),
            "/api/v1/namespaces/kyma-system/configmaps/own" => object("own", "kcp-system/m"),
            "/api/v1/namespaces/kyma-system/configmaps/users" => object("users", ""),
            "/apis/authentication.k8s.io/v1/tokenreviews/review" => (
                405,
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "MethodNotAllowed", "code": 405}),
            ),
            _ => not_found(),
        }
    });
    let entry = |api: &str, kind: &str, namespace: &str, name: &str| {
        let gvk = Gvk::of(api, kind);
        json!({"group": gvk.group, "version": gvk.version, "kind": kind, "namespace": namespace, "name": name})
    };
    let mut forged = manifest(&[], &json!({}));
    let own = entry("v1", "ConfigMap", "kyma-system", "own");
    let synced = json!([
        own,
        entry("v1", "ConfigMap", "kyma-system", "users"),
        entry("v1", "ConfigMap", "kyma-system", "gone"),
        entry("a/b/c", "ConfigMap", "", "none"),
        entry("authentication.k8s.io/v1", "TokenReview", "", "review")
    ]);
    forged.status = serde_json::from_value(json!({"state": "Ready", "synced": synced})).unwrap();
    let (whole, _) =
        engine.dispatcher.reconcilers.manifest.removal.with_inventory("harbour", forged, &runtime).await;
    assert_eq!(json!(whole.status.unwrap().synced), json!([own]));
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_runtime_is_asked_once_for_the_inventory() {
    let (engine, _) = engine_on(|_, _| not_found());
    let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let runtime = scripted::runtime(move |_| {
        counter.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        None
    });
    let entry = |name: usize| json!({"group": "", "version": "v1", "kind": "ConfigMap", "namespace": "n", "name": name.to_string()});
    let mut forged = manifest(&[], &json!({}));
    let synced: Vec<Value> = (0..50).map(entry).collect();
    forged.status = serde_json::from_value(json!({"state": "Ready", "synced": synced})).unwrap();
    let (whole, _) =
        engine.dispatcher.reconcilers.manifest.removal.with_inventory("harbour", forged, &runtime).await;
    assert_eq!(json!(whole.status.unwrap().synced), json!(synced), "nothing is known of any of them");
    assert!(asked.load(std::sync::atomic::Ordering::SeqCst) <= 3, "{asked:?}");
}

#[tokio::test]
async fn a_manifest_held_by_others_names_their_finalizers() {
    const MANIFEST: &str = "PATCH /apis/operator.kyma-project.io/v1beta2/namespaces/kcp-system/manifests/m";
    let own = json!({"manager": tidewatch_api::names::field_managers::APPLIER, "operation": "Apply", "subresource": "status",
        "fieldsV1": {"f:status": {"f:state": {}, "f:synced": {}}}});
    for (finalizers, written) in [
        (
            vec![finalizers::MANIFEST, "x.dev/backup", "x.dev/audit"],
            vec![MANIFEST.to_owned(), format!("{MANIFEST}/status")],
        ),
        (vec!["x.dev/backup", "x.dev/audit"], vec![format!("{MANIFEST}/status")]),
    ] {
        let mut held = manifest(std::slice::from_ref(&own), &json!({}));
        held.metadata.finalizers = Some(finalizers.into_iter().map(str::to_owned).collect());
        let (finish, lines) = end(held).await;
        assert!(finish.waits_for_event(), "{finish:?}");
        let message = finish.message();
        assert!(message.contains("finalizer x.dev/backup, x.dev/audit"), "{message}");
        assert_eq!(lines, written);
    }
}

#[tokio::test]
async fn a_manifest_of_a_deleted_cluster_is_released() {
    let (engine, requests) =
        engine_on(|_, _| (200, json!({"metadata": {"name": "m", "namespace": "kcp-system"}, "spec": {}})));
    let mut held = manifest(&[], &json!({}));
    held.metadata.finalizers = Some(vec!["x.dev/backup".to_owned()]);
    assert_eq!(
        engine.dispatcher.reconcilers.manifest.removal.release_with_cluster(&held).await.unwrap(),
        Outcome::done()
    );
    let lines: Vec<_> = requests.lock().clone();
    assert!(
        matches!(&lines[..], [line] if line.starts_with("PATCH") && line.ends_with("/manifests/m")),
        "{lines:?}"
    );
}
