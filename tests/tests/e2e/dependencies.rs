//! Modules that need other modules or kinds.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Event;
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tidewatch_api::State;
use tidewatch_tests::{
    modules::Version,
    observed::{self, metric},
    solo::Solo,
    story::set_modules,
    wait,
};

const CRD: (&str, &str, &str) = ("apiextensions.k8s.io", "v1", "CustomResourceDefinition");

fn module(name: &str, version: &str, requires: &Value) -> Version {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"},
                     "data": {"a": "1"}});
    let mut module = Version::new(name, version, vec![map]);
    if !requires.is_null() {
        module.template = json!({"requires": requires});
    }
    module
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_apis_event_installs_the_module() -> Result<()> {
    let solo = Solo::start_watched("kcp-needs", "wharf", Vec::new()).await?;
    let agent = solo.agent().await?;
    let group = "gantry.example.test";
    solo.offer(&module(
        "crane",
        "1.0.0",
        &json!({"apis": [{"group": group, "version": "v1", "kind": "Hook"}]}),
    ))
    .await?;
    solo.offer(&module("bollard", "1.0.0", &json!(null))).await?;
    set_modules(&solo.runtime, &json!([{"name": "crane"}, {"name": "bollard"}])).await?;
    solo.module("crane", "to say what it waits for", |m| {
        m.state == State::Processing
            && m.message.contains("waits for the kind Hook of gantry.example.test/v1")
    })
    .await?;
    solo.module("bollard", "to be Ready, whatever the other one waits for", |m| m.state == State::Ready)
        .await?;
    ensure!(solo.manifest("crane").await.is_err(), "it is installed without what it needs");
    solo.watching(&agent, "engine.apiservices.apiregistration.k8s.io.spec").await?;

    let name = format!("hooks.{group}");
    let crd = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": name}, "spec": {"group": group, "scope": "Namespaced",
        "names": {"plural": "hooks", "singular": "hook", "kind": "Hook"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
            {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    let began = tokio::time::Instant::now();
    let crds = solo.objects(CRD, None);
    crds.patch(&name, &PatchParams::apply("somebody"), &Patch::Apply(&crd)).await?;
    solo.module("crane", "to be Ready", |m| m.state == State::Ready).await?;
    println!("the module was Ready {:?} after the kind it needs", began.elapsed());
    ensure!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    let polls = metric(&solo.receiver.admin, "tidewatch_receiver_looks_total{reason=\"poll\"}").await?;
    ensure!(polls == 0, "it was polled");

    // A missing dependency never removes an installed module. An event updates its status.
    let before = solo.manifest("crane").await?.metadata;
    crds.delete(&name, &DeleteParams::default()).await?;
    solo.module("crane", "to say what is gone", |m| {
        m.state == State::Warning
            && m.message.contains("the kind Hook of gantry.example.test/v1 (not served); it stays as it is")
    })
    .await?;
    let kept = solo.manifest("crane").await?.metadata;
    ensure!(
        (&kept.uid, kept.generation, &kept.deletion_timestamp) == (&before.uid, before.generation, &None),
        "{kept:?}"
    );
    crds.patch(&name, &PatchParams::apply("somebody"), &Patch::Apply(&crd)).await?;
    solo.module("crane", "to be Ready again", |m| m.state == State::Ready).await?;

    // Unneeded kinds are not watched.
    set_modules(&solo.runtime, &json!([{"name": "bollard"}])).await?;
    solo.gone("crane").await?;
    agent
        .process
        .ready("to watch only our own definitions", Duration::from_mins(1), || async {
            let page = agent.status().await?;
            ensure!(!page["watches"].to_string().contains("apiservices"), "{page:#}");
            Ok(Some(()))
        })
        .await?;
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_module_is_installed_once_its_dependency_is_ready() -> Result<()> {
    let solo = Solo::start("kcp-chain", "pier").await?;
    solo.offer(&module("deck", "1.0.0", &json!({"modules": ["pile"]}))).await?;
    solo.offer(&module("pile", "1.0.0", &json!(null))).await?;
    solo.enable(&json!([{"name": "deck"}])).await?;
    solo.module("deck", "to say what it waits for", |m| {
        m.state == State::Processing && m.message.contains("module 'pile' (not enabled)")
    })
    .await?;
    solo.enable(&json!([{"name": "deck"}, {"name": "pile"}])).await?;
    for module in ["pile", "deck"] {
        solo.module(module, "to be Ready", |m| m.state == State::Ready).await?;
    }
    // The module outlives its dependency and reports it.
    solo.enable(&json!([{"name": "deck"}])).await?;
    solo.gone("pile").await?;
    solo.module("deck", "to say what is gone", |m| {
        m.state == State::Warning && m.message.contains("module 'pile' (not enabled); it stays as it is")
    })
    .await?;
    solo.manifest("deck").await?;
    solo.enable(&json!([{"name": "deck"}, {"name": "pile"}])).await?;
    solo.module("deck", "to be Ready again", |m| m.state == State::Ready).await?;
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn modules_requiring_each_other_are_reported() -> Result<()> {
    let solo = Solo::start("kcp-cycle", "roundhouse").await?;
    solo.offer(&module("egg", "1.0.0", &json!({"modules": ["hen"]}))).await?;
    solo.offer(&module("hen", "1.0.0", &json!({"modules": ["egg"]}))).await?;
    solo.offer(&module("straw", "1.0.0", &json!(null))).await?;
    solo.enable(&json!([{"name": "egg"}, {"name": "hen"}, {"name": "straw"}])).await?;
    for module in ["egg", "hen"] {
        solo.module(module, "to name both", |m| {
            m.state == State::Warning && m.message.contains("the modules egg, hen wait for each other")
        })
        .await?;
    }
    solo.module("straw", "to be Ready all the same", |m| m.state == State::Ready).await?;
    solo.event("ModuleWaits", &["egg, hen"]).await?;
    // A version without dependencies resolves both.
    solo.offer(&module("egg", "1.1.0", &json!(null))).await?;
    for module in ["egg", "hen"] {
        solo.module(module, "to be Ready", |m| m.state == State::Ready).await?;
    }
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_wait_is_a_warning_until_installed() -> Result<()> {
    let arguments = vec!["--dependency-patience=5".to_owned()];
    let solo = Solo::start_with("kcp-patience", "jetty", arguments).await?;
    solo.offer(&module("plank", "1.0.0", &json!({"modules": ["nail"]}))).await?;
    solo.offer(&module("nail", "1.0.0", &json!(null))).await?;
    solo.enable(&json!([{"name": "plank"}])).await?;
    let waits = "module 'nail' (not enabled)";
    solo.module("plank", "to say what it waits for", |m| {
        m.state == State::Processing && m.message.contains(waits)
    })
    .await?;
    // Only time has passed.
    solo.module("plank", "to be a Warning", |m| m.state == State::Warning && m.message.contains(waits))
        .await?;
    solo.event("ModuleWaits", &["nail"]).await?;
    ensure!(solo.manifest("plank").await.is_err(), "it is installed without what it needs");
    solo.enable(&json!([{"name": "plank"}, {"name": "nail"}])).await?;
    solo.module("plank", "to be Ready", |m| m.state == State::Ready).await?;
    observed::no_panic(&solo.receiver.process)
}

/// Mandatory modules have no entry in the Kyma's status.
#[tokio::test(flavor = "multi_thread")]
async fn a_mandatory_module_waits_for_its_requirements() -> Result<()> {
    let solo =
        Solo::start_watched("kcp-mandatory-needs", "towpath", vec!["--dependency-patience=3".into()]).await?;
    let agent = solo.agent().await?;
    let group = "towpath.example.test";
    let requires = json!({"modules": ["mule"], "apis": [{"group": group, "version": "v1", "kind": "Rope"}]});
    let mut guard = module("lockkeeper", "1.0.0", &requires);
    guard.release = json!({"mandatory": {"version": "1.0.0"}});
    solo.offer(&guard).await?;
    solo.offer(&module("mule", "1.0.0", &json!(null))).await?;
    let events: Api<Event> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    let told = |parts: &'static [&'static str]| {
        let events = events.clone();
        wait::until("an Event about what it waits for", Duration::from_mins(1), move || {
            let events = events.clone();
            async move {
                let all = events.list(&ListParams::default()).await?.items;
                let says =
                    |e: &Event| parts.iter().all(|part| e.message.as_ref().is_some_and(|m| m.contains(part)));
                Ok(all.into_iter().find(says).and_then(|e| e.reason))
            }
        })
    };
    let both = &[
        "'lockkeeper' waits for module 'mule' (not enabled)",
        "the kind Rope of towpath.example.test/v1 (not served)",
    ];
    ensure!(told(both).await? == "MandatoryModuleWaits", "another reason");
    ensure!(solo.manifest("lockkeeper").await.is_err(), "it is installed without what it needs");
    solo.watching(&agent, "engine.apiservices.apiregistration.k8s.io.spec").await?;

    set_modules(&solo.runtime, &json!([{"name": "mule"}])).await?;
    solo.ready_by_its_agent("mule", "1.0.0").await?;
    told(&["'lockkeeper' waits for the kind Rope of towpath.example.test/v1"]).await?;
    ensure!(solo.manifest("lockkeeper").await.is_err(), "it is installed without the kind that it needs");
    let name = format!("ropes.{group}");
    let crd = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": name}, "spec": {"group": group, "scope": "Namespaced",
        "names": {"plural": "ropes", "singular": "rope", "kind": "Rope"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
            {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    let crds = solo.objects(CRD, None);
    crds.patch(&name, &PatchParams::apply("somebody"), &Patch::Apply(&crd)).await?;
    wait::until("lockkeeper to be Ready", Duration::from_mins(1), || async {
        let manifest = solo.manifest("lockkeeper").await?;
        Ok(manifest.status.as_ref().is_some_and(|s| s.state == State::Ready).then_some(()))
    })
    .await?;
    let polls = metric(&solo.receiver.admin, "tidewatch_receiver_looks_total{reason=\"poll\"}").await?;
    ensure!(polls == 0, "it was polled");

    // The installation stays.
    crds.delete(&name, &DeleteParams::default()).await?;
    set_modules(&solo.runtime, &json!([])).await?;
    solo.gone("mule").await?;
    ensure!(solo.manifest("lockkeeper").await?.metadata.deletion_timestamp.is_none(), "it goes");
    observed::no_panic(&solo.receiver.process)
}
