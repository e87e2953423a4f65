//! Real modules: conversion webhooks without server, foreign finalizers, and fixes during a removal.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
    core::DynamicObject,
};
use serde_json::{Value, json};
use tidewatch_api::{Kyma, Manifest, ModuleReleaseMeta, ModuleStatus, State};
use tidewatch_real_only::real_only;
use tidewatch_tests::{fleet, modules::Version, observed, solo::Solo, wait};

use crate::mandatory::{guard, ready};

const CONFIG_MAP: (&str, &str, &str) = ("", "v1", "ConfigMap");
const SOON: Duration = Duration::from_mins(1);

fn map(name: &str, text: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "kyma-system"}, "data": {"a": text}})
}

/// A CRD; the last version is the storage version.
fn crd(group: &str, kind: &str, versions: &[&str]) -> Value {
    let (singular, plural) = (kind.to_lowercase(), format!("{}s", kind.to_lowercase()));
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version = |name: &&str| json!({"name": name, "served": true, "storage": Some(name) == versions.last(), "schema": schema});
    let versions: Vec<Value> = versions.iter().map(version).collect();
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": format!("{plural}.{group}")},
           "spec": {"group": group, "scope": "Namespaced", "names": {"kind": kind, "plural": plural, "singular": singular},
                    "versions": versions}})
}

fn instance(api_version: &str, kind: &str, namespace: &str, name: &str) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": {"color": "red"}})
}

async fn create(solo: &Solo, gvk: (&str, &str, &str), object: Value) -> Result<()> {
    let object: DynamicObject = serde_json::from_value(object)?;
    let namespace = object.namespace();
    solo.objects(gvk, namespace.as_deref()).create(&kube::api::PostParams::default(), &object).await?;
    Ok(())
}

fn says(state: State, words: &[&str]) -> impl Fn(&ModuleStatus) -> bool + Sync {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    move |module| module.state == state && words.iter().all(|word| module.message.contains(word))
}

/// Preferred and storage version differ, without conversion.
#[real_only("the fake API server converts nothing by webhooks")]
#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_conversion_webhook_blocks_only_its_kind() -> Result<()> {
    let group = "mooring.example.test";
    let solo = Solo::start_watched("kcp-conversion", "mooring", Vec::new()).await?;
    let mut definition = crd(group, "Bollard", &["v1", "v1beta1"]);
    let service = json!({"name": "not-there", "namespace": "kyma-system", "path": "/convert"});
    definition["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {
        "conversionReviewVersions": ["v1"], "clientConfig": {"service": service}}});
    let of = |version: &str, own: &str| {
        let own = instance(&format!("{group}/{own}"), "Bollard", "kyma-system", "own");
        Version::new("bollard", version, vec![definition.clone(), own])
    };
    solo.offer(&of("1.0.0", "v1")).await?;
    solo.enable(&json!([{"name": "bollard"}])).await?;
    solo.module("bollard", "to wait for the webhook", says(State::Processing, &["conversion webhook"]))
        .await?;
    solo.offer(&of("1.1.0", "v1beta1")).await?;
    solo.ready("bollard", "1.1.0").await?;

    // An agent still observes its objects.
    let agent = solo.agent().await?;
    solo.watching(&agent, &format!("engine.bollards.{group}.spec")).await?;
    let stored = (group, "v1beta1", "Bollard");
    let own = solo.objects(stored, Some("kyma-system"));
    solo.patch(stored, "kyma-system", "own", "user", &json!({"spec": {"color": "green"}})).await?;
    wait::until("the user's edit to be set back", SOON, || async {
        Ok((own.get("own").await?.data["spec"]["color"] == "red").then_some(()))
    })
    .await?;

    create(&solo, stored, instance(&format!("{group}/v1beta1"), "Bollard", "default", "theirs")).await?;
    solo.enable(&json!([])).await?;
    solo.module("bollard", "to name the user's object", says(State::Deleting, &["default/theirs"])).await?;
    solo.event("ModuleDeletionBlocked", &["'bollard'", &format!("Bollard.{group}")]).await?;
    solo.objects(stored, Some("default")).delete("theirs", &DeleteParams::default()).await?;
    solo.gone("bollard").await?;
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_removal_still_gets_its_channels_fix() -> Result<()> {
    let group = "sluice.example.test";
    let solo = Solo::start("kcp-following", "sluice").await?;
    let gate = ("sluice.example.test", "v1", "Gate");
    let of = |version: &str| {
        let objects = vec![crd(group, "Gate", &["v1"]), map("keeper", version)];
        let mut of = Version::new("sluice", version, objects);
        of.template = json!({"associatedResources": [{"group": group, "version": "v1", "kind": "Gate"}]});
        of
    };
    solo.offer(&of("1.0.0")).await?;
    solo.enable(&json!([{"name": "sluice"}])).await?;
    solo.ready("sluice", "1.0.0").await?;
    create(&solo, gate, instance(&format!("{group}/v1"), "Gate", "default", "theirs")).await?;
    solo.enable(&json!([])).await?;
    solo.module("sluice", "to wait for its user", says(State::Deleting, &["default/theirs"])).await?;
    solo.offer(&of("1.1.0")).await?;
    wait::until("the fix to arrive", SOON, || async {
        let keeper = solo.objects(CONFIG_MAP, Some("kyma-system")).get("keeper").await?;
        Ok((keeper.data["data"]["a"] == "1.1.0").then_some(()))
    })
    .await?;
    ensure!(solo.manifest("sluice").await?.metadata.deletion_timestamp.is_some(), "it was made anew");
    solo.module("sluice", "to wait for its user still", says(State::Deleting, &["default/theirs"])).await?;
    solo.objects(gate, Some("default")).delete("theirs", &DeleteParams::default()).await?;
    solo.tell(gate, "default", "theirs").await?;
    solo.gone("sluice").await?;
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_with_foreign_finalizers_goes_with_its_cluster() -> Result<()> {
    const HOLD: &str = "example.test/backup";
    let solo = Solo::start("kcp-held", "ferry").await?;
    solo.offer(&Version::new("ferry", "1.0.0", vec![map("ferry", "1")])).await?;
    solo.enable(&json!([{"name": "ferry"}])).await?;
    solo.ready("ferry", "1.0.0").await?;
    let manifests: Api<Manifest> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    let manifest = solo.manifest("ferry").await?;
    let mut finalizers = manifest.finalizers().to_vec();
    finalizers.push(HOLD.to_owned());
    let held = Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
    manifests.patch(&manifest.name_any(), &PatchParams::default(), &held).await?;
    solo.enable(&json!([])).await?;
    solo.module("ferry", "to name the finalizer", says(State::Deleting, &[HOLD])).await?;
    let left = solo.objects(CONFIG_MAP, Some("kyma-system")).get_opt("ferry").await?;
    ensure!(left.is_none(), "it is not removed");

    let kymas: Api<Kyma> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    kymas.delete(solo.kyma, &DeleteParams::default()).await?;
    let secrets: Api<Secret> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    secrets.delete(&format!("kubeconfig-{}", solo.kyma), &DeleteParams::default()).await?;
    wait::until("the Kyma to be gone", SOON, || async {
        Ok(kymas.get_opt(solo.kyma).await?.is_none().then_some(()))
    })
    .await?;
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_mandatory_release_is_not_reinstalled() -> Result<()> {
    let solo = Solo::start("kcp-withdrawn", "picket").await?;
    let mut version = guard("1.0.0");
    version.template = json!({"mandatory": true, "descriptor": {"component": {
        "name": "tidewatch.dev/module/guard", "version": "1.0.0"}}});
    solo.offer(&version).await?;
    ready(&solo, "1.0.0").await?;
    let releases: Api<ModuleReleaseMeta> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    releases.delete("guard", &DeleteParams::default()).await?;
    wait::until("the release to be gone", SOON, || async {
        Ok(releases.get_opt("guard").await?.is_none().then_some(()))
    })
    .await?;
    solo.gone("guard").await?;
    // All effects of the release's deletion are complete.
    fleet::settled(&solo.receiver).await?;
    solo.look().await?;
    fleet::settled(&solo.receiver).await?;
    solo.gone("guard").await?;
    let settings = solo.objects(CONFIG_MAP, Some("kyma-system")).get_opt("guard").await?;
    ensure!(settings.is_none(), "it was installed again");
    observed::no_panic(&solo.receiver.process)
}
