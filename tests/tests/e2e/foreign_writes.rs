//! Foreign changes of Kymas and Manifests in KCP are reverted.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, Manifest, State,
    names::{RUNTIME_KYMA_NAME, field_managers},
};
use tidewatch_tests::{fleet, modules::Version, observed, solo::Solo, story, wait};

use crate::runtime_kyma::{remote, uid_of, version};

const SOON: Duration = Duration::from_mins(1);

/// Removes timestamps.
fn timeless(mut status: Value) -> Value {
    match &mut status {
        Value::Object(fields) => {
            fields.retain(|key, _| key != "lastTransitionTime" && key != "lastUpdateTime");
            fields.values_mut().for_each(|value| *value = timeless(value.take()));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = timeless(item.take())),
        _ => {}
    }
    status
}

/// No kubelet creates its pods.
fn never_ready(module: &str) -> Version {
    let labels = json!({"app": module});
    let containers = json!([{"name": "main", "image": "example.local/main:1.0.0"}]);
    let object = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": module, "namespace": "kyma-system"},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels},
                 "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}}}
    });
    Version::new(module, "1.0.0", vec![object])
}

/// Status writes of others must not make a version count as having run.
#[tokio::test(flavor = "multi_thread")]
async fn a_forged_ready_status_does_not_count() -> Result<()> {
    let solo = Solo::start_watched("kcp-forged", "jetty", Vec::new()).await?;
    solo.offer(&never_ready("groyne")).await?;
    let _agent = solo.agent().await?;
    solo.enable(&json!([{"name": "groyne"}])).await?;
    let is_on_its_way =
        |m: &tidewatch_api::ModuleStatus| m.state == State::Processing && m.message.contains("groyne");
    solo.module("groyne", "to be on its way", is_on_its_way).await?;
    let manifests: Api<Manifest> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    let manifest = solo.manifest("groyne").await?;
    let (name, generation) = (manifest.name_any(), manifest.metadata.generation);
    let edit = PatchParams { field_manager: Some("kubectl-edit".to_owned()), ..PatchParams::default() };
    let says = |type_: &str| {
        json!({"type": type_, "status": "True", "reason": "Ready", "message": "forged", "observedGeneration": generation,
               "lastTransitionTime": "9999-12-31T23:59:59Z"})
    };
    let forged = json!({"status": {"state": "Ready", "conditions": [says("Installation"), says("Resources"), says("WasReady")],
                                   "lastOperation": {"operation": "forged", "lastUpdateTime": "9999-12-31T23:59:59Z"}}});
    manifests.patch_status(&name, &edit, &Patch::Merge(&forged)).await?;
    wait::until("the Manifest to be on its way, and never to have been ready", SOON, || async {
        let status = manifests.get(&name).await?.status.context("no status")?;
        let text = json!(status).to_string();
        ensure!(status.state == State::Processing, "{text}");
        ensure!(!text.contains("forged") && !text.contains("WasReady") && !text.contains("9999"), "{text}");
        Ok(Some(()))
    })
    .await?;
    solo.module("groyne", "to be on its way still", is_on_its_way).await?;
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overwritten_status_in_kcp_is_restored_by_event() -> Result<()> {
    let solo = Solo::start_watched("kcp-overwritten", "mooring", Vec::new()).await?;
    solo.offer(&version("weir")).await?;
    let _agent = solo.agent().await?;
    solo.enable(&json!([{"name": "weir"}])).await?;
    solo.ready_by_its_agent("weir", "1.0.0").await?;
    let kymas: Api<Kyma> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    wait::until("the runtime's events to be proven", SOON, || async {
        let all = kymas.get(solo.kyma).await?.status.unwrap_or_default().conditions;
        Ok(all.iter().any(|c| c.type_ == "RuntimeEvents" && c.status == "True").then_some(()))
    })
    .await?;
    let manifests: Api<Manifest> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    fleet::at_rest(&solo.receiver).await?;
    let name = solo.manifest("weir").await?.name_any();
    let kyma_status = || async {
        let mut status = kymas.get(solo.kyma).await?.status.context("no status")?;
        let before = status.conditions.len();
        status.conditions.retain(|condition| condition.type_ != "Backup");
        anyhow::Ok((timeless(json!(status)), before > status.conditions.len()))
    };
    let manifest_status = || async { anyhow::Ok(timeless(json!(manifests.get(&name).await?.status))) };
    let (right, right_manifest) = (kyma_status().await?.0, manifest_status().await?);
    let edit = PatchParams { field_manager: Some("kubectl-edit".to_owned()), ..PatchParams::default() };

    // Conditions of other owners stay.
    let mine = json!({"type": "Backup", "status": "True", "reason": "Done", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let mut all = json!(kymas.get(solo.kyma).await?.status.context("no status")?.conditions);
    all.as_array_mut().context("no conditions")?.push(mine);
    kymas.patch_status(solo.kyma, &edit, &Patch::Merge(json!({"status": {"conditions": all}}))).await?;
    // The engine's fields are restored. A wrong inventory deletes nothing.
    let wrong = json!({"status": {"state": "Error", "synced": [], "conditions": []}});
    manifests.patch_status(&name, &edit, &Patch::Merge(wrong)).await?;
    wait::until("the Manifest's status to be right", SOON, || async {
        let now = manifest_status().await?;
        ensure!(now == right_manifest, "{now} instead of {right_manifest}");
        Ok(Some(()))
    })
    .await?;
    // Removed fields have no new owner. The inventory is needed for removal and watches. A familiar manager
    // name is no proof.
    let ours =
        PatchParams { field_manager: Some(field_managers::APPLIER.to_owned()), ..PatchParams::default() };
    for (by, paths) in [
        (&edit, &["/status/synced"][..]),
        (&ours, &["/status/synced/0"]),
        (&edit, &["/status/lastOperation", "/status/conditions/1"]),
        (&edit, &["/status"]),
    ] {
        manifests.patch_status(&name, by, &without(paths)?).await?;
        wait::until("the Manifest's status to be right again", SOON, || async {
            let now = manifest_status().await?;
            ensure!(now == right_manifest, "{paths:?} were taken away: {now} instead of {right_manifest}");
            Ok(Some(()))
        })
        .await?;
    }
    // Without entries, the API server records no writes until the next apply.
    let forget: Patch<()> = Patch::Json(serde_json::from_value(
        json!([{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}]),
    )?);
    manifests.patch(&name, &edit, &forget).await?;
    manifests.patch_status(&name, &edit, &without(&["/status/synced"])?).await?;
    // An outdated condition of a known type. With two owners, an apply removes only a part.
    wait::until("the inventory to be the engine's again", SOON, || async {
        let now = manifest_status().await?;
        ensure!(now == right_manifest, "{now} instead of {right_manifest}");
        Ok(Some(()))
    })
    .await?;
    let untold = json!({"type": "WasReady", "status": "True", "reason": "x", "message": "x", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let untold = json!([{"op": "add", "path": "/status/conditions/-", "value": untold}]);
    manifests.patch_status(&name, &edit, &Patch::Json::<()>(serde_json::from_value(untold)?)).await?;
    wait::until("the condition that is not said to be gone", SOON, || async {
        let now = manifest_status().await?;
        ensure!(now == right_manifest, "{now} instead of {right_manifest}");
        Ok(Some(()))
    })
    .await?;
    // A reverted edit has no other owner.
    let said = right_manifest["lastOperation"]["operation"].clone();
    for says in [json!("forged"), said] {
        let wrong = json!({"status": {"lastOperation": {"operation": says}}});
        manifests.patch_status(&name, &edit, &Patch::Merge(wrong)).await?;
    }
    wait::until("nothing of the status to be theirs", SOON, || async {
        let entries = json!(manifests.get(&name).await?.metadata.managed_fields);
        let theirs = |e: &Value| e["manager"] == "kubectl-edit" && e["subresource"] == "status";
        let left = entries.as_array().into_iter().flatten().find(|entry| theirs(entry));
        ensure!(left.is_none(), "{left:?}");
        Ok(Some(()))
    })
    .await?;
    let wrong = json!({"status": {"state": "Error", "modules": []}});
    kymas.patch_status(solo.kyma, &edit, &Patch::Merge(wrong)).await?;
    wait::until("the Kyma's status to be right", SOON, || async {
        let (now, is_there) = kyma_status().await?;
        ensure!(is_there, "the condition of somebody's own is gone");
        ensure!(now == right, "{now} instead of {right}");
        Ok(Some(()))
    })
    .await?;
    let all = kymas.get(solo.kyma).await?.status.context("no status")?.conditions;
    let place = |type_: &str| {
        let at = all.iter().position(|condition| condition.type_ == type_).context("no such condition")?;
        anyhow::Ok(format!("/status/conditions/{at}"))
    };
    let mut of_others = [place("ModuleCatalog")?, place("RuntimeEvents")?];
    of_others.sort_by(|a, b| b.cmp(a));
    let [last, first] = of_others.each_ref().map(String::as_str);
    let modules = place("Modules")?;
    // Restores the fields of any writer.
    for paths in
        [&[last, first, "/status/activeChannel", "/status/lastOperation"][..], &[&modules], &["/status"]]
    {
        kymas.patch_status(solo.kyma, &edit, &without(paths)?).await?;
        wait::until("the Kyma's status to be right again", SOON, || async {
            let now = kyma_status().await?.0;
            ensure!(
                in_order(&now) == in_order(&right),
                "{paths:?} were taken away: {now} instead of {right}"
            );
            Ok(Some(()))
        })
        .await?;
    }
    ensure!(uid_of(&solo, "weir").await?.is_some(), "the module's object is gone");
    fleet::at_rest(&solo.receiver).await?;

    // A burst causes one reconcile.
    let written = || async { anyhow::Ok(json!(kymas.get(solo.kyma).await?)) };
    let before = written().await?;
    for number in 0..50 {
        let wrong =
            json!({"status": {"state": "Error", "lastOperation": {"operation": format!("forged {number}")}}});
        manifests.patch_status(&name, &edit, &Patch::Merge(wrong)).await?;
    }
    wait::until("the Manifest's status to be right after all", SOON, || async {
        let now = manifest_status().await?;
        ensure!(now == right_manifest, "{now} instead of {right_manifest}");
        Ok(Some(()))
    })
    .await?;
    fleet::at_rest(&solo.receiver).await?;
    let after = written().await?;
    ensure!(before == after, "the Kyma was written: {after:#} instead of {before:#}");

    // No entry names the owner.
    kymas.patch(solo.kyma, &edit, &forget).await?;
    kymas.patch_status(solo.kyma, &edit, &without(&["/status/modules", "/status/conditions"])?).await?;
    wait::until("the Kyma's status to be right after it was forgotten whose it is", SOON, || async {
        let now = kyma_status().await?.0;
        ensure!(in_order(&now) == in_order(&right), "{now} instead of {right}");
        Ok(Some(()))
    })
    .await?;

    // Each writer reclaims its part, to notice later changes.
    kymas.patch(solo.kyma, &edit, &forget).await?;
    wait::until("each part of the status to be its writer's again", SOON, || async {
        let entries = json!(kymas.get(solo.kyma).await?.metadata.managed_fields);
        let has = |manager| entries.as_array().is_some_and(|all| all.iter().any(|e| e["manager"] == manager));
        let all = [field_managers::KCP, field_managers::CATALOG_STATUS, field_managers::EVENT_PATH]
            .into_iter()
            .all(has);
        Ok(all.then_some(()))
    })
    .await?;
    fleet::at_rest(&solo.receiver).await?;
    for forged in [true, false] {
        let mut all = json!(kymas.get(solo.kyma).await?.status.context("no status")?.conditions);
        let all = all.as_array_mut().context("no conditions")?;
        let is_of_others = |condition: &Value| {
            ["ModuleCatalog", "RuntimeEvents"].map(Value::from).contains(&condition["type"])
        };
        if forged {
            for condition in all.iter_mut().filter(|condition| is_of_others(condition)) {
                condition["message"] = json!("forged");
            }
        } else {
            all.retain(|condition| !is_of_others(condition));
        }
        kymas.patch_status(solo.kyma, &edit, &Patch::Merge(json!({"status": {"conditions": all}}))).await?;
        wait::until("the conditions to be right after it was forgotten whose they are", SOON, || async {
            let now = kyma_status().await?.0;
            ensure!(in_order(&now) == in_order(&right), "{now} instead of {right}");
            Ok(Some(()))
        })
        .await?;
    }
    observed::no_panic(&solo.receiver.process)
}

/// A removed finalizer would orphan the module in the runtime.
#[tokio::test(flavor = "multi_thread")]
async fn removed_finalizers_in_kcp_are_restored() -> Result<()> {
    let solo = Solo::start("kcp-let-go", "moorings").await?;
    solo.offer(&version("weir")).await?;
    solo.enable(&json!([{"name": "weir"}])).await?;
    solo.ready("weir", "1.0.0").await?;
    fleet::at_rest(&solo.receiver).await?;
    let kymas: Api<Kyma> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    let manifests: Api<Manifest> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    let name = solo.manifest("weir").await?.name_any();
    let edit = PatchParams { field_manager: Some("kubectl-edit".to_owned()), ..PatchParams::default() };
    let loose: Patch<()> =
        Patch::Json(serde_json::from_value(json!([{"op": "remove", "path": "/metadata/finalizers"}]))?);
    let held =
        (manifests.get(&name).await?.metadata.finalizers, kymas.get(solo.kyma).await?.metadata.finalizers);
    ensure!(held.0.is_some() && held.1.is_some(), "{held:?}");
    manifests.patch(&name, &edit, &loose).await?;
    kymas.patch(solo.kyma, &edit, &loose).await?;
    wait::until("both to be held again", SOON, || async {
        let now = (
            manifests.get(&name).await?.metadata.finalizers,
            kymas.get(solo.kyma).await?.metadata.finalizers,
        );
        ensure!(now == held, "{now:?} instead of {held:?}");
        Ok(Some(()))
    })
    .await?;
    observed::no_panic(&solo.receiver.process)
}

fn without(paths: &[&str]) -> Result<Patch<()>> {
    let all: Vec<Value> = paths.iter().map(|path| json!({"op": "remove", "path": path})).collect();
    Ok(Patch::Json(serde_json::from_value(json!(all))?))
}

fn in_order(status: &Value) -> Value {
    let mut status = status.clone();
    if let Some(all) = status["conditions"].as_array_mut() {
        all.sort_by_key(|condition| condition["type"].to_string());
    }
    status
}

/// Without the inventory, the removal would miss objects.
#[tokio::test(flavor = "multi_thread")]
async fn a_removal_is_complete_despite_an_overwritten_inventory() -> Result<()> {
    let mut solo = Solo::start("kcp-robbed", "robbed").await?;
    let manifests: Api<Manifest> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    let edit = PatchParams { field_manager: Some("kubectl-edit".to_owned()), ..PatchParams::default() };
    let objects = |named: &[&str]| -> Vec<Value> {
        let of = |name: &&str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "kyma-system"}});
        named.iter().map(of).collect()
    };
    solo.offer(&Version::new("sluice", "1.0.0", objects(&["sluice", "gate"]))).await?;
    let forget: Patch<()> = Patch::Json(serde_json::from_value(
        json!([{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}]),
    )?);
    for (path, restart, forgotten) in [
        ("/status/synced", false, false),
        ("/status/synced/0", false, false),
        ("/status", false, false),
        ("/status", true, false),
        ("/status/synced", false, true),
        ("/status/synced", true, true),
    ] {
        solo.enable(&json!([{"name": "sluice"}])).await?;
        solo.ready("sluice", "1.0.0").await?;
        let name = solo.manifest("sluice").await?.name_any();
        fleet::at_rest(&solo.receiver).await?;
        if forgotten {
            manifests.patch(&name, &edit, &forget).await?;
        }
        manifests.patch_status(&name, &edit, &without(&[path])?).await?;
        if restart {
            solo.receiver.restart().await?;
        }
        solo.enable(&json!([])).await?;
        solo.gone("sluice").await?;
        for object in ["sluice", "gate"] {
            ensure!(uid_of(&solo, object).await?.is_none(), "{object} is left, {path} was taken away");
        }
    }
    // Foreign or impossible inventory entries, such as Kyma's CRD, are neither awaited nor changed.
    solo.enable(&json!([{"name": "sluice"}])).await?;
    solo.ready("sluice", "1.0.0").await?;
    let name = solo.manifest("sluice").await?.name_any();
    fleet::at_rest(&solo.receiver).await?;
    let right = json!(manifests.get(&name).await?.status.context("no status")?.synced);
    let with = |names: &[(&str, &str, &str, &str)]| {
        let entry = |(group, version, kind, name): &(&str, &str, &str, &str)| json!({"group": group, "version": version, "kind": kind, "namespace": "", "name": name});
        let mut all = right.clone();
        all.as_array_mut().into_iter().for_each(|all| all.extend(names.iter().map(entry)));
        Patch::Merge(json!({"status": {"synced": all}}))
    };
    let impossible = [("a/b", "v1", "Buoy", "x"), ("", "", "", ""), ("apps", "v1", "Deployment", "../x")];
    manifests.patch_status(&name, &edit, &with(&impossible)).await?;
    wait::until("the inventory to be right", SOON, || async {
        let status = manifests.get(&name).await?.status.context("no status")?;
        ensure!(json!(status.synced) == right && status.state == State::Ready, "{status:?}");
        Ok(Some(()))
    })
    .await?;
    let definition = [
        ("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "kymas.operator.kyma-project.io"),
        ("authentication.k8s.io", "v1", "TokenReview", "x"),
    ];
    let all: Vec<_> = impossible.into_iter().chain(definition).collect();
    solo.receiver.process.begin_end();
    wait::until("the receiver to end", SOON, || async { Ok(solo.receiver.process.ended()) }).await?;
    manifests.patch_status(&name, &edit, &with(&all)).await?;
    story::set_modules(&solo.runtime, &json!([])).await?;
    manifests.delete(&name, &DeleteParams::default()).await?;
    solo.receiver.start_again().await?;
    solo.gone("sluice").await?;
    for object in ["sluice", "gate"] {
        ensure!(uid_of(&solo, object).await?.is_none(), "{object} is left");
    }
    remote(&solo).get(RUNTIME_KYMA_NAME).await.context("the user's Kyma")?;
    observed::no_panic(&solo.receiver.process)
}
