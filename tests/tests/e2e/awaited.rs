//! What a Manifest waits for in a runtime whose events arrive is an event: nobody looks again and again.

use std::{future::Future, time::Duration};

use anyhow::{Result, ensure};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tidewatch_api::State;
use tidewatch_tests::{
    modules::Version,
    observed::{self, metric},
    solo::Solo,
    story::set_modules,
};
use tokio::time::Instant;

const POLLS: &str = "tidewatch_receiver_looks_total{reason=\"poll\"}";
/// What an event takes at most: two seconds of it are for a kind that is served a moment after its definition says so.
const BY_EVENT: Duration = Duration::from_secs(10);
const CRDS: (&str, &str, &str) = ("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
const CONFIG_MAPS: (&str, &str, &str) = ("", "v1", "ConfigMap");
const NAMESPACES: (&str, &str, &str) = ("", "v1", "Namespace");

/// The definition of a kind `Crane` in this group.
fn cranes(group: &str) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("cranes.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "names": {"kind": "Crane", "plural": "cranes"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}})
}

fn crane(group: &str) -> Value {
    json!({"apiVersion": format!("{group}/v1"), "kind": "Crane", "metadata": {"name": "one", "namespace": "kyma-system"}})
}

fn config_map(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}})
}

/// Whether this comes by an event.
async fn soon(what: &str, it: impl Future<Output = Result<()>>) -> Result<()> {
    let began = Instant::now();
    it.await?;
    ensure!(began.elapsed() < BY_EVENT, "{what}: {:?}", began.elapsed());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_others_bring_is_an_event() -> Result<()> {
    let solo = Solo::start("kcp-brought", "wharf").await?;
    let agent = solo.agent().await?;
    solo.offer(&Version::new("wharf", "1.0.0", vec![crane("wharf.example.test")])).await?;
    let mut with_cr = Version::new("jetty", "1.0.0", vec![config_map("kyma-system", "jetty")]);
    with_cr.template = json!({"data": crane("jetty.example.test")});
    solo.offer(&with_cr).await?;
    set_modules(&solo.runtime, &json!([{"name": "wharf"}, {"name": "jetty"}])).await?;
    solo.module("wharf", "to wait for a kind", |m| m.message.contains("does not know the kind Crane"))
        .await?;
    solo.module("jetty", "to wait for one", |m| m.message.contains("the kind of the default CR")).await?;
    solo.watching(&agent, "engine.customresourcedefinitions.apiextensions.k8s.io.status").await?;
    for module in ["wharf", "jetty"] {
        // Their deadline is besides.
        solo.waits_for_an_event(module, 60.0).await?;
        let crd = cranes(&format!("{module}.example.test"));
        let name = crd["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        solo.objects(CRDS, None).patch(&name, &PatchParams::apply("somebody"), &Patch::Apply(crd)).await?;
        soon(module, async {
            solo.module(module, "to be Ready", |m| m.state == State::Ready).await.map(drop)
        })
        .await?;
        // And what becomes of the object is one from now on.
        solo.watching(&agent, &format!("engine.cranes.{module}.example.test.status")).await?;
    }
    ensure!(metric(&solo.receiver.admin, POLLS).await? == 0, "it was polled");
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_what_goes_first_is_an_event() -> Result<()> {
    let solo = Solo::start("kcp-leaving", "pontoon").await?;
    let agent = solo.agent().await?;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "raft"}});
    let objects = vec![namespace, config_map("raft", "raft"), config_map("kyma-system", "raft")];
    solo.offer(&Version::new("raft", "1.0.0", objects)).await?;
    solo.offer(&Version::new("buoy", "1.0.0", vec![config_map("kyma-system", "buoy")])).await?;
    set_modules(&solo.runtime, &json!([{"name": "raft"}, {"name": "buoy"}])).await?;
    for module in ["raft", "buoy"] {
        solo.ready(module, "1.0.0").await?;
    }
    solo.watching(&agent, "engine.configmaps.spec").await?;

    // Somebody deletes the module's namespace, in which there is something that does not go.
    let held = json!({"metadata": {"finalizers": ["example.test/held"]}});
    let mut anchor = config_map("raft", "anchor");
    anchor["metadata"]["finalizers"] = held["metadata"]["finalizers"].clone();
    let in_raft = solo.objects(CONFIG_MAPS, Some("raft"));
    in_raft.create(&PostParams::default(), &serde_json::from_value(anchor)?).await?;
    let spaces = solo.objects(NAMESPACES, None);
    spaces.delete("raft", &DeleteParams::default()).await?;
    solo.module("raft", "to say what holds it", |m| m.message.contains("namespace raft is being deleted"))
        .await?;
    solo.watching(&agent, "engine.namespaces.status").await?;

    // Meanwhile another module goes, an object of which somebody holds.
    solo.patch(CONFIG_MAPS, "kyma-system", "buoy", "somebody", &held).await?;
    set_modules(&solo.runtime, &json!([{"name": "raft"}])).await?;
    solo.module("buoy", "to wait for its object", |m| m.message.contains("waiting for ConfigMap")).await?;
    solo.waits_for_an_event("buoy", f64::INFINITY).await?;
    let free = json!({"metadata": {"finalizers": null}});
    solo.patch(CONFIG_MAPS, "kyma-system", "buoy", "somebody", &free).await?;
    soon("buoy", solo.gone("buoy")).await?;

    // That it takes longer than a deletion does comes by the clock, and then nothing does.
    let long = |m: &tidewatch_api::ModuleStatus| m.state == State::Warning;
    solo.module("raft", "to say that it takes long", long).await?;
    solo.waits_for_an_event("raft", f64::INFINITY).await?;
    solo.patch(CONFIG_MAPS, "raft", "anchor", "somebody", &free).await?;
    soon("raft", async { solo.module("raft", "to be Ready", |m| m.state == State::Ready).await.map(drop) })
        .await?;
    ensure!(spaces.get("raft").await?.metadata.deletion_timestamp.is_none(), "it is the old one");
    ensure!(metric(&solo.receiver.admin, POLLS).await? == 0, "it was polled");
    observed::no_panic(&solo.receiver.process)
}
