//! With a proven event path, Manifests wait for events without polling.

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
    wait,
};
use tokio::time::Instant;

const POLLS: &str = "tidewatch_receiver_looks_total{reason=\"poll\"}";
/// Timeout of a scheduled reconcile after a minute.
const LONG: Duration = Duration::from_mins(2);
/// Timeout of an event, including two seconds until a new kind is served.
const BY_EVENT: Duration = Duration::from_secs(10);
const CRDS: (&str, &str, &str) = ("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
const CONFIG_MAPS: (&str, &str, &str) = ("", "v1", "ConfigMap");
const NAMESPACES: (&str, &str, &str) = ("", "v1", "Namespace");

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

async fn soon(what: &str, it: impl Future<Output = Result<()>>) -> Result<()> {
    let began = Instant::now();
    it.await?;
    ensure!(began.elapsed() < BY_EVENT, "{what}: {:?}", began.elapsed());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_installed_by_others_triggers_a_reconcile() -> Result<()> {
    let solo = Solo::start_watched("kcp-brought", "wharf", Vec::new()).await?;
    let agent = solo.agent().await?;
    solo.offer(&Version::new("gantry", "1.0.0", vec![crane("gantry.example.test")])).await?;
    let mut with_cr = Version::new("derrick", "1.0.0", vec![config_map("kyma-system", "derrick")]);
    with_cr.template = json!({"data": crane("derrick.example.test")});
    solo.offer(&with_cr).await?;
    set_modules(&solo.runtime, &json!([{"name": "gantry"}, {"name": "derrick"}])).await?;
    solo.module("gantry", "to wait for a kind", |m| m.message.contains("does not know the kind Crane"))
        .await?;
    solo.module("derrick", "to wait for one", |m| m.message.contains("the kind of the default CR")).await?;
    solo.watching(&agent, "engine.customresourcedefinitions.apiextensions.k8s.io.status").await?;
    for module in ["gantry", "derrick"] {
        // Their deadline is scheduled besides.
        solo.waits_for_an_event(module, 60.0).await?;
        let crd = cranes(&format!("{module}.example.test"));
        let name = crd["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        solo.objects(CRDS, None).patch(&name, &PatchParams::apply("somebody"), &Patch::Apply(crd)).await?;
        soon(module, async {
            solo.module(module, "to be Ready", |m| m.state == State::Ready).await.map(drop)
        })
        .await?;
        // Later changes of the object cause events too.
        solo.watching(&agent, &format!("engine.cranes.{module}.example.test.status")).await?;
    }
    ensure!(metric(&solo.receiver.admin, POLLS).await? == 0, "it was polled");
    // Another test can use the runtime.
    set_modules(&solo.runtime, &json!([])).await?;
    for module in ["gantry", "derrick"] {
        solo.gone(module).await?;
        let crd = format!("cranes.{module}.example.test");
        solo.objects(CRDS, None).delete(&crd, &DeleteParams::default()).await?;
    }
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deletion_of_awaited_objects_triggers_a_reconcile() -> Result<()> {
    let solo = Solo::start_watched("kcp-leaving", "pontoon", Vec::new()).await?;
    let agent = solo.agent().await?;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "pallet"}});
    let objects = vec![namespace, config_map("pallet", "pallet"), config_map("kyma-system", "pallet")];
    solo.offer(&Version::new("pallet", "1.0.0", objects)).await?;
    solo.offer(&Version::new("fender", "1.0.0", vec![config_map("kyma-system", "fender")])).await?;
    set_modules(&solo.runtime, &json!([{"name": "pallet"}, {"name": "fender"}])).await?;
    for module in ["pallet", "fender"] {
        solo.ready(module, "1.0.0").await?;
    }
    solo.watching(&agent, "engine.configmaps.spec").await?;

    // Deletes the module's namespace while a finalizer holds an object.
    let held = json!({"metadata": {"finalizers": ["example.test/held"]}});
    let mut anchor = config_map("pallet", "anchor");
    anchor["metadata"]["finalizers"] = held["metadata"]["finalizers"].clone();
    let in_it = solo.objects(CONFIG_MAPS, Some("pallet"));
    in_it.create(&PostParams::default(), &serde_json::from_value(anchor)?).await?;
    let spaces = solo.objects(NAMESPACES, None);
    spaces.delete("pallet", &DeleteParams::default()).await?;
    solo.module("pallet", "to say what holds it", |m| {
        m.message.contains("namespace pallet is being deleted")
    })
    .await?;
    solo.watching(&agent, "engine.namespaces.status").await?;

    solo.patch(CONFIG_MAPS, "kyma-system", "fender", "somebody", &held).await?;
    set_modules(&solo.runtime, &json!([{"name": "pallet"}])).await?;
    solo.module("fender", "to wait for its object", |m| m.message.contains("waiting for ConfigMap")).await?;
    // A slow deletion is reported only after the expected time, without earlier checks.
    solo.waits_for_an_event("fender", 20.0).await?;
    let free = json!({"metadata": {"finalizers": null}});
    solo.patch(CONFIG_MAPS, "kyma-system", "fender", "somebody", &free).await?;
    soon("fender", solo.gone("fender")).await?;

    // The report is scheduled; nothing is scheduled after it.
    wait::until("pallet to say that it takes long, which is after a minute", LONG, || async {
        let status = solo.manifest("pallet").await?.status;
        Ok(status.filter(|status| status.state == State::Warning).map(drop))
    })
    .await?;
    let long = |m: &tidewatch_api::ModuleStatus| m.state == State::Warning;
    solo.module("pallet", "to say that it takes long", long).await?;
    solo.waits_for_an_event("pallet", f64::INFINITY).await?;
    solo.patch(CONFIG_MAPS, "pallet", "anchor", "somebody", &free).await?;
    soon("pallet", async {
        solo.module("pallet", "to be Ready", |m| m.state == State::Ready).await.map(drop)
    })
    .await?;
    ensure!(spaces.get("pallet").await?.metadata.deletion_timestamp.is_none(), "it is the old one");
    set_modules(&solo.runtime, &json!([])).await?;
    solo.gone("pallet").await?;
    ensure!(metric(&solo.receiver.admin, POLLS).await? == 0, "it was polled");
    observed::no_panic(&solo.receiver.process)
}
