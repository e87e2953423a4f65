//! The types parse objects found in clusters without loss.

// Test helpers may panic.
#![allow(clippy::unwrap_used, clippy::panic)]

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tidewatch_api::{
    ImageSpec, Kyma, Manifest, ModuleReleaseMeta, ModuleTemplate, SourceError, SourceType, State, Watcher,
};

fn objects(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

fn find<K: DeserializeOwned>(kind: &str, name: &str) -> K {
    let found = objects(include_str!("fixtures/kcp.yaml"))
        .into_iter()
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == name)
        .unwrap();
    serde_json::from_value(found).unwrap()
}

fn there_and_back<K: DeserializeOwned + Serialize>(object: &Value) -> Value {
    let typed: K = serde_json::from_value(object.clone()).unwrap();
    serde_json::to_value(typed).unwrap()
}

fn by_kind(object: &Value) -> Value {
    match object["kind"].as_str().unwrap() {
        "Kyma" => there_and_back::<Kyma>(object),
        "Manifest" => there_and_back::<Manifest>(object),
        "ModuleTemplate" => there_and_back::<ModuleTemplate>(object),
        "ModuleReleaseMeta" => there_and_back::<ModuleReleaseMeta>(object),
        "Watcher" => there_and_back::<Watcher>(object),
        other => panic!("no type for {other}"),
    }
}

#[test]
fn objects_round_trip_through_the_types() {
    let mut seen = 0;
    for text in [include_str!("fixtures/kcp.yaml"), include_str!("fixtures/runtime.yaml")] {
        for mut object in objects(text) {
            let written = by_kind(&object);
            // An empty message of a module equals none.
            if let Some(modules) = object.pointer_mut("/status/modules").and_then(Value::as_array_mut) {
                for module in modules {
                    module.as_object_mut().unwrap().retain(|_, value| value != "");
                }
            }
            assert_eq!(written, object, "{}", object["metadata"]["name"]);
            seen += 1;
        }
    }
    assert_eq!(seen, 8);
}

/// One poor object must not fail a list or watch.
#[test]
fn incomplete_objects_parse() {
    for kind in ["Kyma", "Manifest", "ModuleTemplate", "ModuleReleaseMeta", "Watcher"] {
        for rest in [
            json!({}),
            json!({ "spec": {} }),
            json!({ "spec": {}, "status": {} }),
            json!({ "spec": { "ofALaterVersion": 1 }, "status": { "ofALaterVersion": [] } }),
        ] {
            let mut object = json!({ "apiVersion": "operator.kyma-project.io/v1beta2", "kind": kind });
            object["metadata"] = json!({ "name": "poor" });
            object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
            by_kind(&object);
        }
    }
}

#[test]
fn missing_fields_get_the_api_servers_defaults() {
    let kyma: Kyma = serde_json::from_value(json!({
        "metadata": { "name": "default" },
        "spec": { "modules": [{ "name": "lighthouse" }] },
    }))
    .unwrap();
    let written = serde_json::to_value(&kyma.spec.modules[0]).unwrap();
    assert_eq!(
        written,
        json!({ "name": "lighthouse", "managed": true, "customResourcePolicy": "CreateAndDelete" })
    );
}

#[test]
fn a_kyma_returns_its_runtime_and_channels() {
    let mut kyma: Kyma = find("Kyma", "harbor-one");
    assert_eq!(kyma.runtime_id(), Some("7c1f2a9e"));
    assert_eq!(kyma.skr_domain(), Some("one.harbor.example.org"));
    assert!(kyma.is_beta() && !kyma.is_internal() && !kyma.is_skipped());
    assert_eq!(kyma.channel_of(&kyma.spec.modules[0]), "regular");
    assert_eq!(kyma.channel_of(&kyma.spec.modules[1]), "fast");
    assert_eq!(kyma.module_status("lighthouse").unwrap().state, State::Ready);
    assert!(kyma.module_status("foghorn").is_none());

    kyma.metadata
        .labels
        .as_mut()
        .unwrap()
        .insert(tidewatch_api::names::labels::RUNTIME_ID.into(), String::new());
    assert_eq!(kyma.runtime_id(), None, "an empty id names nobody");
    kyma.spec.channel.clear();
    assert_eq!(kyma.channel_of(&kyma.spec.modules[0]), "regular", "the default channel");
}

#[test]
fn a_manifest_returns_its_source() {
    let mut manifest: Manifest = find("Manifest", "harbor-one-lighthouse-301");
    assert_eq!(manifest.kyma_name(), Some("harbor-one"));
    assert_eq!(manifest.module_name(), Some("lighthouse"));
    let expected = ImageSpec {
        repo: "registry.example.org/harbor".into(),
        name: "example.org/module/lighthouse".into(),
        ref_: "sha256:5d0b".into(),
        type_: SourceType::OciDir,
    };
    assert_eq!(manifest.install_source().unwrap(), expected);
    manifest.spec.install.source = expected.to_source();
    assert_eq!(manifest.install_source().unwrap(), expected);

    let cases = [
        ("type", json!("zip"), SourceError::UnknownType("zip".into())),
        ("type", json!(""), SourceError::Missing("type")),
        ("type", json!(7), SourceError::NotText("type")),
        ("repo", json!(""), SourceError::Missing("repo")),
        ("ref", json!({}), SourceError::NotText("ref")),
    ];
    for (field, value, error) in cases {
        let mut broken = manifest.clone();
        broken.spec.install.source.0.insert(field.into(), value);
        assert_eq!(broken.install_source().unwrap_err(), error);
    }
}

#[test]
fn a_module_is_found_by_name_and_channel() {
    let template: ModuleTemplate = find("ModuleTemplate", "lighthouse-2.3.1");
    let name = ModuleTemplate::object_name("lighthouse", "2.3.1");
    assert_eq!(template.metadata.name.as_deref(), Some(name.as_str()));
    assert_eq!(template.module_name(), Some("lighthouse"));
    assert!(!template.is_cluster_scoped());

    let meta: ModuleReleaseMeta = find("ModuleReleaseMeta", "lighthouse");
    assert_eq!(meta.version_of("fast"), Some("2.4.0-rc"));
    assert_eq!(meta.version_of("slow"), None);
    assert_eq!(meta.mandatory_version(), None);
    let mandatory: ModuleReleaseMeta = find("ModuleReleaseMeta", "breakwater");
    assert_eq!(mandatory.version_of("regular"), None);
    assert_eq!(mandatory.mandatory_version(), Some("1.0.0-rc.1+build.7"));

    let watcher: Watcher = find("Watcher", "harbor-watcher");
    assert_eq!(watcher.manager_name(), Some("harbormaster"));
}

#[test]
fn the_generated_crds_are_current() {
    let folder =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/charts/tidewatch/files/crds");
    for crd in tidewatch_api::crds::all() {
        let file = folder.join(tidewatch_api::crds::file_name(&crd));
        let written = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(
            written == tidewatch_api::crds::yaml(&crd),
            "{} is stale: run `make generate`",
            file.display()
        );
    }
}
