//! Skipped, orphaned and duplicate Manifests.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::{
    Api,
    api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::json;
use tidewatch_api::{
    Kyma, Manifest,
    names::{annotations, labels},
};
use tidewatch_oci::{ModulePackage, Registry, RegistryConfig, push};
use tidewatch_tests::{fleet, kcp, modules::Version, observed, solo::Solo, wait};

use crate::managed::{CONFIG_MAP, DEPLOYMENT, label, manifests, objects, settled, uids, version};

const SOON: Duration = Duration::from_mins(1);

async fn of_module(solo: &Solo, module: &str) -> Result<Vec<Manifest>> {
    let label = format!("{}={module}", labels::MODULE_NAME);
    Ok(manifests(solo).list(&ListParams::default().labels(&label)).await?.items)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_skipped_kyma_or_manifest_is_not_reconciled() -> Result<()> {
    let solo = Solo::start("kcp-skipped", "cofferdam").await?;
    for module in ["dock", "weir"] {
        solo.offer(&version(module, "1.0.0")).await?;
    }
    solo.enable(&json!([{"name": "dock"}])).await?;
    solo.ready("dock", "1.0.0").await?;
    let (skip, go_on) =
        (json!({labels::SKIP_RECONCILIATION: "true"}), json!({labels::SKIP_RECONCILIATION: null}));

    // A skipped Kyma is not planned.
    solo.label(&skip).await?;
    solo.look().await?;
    solo.enable(&json!([{"name": "dock"}, {"name": "weir"}])).await?;
    solo.look().await?;
    ensure!(of_module(&solo, "weir").await?.is_empty(), "a module of a skipped Kyma is installed");
    solo.label(&go_on).await?;
    solo.ready("weir", "1.0.0").await?;

    // A skipped Manifest reverts nothing and delays its deletion.
    let dock = solo.manifest("dock").await?.metadata.name.context("no name")?;
    label(&solo, &dock, &skip).await?;
    let edit = json!({"data": {"version": "theirs"}});
    solo.patch(CONFIG_MAP, "dock", "settings", "user", &edit).await?;
    // The first reconcile can have another cause.
    solo.told(CONFIG_MAP, "dock", "settings").await?;
    solo.told(CONFIG_MAP, "dock", "settings").await?;
    let settings = solo.objects(CONFIG_MAP, Some("dock"));
    ensure!(settings.get("settings").await?.data["data"]["version"] == "theirs", "it is repaired");
    solo.enable(&json!([{"name": "weir"}])).await?;
    wait::until("the Manifest to be on its way out", SOON, || async {
        Ok(manifests(&solo).get(&dock).await?.metadata.deletion_timestamp.map(drop))
    })
    .await?;
    solo.told(CONFIG_MAP, "dock", "settings").await?;
    settings.get("settings").await.context("objects of a skipped Manifest are deleted")?;
    label(&solo, &dock, &go_on).await?;
    solo.gone("dock").await?;

    // A skipped Kyma's deletion proceeds to a skipped Manifest and names it.
    solo.label(&skip).await?;
    let weir = solo.manifest("weir").await?.metadata.name.context("no name")?;
    label(&solo, &weir, &skip).await?;
    let kymas: Api<Kyma> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    kymas.delete(solo.kyma, &DeleteParams::default()).await?;
    wait::until("the Kyma to name what holds it up", SOON, || async {
        let status = kymas.get(solo.kyma).await?.status.unwrap_or_default();
        let says = status.last_operation.map(|last| last.operation).unwrap_or_default();
        Ok(says.contains(&format!("the Manifest {weir} is left alone while its label")).then_some(()))
    })
    .await?;
    label(&solo, &weir, &go_on).await?;
    wait::until("the Kyma to be gone", SOON, || async {
        Ok(kymas.get_opt(solo.kyma).await?.is_none().then_some(()))
    })
    .await?;
    ensure!(solo.objects(DEPLOYMENT, Some("weir")).get_opt("weir").await?.is_none(), "its objects are left");
    observed::no_panic(&solo.receiver.process)
}

/// Offers a version with a renamed component.
async fn offer_renamed(solo: &Solo, mut new: Version) -> Result<()> {
    let renamed = format!("{}-renamed", kcp::component(&new.module));
    let documents: Vec<String> = new.objects.iter().map(ToString::to_string).collect();
    let package = ModulePackage {
        sources: Vec::new(),
        component_name: renamed.clone(),
        version: new.version.clone(),
        raw_manifest: documents.join("\n---\n"),
        default_cr: None,
        images: Vec::new(),
    };
    push(&Registry::new(RegistryConfig::default())?, &solo.env.registry.of(solo.namespace), &package).await?;
    new.release = json!({"ocmComponentName": renamed});
    solo.offer(&new).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renamed_component_may_recreate_adopted_objects() -> Result<()> {
    let solo = Solo::start("kcp-recast", "isthmus").await?;
    solo.offer(&version("causeway", "1.0.0")).await?;
    solo.enable(&json!([{"name": "causeway"}])).await?;
    solo.ready("causeway", "1.0.0").await?;
    let before = objects(&solo, "causeway").await?;
    let mut new = version("causeway", "1.1.0");
    for deployment in new.objects.iter_mut().filter(|object| object["kind"] == "Deployment") {
        for labels in ["/spec/selector/matchLabels", "/spec/template/metadata/labels"] {
            let labels = deployment.pointer_mut(labels).context("no labels")?;
            labels["cast"] = "second".into();
        }
    }
    new.template = json!({"recreate": [{"group": "apps", "kind": "Deployment"}]});
    offer_renamed(&solo, new).await?;
    settled(&solo, "causeway", "1.1.0").await?;
    wait::until("one Manifest", SOON, || async {
        Ok((of_module(&solo, "causeway").await?.len() == 1).then_some(()))
    })
    .await?;
    let after = objects(&solo, "causeway").await?;
    ensure!(uids(&after)[2] != uids(&before)[2], "the Deployment is the old one");
    ensure!(after[2].data["spec"]["selector"]["matchLabels"]["cast"] == "second", "{:?}", after[2].data);
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renamed_component_adopts_objects_and_prunes_the_rest() -> Result<()> {
    let solo = Solo::start("kcp-renamed", "estuary").await?;
    let mut old: Version = version("pontoon", "1.0.0");
    old.objects.push(json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "ballast", "namespace": "pontoon"}}));
    solo.offer(&old).await?;
    solo.enable(&json!([{"name": "pontoon"}])).await?;
    solo.ready("pontoon", "1.0.0").await?;
    let (before, first) = (objects(&solo, "pontoon").await?, solo.manifest("pontoon").await?);
    // A user's object does not delay a transfer.
    let group = "pontoon.example.test";
    let quays = solo.objects((group, "v1", "Quay"), Some("pontoon"));
    let quay = json!({"apiVersion": format!("{group}/v1"), "kind": "Quay", "metadata": {"name": "users"}});
    quays.patch("users", &PatchParams::apply("user"), &Patch::Apply(&quay)).await?;

    offer_renamed(&solo, version("pontoon", "1.1.0")).await?;
    settled(&solo, "pontoon", "1.1.0").await?;
    let second = wait::until("one Manifest, of the new component", SOON, || async {
        let all = of_module(&solo, "pontoon").await?;
        let [one] = &all[..] else { return Ok(None) };
        Ok((one.metadata.name != first.metadata.name).then(|| one.clone()))
    })
    .await?;

    // The old Manifest's last sync can write late; the successor must notice.
    let after = wait::until("the settings of the new version", SOON, || async {
        let all = objects(&solo, "pontoon").await?;
        Ok((all[1].data["data"]["version"] == "1.1.0").then_some(all))
    })
    .await?;
    ensure!(uids(&after) == uids(&before), "an object was made anew");
    ensure!(after[2].data["spec"] == before[2].data["spec"], "the Deployment was changed");
    let ballast = solo.objects(CONFIG_MAP, Some("pontoon")).get_opt("ballast").await?;
    ensure!(ballast.is_none(), "what the new one does not have is left");
    quays.get("users").await.context("the user's object is gone")?;
    let mark = format!("{}/{}", solo.namespace, second.metadata.name.context("no name")?);
    wait::until("the marks to name the new Manifest", SOON, || async {
        let settings = solo.objects(CONFIG_MAP, Some("pontoon")).get("settings").await?;
        let marks = settings.metadata.annotations.unwrap_or_default();
        Ok((marks.get(annotations::OWNED_BY) == Some(&mark)).then_some(()))
    })
    .await?;
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orphaned_manifest_is_reported_and_not_reconciled() -> Result<()> {
    let solo = Solo::start("kcp-orphaned", "flotsam").await?;
    solo.offer(&version("dock", "1.0.0")).await?;
    solo.enable(&json!([{"name": "dock"}])).await?;
    solo.ready("dock", "1.0.0").await?;
    let dock = solo.manifest("dock").await?;
    let mut stray = dock.clone();
    let mut labels = stray.metadata.labels.take().unwrap_or_default();
    labels.insert(labels::MODULE_NAME.into(), "raft".into());
    stray.metadata = ObjectMeta { name: Some("stray".into()), labels: Some(labels), ..ObjectMeta::default() };
    stray.status = None;
    // Watches are written asynchronously to readiness.
    fleet::at_rest(&solo.receiver).await?;
    let applies = solo.object_applies().await?;
    manifests(&solo).create(&PostParams::default(), &stray).await?;
    let told = solo.module("raft", "to be told of", |m| m.message.starts_with("orphaned:")).await?;
    ensure!(told.message.contains("stray") && told.message.contains("delete it"), "{}", told.message);
    wait::until("a reconcile of the stray", SOON, || async {
        let page = solo.receiver.runtime(solo.kyma).await?;
        let mut reconciles = page["reconciles"].as_array().into_iter().flatten();
        Ok(reconciles.any(|r| r["key"].as_str().is_some_and(|key| key.ends_with("/stray"))).then_some(()))
    })
    .await?;
    let left = manifests(&solo).get("stray").await?;
    ensure!(left.metadata.finalizers.is_none() && left.status.is_none(), "{left:?}");
    let now = solo.object_applies().await?;
    ensure!(now == applies, "its objects were written: {applies:?}, then {now:?}");

    // An orphaned Manifest keeps its installation and continues after adoption.
    let (name, settings) = (dock.metadata.name.context("no name")?, solo.objects(CONFIG_MAP, Some("dock")));
    let (skip, go_on) =
        (json!({labels::SKIP_RECONCILIATION: "true"}), json!({labels::SKIP_RECONCILIATION: null}));
    let disown = Patch::Merge(json!({"metadata": {"ownerReferences": null}}));
    solo.label(&skip).await?;
    solo.look().await?;
    manifests(&solo).patch(&name, &PatchParams::default(), &disown).await?;
    let edit = json!({"data": {"version": "theirs"}});
    solo.patch(CONFIG_MAP, "dock", "settings", "user", &edit).await?;
    // The first reconcile can have another cause.
    solo.told(CONFIG_MAP, "dock", "settings").await?;
    solo.told(CONFIG_MAP, "dock", "settings").await?;
    ensure!(settings.get("settings").await?.data["data"]["version"] == "theirs", "it is repaired");
    solo.label(&go_on).await?;
    wait::until("the settings to be the module's again", SOON, || async {
        Ok((settings.get("settings").await?.data["data"]["version"] == "1.0.0").then_some(()))
    })
    .await?;
    ensure!(solo.manifest("dock").await?.metadata.owner_references == dock.metadata.owner_references);

    // Its deletion is a normal one.
    solo.label(&skip).await?;
    solo.look().await?;
    manifests(&solo).patch(&name, &PatchParams::default(), &disown).await?;
    manifests(&solo).delete(&name, &DeleteParams::default()).await?;
    wait::until("the Manifest to be gone", SOON, || async {
        Ok(manifests(&solo).get_opt(&name).await?.is_none().then_some(()))
    })
    .await?;
    ensure!(settings.get_opt("settings").await?.is_none(), "its objects are left");
    observed::no_panic(&solo.receiver.process)
}
