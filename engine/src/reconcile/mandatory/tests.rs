use serde_json::Value;

use super::*;
use crate::reconcile::tests::{engine_on, not_found};

fn release() -> ModuleReleaseMeta {
    serde_json::from_value(json!({
        "metadata": {"name": "guard", "namespace": "kcp-system", "resourceVersion": "7", "deletionTimestamp": "2026-01-01T00:00:00Z",
                     "finalizers": [finalizers::MANDATORY_MODULE]},
        "spec": {"moduleName": "guard", "ocmComponentName": "tidewatch.dev/module/guard", "mandatory": {"version": "1.0.0"}}
    }))
    .unwrap()
}

fn template(annotations: Value) -> ModuleTemplate {
    serde_json::from_value(json!({
        "metadata": {"name": "guard-1.0.0", "namespace": "kcp-system", "uid": "t", "annotations": annotations},
        "spec": {"moduleName": "guard", "version": "1.0.0", "mandatory": true, "descriptor": {}}
    }))
    .unwrap()
}

#[tokio::test]
async fn a_release_is_released_after_its_templates_are_withdrawn() {
    const OBJECTS: &str = "PATCH /apis/operator.kyma-project.io/v1beta2/namespaces/kcp-system";
    let (engine, requests) = engine_on(|method, path| match (method, path.rsplit('/').next()) {
        ("GET", Some("manifests")) => (
            200,
            json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {}, "items": []}),
        ),
        ("PATCH", Some("guard")) => (200, serde_json::to_value(release()).unwrap()),
        ("PATCH", Some("guard-1.0.0")) => (200, serde_json::to_value(template(json!({}))).unwrap()),
        _ => not_found(),
    });
    let written =
        || -> Vec<String> { requests.lock().drain(..).filter(|line| line.starts_with("PATCH")).collect() };
    engine.state().write().apply_release("guard", Some(release()));
    engine.state().write().apply_template("guard-1.0.0", Some(template(json!({}))));
    engine.dispatcher.reconcilers.release.reconcile("guard").await.unwrap();
    let first = written();
    assert!(first.contains(&format!("{OBJECTS}/moduletemplates/guard-1.0.0")), "{first:?}");
    assert!(first.iter().all(|line| !line.contains("modulereleasemetas")), "{first:?}");
    let withdrawn = template(json!({annotations::MANDATORY_WITHDRAWN: "true"}));
    engine.state().write().apply_template("guard-1.0.0", Some(withdrawn));
    engine.dispatcher.reconcilers.release.reconcile("guard").await.unwrap();
    assert_eq!(written(), [format!("{OBJECTS}/modulereleasemetas/guard")]);
}
