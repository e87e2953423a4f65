//! The Kyma in KCP and the one in the runtime.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
    core::DynamicObject,
};
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, State,
    names::{GROUP, RUNTIME_NAMESPACE, VERSION, annotations, field_managers, labels},
};
use tidewatch_real_only::real_only;
use tidewatch_tests::{
    fleet::{self, Member},
    modules::Version,
    observed,
    solo::Solo,
    wait,
};

use crate::managed::CONFIG_MAP;

const KYMA: (&str, &str, &str) = (GROUP, VERSION, "Kyma");
const CRD: (&str, &str, &str) = ("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
const SOON: Duration = Duration::from_mins(1);

pub(crate) fn version(module: &str) -> Version {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": module, "namespace": "kyma-system"}});
    Version::new(module, "1.0.0", vec![object])
}

pub(crate) fn remote(solo: &Solo) -> Api<DynamicObject> {
    solo.objects(KYMA, Some(RUNTIME_NAMESPACE))
}

/// Sets the defaults: the list of KCP's Kyma.
async fn defaults(solo: &Solo, module: &str) -> Result<()> {
    let kymas: Api<Kyma> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    let patch = Patch::Merge(json!({"spec": {"modules": [{"name": module}]}}));
    kymas.patch(solo.kyma, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Waits until there is another Kyma in the runtime than that of `uid`, and returns it.
async fn another(solo: &Solo, uid: Option<&String>) -> Result<DynamicObject> {
    wait::until("another Kyma in the runtime", SOON, || async {
        Ok(remote(solo).get_opt("default").await?.filter(|k| k.metadata.uid.as_ref() != uid))
    })
    .await
}

pub(crate) async fn uid_of(solo: &Solo, module: &str) -> Result<Option<String>> {
    let object = solo.objects(CONFIG_MAP, Some(RUNTIME_NAMESPACE)).get_opt(module).await?;
    Ok(object.and_then(|o| o.metadata.uid))
}

/// Whether the runtime's Kyma carries what KCP says of it.
fn is_marked(solo: &Solo, kyma: &DynamicObject) -> bool {
    let marks = kyma.metadata.labels.clone().unwrap_or_default();
    let is = |label: &str, value: &str| marks.get(label).is_some_and(|v| v == value);
    let owner = kyma.metadata.annotations.clone().unwrap_or_default().remove(annotations::OWNED_BY);
    is(labels::WATCHED_BY, "kyma")
        && is(labels::MANAGED_BY, "kyma")
        && is(labels::RUNTIME_ID, solo.kyma)
        && is(labels::GLOBAL_ACCOUNT_ID, "ga-1")
        && owner == Some(format!("{}/{}", solo.namespace, solo.kyma))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_runtime_kyma_is_restored_with_defaults() -> Result<()> {
    let solo = Solo::start("kcp-places", "jetty").await?;
    for module in ["dock", "weir"] {
        solo.offer(&version(module)).await?;
    }
    defaults(&solo, "dock").await?;
    solo.label(&json!({labels::GLOBAL_ACCOUNT_ID: "ga-1"})).await?;
    solo.enable(&json!([{"name": "weir"}])).await?;
    solo.ready("weir", "1.0.0").await?;
    ensure!(uid_of(&solo, "dock").await?.is_none(), "the runtime's list counts, not KCP's");

    // Labels and the annotation go back.
    let marked = || async {
        let kyma = remote(&solo).get("default").await?;
        Ok(is_marked(&solo, &kyma).then_some(kyma))
    };
    wait::until("the marks of the runtime's Kyma", SOON, marked).await?;
    let strip = json!({"metadata": {"labels": {labels::MANAGED_BY: "me", labels::GLOBAL_ACCOUNT_ID: null},
                       "annotations": {annotations::OWNED_BY: null}}});
    solo.patch(KYMA, RUNTIME_NAMESPACE, "default", "user", &strip).await?;
    solo.tell(KYMA, RUNTIME_NAMESPACE, "default").await?;
    let before = wait::until("the marks to be back", SOON, marked).await?.metadata.uid;

    remote(&solo).delete("default", &DeleteParams::default()).await?;
    solo.tell(KYMA, RUNTIME_NAMESPACE, "default").await?;
    let back = another(&solo, before.as_ref()).await?;
    ensure!(back.data["spec"]["modules"][0]["name"] == "dock", "{}", back.data["spec"]);
    solo.ready("dock", "1.0.0").await?;
    solo.gone("weir").await?;
    wait::until("the marks of the new Kyma", SOON, marked).await?;
    solo.event("KymaRestored", &["was deleted", "modules: dock"]).await?;

    // Its conditions are about itself as it is now: whoever waits for them there sees that.
    solo.enable(&json!([{"name": "dock"}, {"name": "weir"}])).await?;
    solo.ready("weir", "1.0.0").await?;
    wait::until("the conditions of the runtime's Kyma to be about its present spec", SOON, || async {
        let kyma = remote(&solo).get("default").await?;
        let all = kyma.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let modules = all.iter().find(|c| c["type"] == "Modules").context("no condition")?;
        ensure!(
            modules["status"] == "True" && modules["observedGeneration"] == json!(kyma.metadata.generation),
            "{kyma:?}"
        );
        Ok(Some(()))
    })
    .await?;
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn kymas_of_one_runtime_keep_their_own_modules() -> Result<()> {
    let solo = Solo::start("kcp-twins", "haven").await?;
    solo.offer(&version("dock")).await?;
    solo.enable(&json!([{"name": "dock"}])).await?;
    solo.ready("dock", "1.0.0").await?;
    let (mark, uid) =
        (remote(&solo).get("default").await?.metadata.annotations, uid_of(&solo, "dock").await?);
    let kymas: Api<Kyma> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    let refused = |kyma: &Kyma| {
        kyma.status.as_ref().is_some_and(|status| {
            let said = status.last_operation.as_ref().map(|op| op.operation.as_str());
            status.state == State::Error
                && said.is_some_and(|said| {
                    said.contains("the Kyma 'haven' of the control plane has this runtime")
                })
        })
    };
    // By the same label, and by kubeconfigs that lead to the same place alone.
    for id in [solo.kyma, "twins"] {
        let twin = Member { cluster: solo.cluster, kyma: "twin", id };
        fleet::register(&solo.kcp, solo.namespace, &twin).await?;
        fleet::kyma_where(kymas.clone(), "twin", "to be refused", refused).await?;
        kymas.delete("twin", &DeleteParams::default()).await?;
        wait::until("the twin to be gone", SOON, || async {
            Ok(kymas.get_opt("twin").await?.is_none().then_some(()))
        })
        .await?;
        fleet::settled(&solo.receiver).await?;
        ensure!(
            remote(&solo).get("default").await?.metadata.annotations == mark,
            "the runtime has changed hands: {id}"
        );
        ensure!(
            uid.is_some() && uid_of(&solo, "dock").await? == uid,
            "the module was removed with the other Kyma: {id}"
        );
    }
    // When the one that has it goes, the other gets it.
    let twin = Member { cluster: solo.cluster, kyma: "twin", id: "twins" };
    fleet::register(&solo.kcp, solo.namespace, &twin).await?;
    fleet::kyma_where(kymas.clone(), "twin", "to be refused again", refused).await?;
    kymas.delete(solo.kyma, &DeleteParams::default()).await?;
    fleet::kyma_in_state(&solo.kcp, solo.namespace, "twin", State::Ready).await?;
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_kyma_crd_removes_no_modules() -> Result<()> {
    let mut solo = Solo::start("kcp-crdgone", "slip").await?;
    for module in ["kevel", "painter", "dolphin"] {
        solo.offer(&version(module)).await?;
    }
    // The user has taken one of the defaults away, and added another, of a version by number.
    defaults(&solo, "dolphin").await?;
    solo.enable(&json!([{"name": "kevel"}, {"name": "painter", "version": "1.0.0"}])).await?;
    let mut installed = Vec::new();
    for module in ["kevel", "painter"] {
        solo.ready(module, "1.0.0").await?;
        let object = uid_of(&solo, module).await?.context("it is not installed")?;
        installed.push((module, object, solo.manifest(module).await?.metadata.uid));
    }
    solo.gone("dolphin").await?;
    let before = remote(&solo).get("default").await?.metadata.uid;

    let crds = solo.objects(CRD, None);
    crds.delete("kymas.operator.kyma-project.io", &DeleteParams::default()).await?;
    solo.tell(KYMA, RUNTIME_NAMESPACE, "default").await?;
    wait::until("the CRD to be back", SOON, || async {
        let crd = crds.get_opt("kymas.operator.kyma-project.io").await?;
        Ok(crd.filter(|crd| crd.metadata.deletion_timestamp.is_none()))
    })
    .await?;
    let back = another(&solo, before.as_ref()).await?;
    let list = |kyma: &DynamicObject| -> Vec<Value> {
        let modules = kyma.data["spec"]["modules"].as_array().into_iter().flatten();
        modules.map(|m| json!([m["name"], m["channel"], m["version"]])).collect()
    };
    ensure!(
        list(&back) == [json!(["kevel", null, null]), json!(["painter", null, "1.0.0"])],
        "{}",
        back.data["spec"]
    );
    let is_restored = |kyma: &Kyma| kyma.status.as_ref().is_some_and(|s| s.state == State::Ready);
    let kymas: Api<Kyma> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    fleet::kyma_where(kymas, solo.kyma, "Ready again", is_restored).await?;
    solo.look().await?;
    for (module, object, manifest) in installed {
        solo.ready(module, "1.0.0").await?;
        ensure!(
            solo.manifest(module).await?.metadata.uid == manifest,
            "the Manifest of {module} was made anew"
        );
        ensure!(uid_of(&solo, module).await? == Some(object), "the objects of {module} were made anew");
    }
    ensure!(uid_of(&solo, "dolphin").await?.is_none(), "the defaults took the list's place");

    // From then on it is again as everywhere: a Kyma that is deleted comes back with the defaults.
    let crd = crds.get("kymas.operator.kyma-project.io").await?;
    let notes = crd.metadata.annotations.clone().unwrap_or_default();
    ensure!(!notes.contains_key(annotations::KYMA_LOST), "the note is still there");
    // So it is where somebody has ended before the note was taken away.
    let mut left = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                          "metadata": {"name": "kymas.operator.kyma-project.io", "labels": crd.metadata.labels,
                                       "annotations": {annotations::KYMA_LOST: "true"}},
                          "spec": crd.data["spec"]});
    left["spec"].as_object_mut().context("no spec")?.remove("conversion");
    let params = PatchParams::apply(field_managers::KCP).force();
    crds.patch("kymas.operator.kyma-project.io", &params, &Patch::Apply(left)).await?;
    solo.receiver.restart().await?;
    wait::until("the note to be gone", SOON, || async {
        let crd = crds.get("kymas.operator.kyma-project.io").await?;
        let notes = crd.metadata.annotations.unwrap_or_default();
        Ok((!notes.contains_key(annotations::KYMA_LOST)).then_some(()))
    })
    .await?;
    remote(&solo).delete("default", &DeleteParams::default()).await?;
    solo.tell(KYMA, RUNTIME_NAMESPACE, "default").await?;
    solo.ready("dolphin", "1.0.0").await?;
    for module in ["kevel", "painter"] {
        solo.gone(module).await?;
    }
    observed::no_panic(&solo.receiver.process)
}

/// What the Go manager leaves in the status of a runtime's Kyma: a condition that nobody writes any more, by Update.
#[tokio::test(flavor = "multi_thread")]
async fn conditions_left_by_the_go_manager_are_removed_once() -> Result<()> {
    let solo = Solo::start("kcp-leftover", "berth").await?;
    fleet::settled(&solo.receiver).await?;
    let mut kyma = remote(&solo).get("default").await?;
    let left = json!({"type": "SKRWebhook", "status": "True", "reason": "Ready", "message": "skrwebhook is synchronized",
                      "lastTransitionTime": "2026-01-01T00:00:00Z"});
    kyma.data["status"]["conditions"].as_array_mut().context("no conditions")?.push(left);
    kyma.metadata.managed_fields = None;
    let params = kube::api::PostParams { field_manager: Some("klm".to_owned()), ..Default::default() };
    remote(&solo).replace_status("default", &params, &kyma).await?;
    solo.tell(KYMA, RUNTIME_NAMESPACE, "default").await?;
    let clean = wait::until("the condition to be gone", SOON, || async {
        let kyma = remote(&solo).get("default").await?;
        let all = kyma.data["status"]["conditions"].as_array().context("no conditions")?;
        Ok((!all.iter().any(|c| c["type"] == "SKRWebhook")).then_some(kyma))
    })
    .await?;
    let types: Vec<_> = clean.data["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|c| c["type"].clone())
        .collect();
    ensure!(types.contains(&json!("Modules")) && types.contains(&json!("ModuleCatalog")), "{types:?}");
    // And from then on a reconcile writes nothing.
    fleet::settled(&solo.receiver).await?;
    let version = remote(&solo).get("default").await?.metadata.resource_version;
    let before = solo.reconciles("Kyma").await?;
    solo.tell(KYMA, RUNTIME_NAMESPACE, "default").await?;
    wait::until("a reconcile", SOON, || async {
        Ok((solo.reconciles("Kyma").await? > before).then_some(()))
    })
    .await?;
    fleet::settled(&solo.receiver).await?;
    let after = remote(&solo).get("default").await?.metadata.resource_version;
    ensure!(after == version, "the status was written again");
    observed::no_panic(&solo.receiver.process)
}

/// Applies a condition of somebody else's to the status of a Kyma.
async fn say(kymas: &Api<DynamicObject>, name: &str, message: &str) -> Result<()> {
    let condition = json!({"type": "Surveyed", "status": "True", "reason": "Surveyed", "message": message,
                           "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let status = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "Kyma", "status": {"conditions": [condition]}});
    kymas.patch_status(name, &PatchParams::apply("surveyor"), &Patch::Apply(&status)).await?;
    Ok(())
}

/// The status and messages of a Kyma's conditions, by type.
async fn conditions(kymas: &Api<DynamicObject>, name: &str) -> Result<BTreeMap<String, (String, String)>> {
    let kyma = kymas.get(name).await?;
    let all = kyma.data["status"]["conditions"].as_array().context("no conditions")?;
    let text = |c: &Value, field: &str| c[field].as_str().unwrap_or_default().to_owned();
    Ok(all.iter().map(|c| (text(c, "type"), (text(c, "status"), text(c, "message")))).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_status_writers_keep_their_conditions() -> Result<()> {
    const TIMES: usize = 20;
    let solo = Solo::start("kcp-two-writers", "roadstead").await?;
    let (gvk, modules) = (kube::core::GroupVersionKind::gvk(KYMA.0, KYMA.1, KYMA.2), ["plumb", "chart"]);
    for module in modules {
        solo.offer(&version(module)).await?;
    }
    let resource = kube::discovery::ApiResource::from_gvk(&gvk);
    let central: Api<DynamicObject> = Api::namespaced_with(solo.kcp.clone(), solo.namespace, &resource);
    let both = [(&central, solo.kyma), (&remote(&solo), "default")];
    let theirs = async {
        for time in 0..TIMES {
            for (kymas, name) in both {
                say(kymas, name, &format!("for the {time}. time")).await?;
            }
        }
        anyhow::Ok(())
    };
    // Each of these makes the engine write both, too.
    let ours = async {
        solo.enable(&json!([{"name": "plumb"}])).await?;
        solo.ready("plumb", "1.0.0").await?;
        solo.enable(&json!([{"name": "chart"}])).await?;
        solo.ready("chart", "1.0.0").await?;
        solo.gone("plumb").await
    };
    futures::future::try_join(theirs, ours).await?;
    fleet::settled(&solo.receiver).await?;
    for (kymas, name) in both {
        let all = conditions(kymas, name).await?;
        let said = |type_: &str| all.get(type_).map(|(status, message)| (status.as_str(), message.as_str()));
        let last = format!("for the {}. time", TIMES - 1);
        ensure!(said("Surveyed") == Some(("True", last.as_str())), "{name}: {all:?}");
        ensure!(said("Modules") == Some(("True", "all modules are in ready state")), "{name}: {all:?}");
        // A third writer: the catalog has a reconcile of its own.
        ensure!(said("ModuleCatalog").is_some_and(|(status, _)| status == "True"), "{name}: {all:?}");
    }
    observed::no_panic(&solo.receiver.process)
}

#[real_only("the fake API server forgets the fields that a changed schema does not know")]
#[tokio::test(flavor = "multi_thread")]
async fn an_outdated_kyma_crd_is_repaired_before_any_removal() -> Result<()> {
    let solo = Solo::start("kcp-crdold", "hard").await?;
    for module in ["bitt", "fairlead"] {
        solo.offer(&version(module)).await?;
    }
    solo.enable(&json!([{"name": "bitt"}])).await?;
    solo.ready("bitt", "1.0.0").await?;
    let installed = uid_of(&solo, "bitt").await?.context("it is not installed")?;
    fleet::settled(&solo.receiver).await?;

    // As another tool, or an older one, has it.
    let crds = solo.objects(CRD, None);
    let mut crd = crds.get("kymas.operator.kyma-project.io").await?;
    for version in crd.data["spec"]["versions"].as_array_mut().context("no versions")? {
        let spec = &mut version["schema"]["openAPIV3Schema"]["properties"]["spec"];
        spec["properties"].as_object_mut().context("no properties")?.remove("modules");
    }
    crds.replace("kymas.operator.kyma-project.io", &kube::api::PostParams::default(), &crd).await?;
    wait::until("the list to be hidden", SOON, || async {
        let kyma = remote(&solo).get("default").await?;
        Ok(kyma.data["spec"]["modules"].is_null().then_some(()))
    })
    .await?;
    solo.tell(KYMA, RUNTIME_NAMESPACE, "default").await?;
    wait::until("the list to be back", SOON, || async {
        let kyma = remote(&solo).get("default").await?;
        Ok((kyma.data["spec"]["modules"][0]["name"] == "bitt").then_some(()))
    })
    .await?;
    solo.look().await?;
    ensure!(uid_of(&solo, "bitt").await? == Some(installed), "its objects were made anew");

    // What a user has taken away is removed all the same.
    solo.enable(&json!([{"name": "fairlead"}])).await?;
    solo.ready("fairlead", "1.0.0").await?;
    solo.gone("bitt").await?;

    // One that its user has taken over stays theirs, though the defaults would take it back.
    defaults(&solo, "fairlead").await?;
    solo.enable(&json!([{"name": "fairlead", "managed": false}])).await?;
    let state = |state: State| move |m: &tidewatch_api::ModuleStatus| m.state == state;
    solo.module("fairlead", "to be its user's", state(State::Unmanaged)).await?;
    solo.gone("fairlead").await?;
    let before = remote(&solo).get("default").await?.metadata.uid;
    crds.delete("kymas.operator.kyma-project.io", &DeleteParams::default()).await?;
    solo.tell(KYMA, RUNTIME_NAMESPACE, "default").await?;
    let back = another(&solo, before.as_ref()).await?;
    ensure!(back.data["spec"]["modules"][0]["managed"] == false, "{}", back.data["spec"]);
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_entry_does_not_block_others() -> Result<()> {
    let solo = Solo::start("kcp-refused", "sluice").await?;
    for module in ["weirgate", "culvert"] {
        solo.offer(&version(module)).await?;
    }
    // More than annotations may hold, and these kinds are in one.
    let kinds = (0..5_000).map(
        |n| json!({"group": "penstock.example.test", "version": "v1", "kind": format!("Kind{n}OfManyMore")}),
    );
    let mut wide = version("penstock");
    wide.template["associatedResources"] = kinds.collect();
    solo.offer(&wide).await?;
    solo.enable(&json!([{"name": "culvert"}])).await?;
    solo.ready("culvert", "1.0.0").await?;
    solo.enable(&json!([{"name": "penstock"}, {"name": "weirgate"}])).await?;
    solo.ready("weirgate", "1.0.0").await?;
    solo.gone("culvert").await?;
    let refused = solo
        .module("penstock", "to say why it is not there", |m| {
            m.state == State::Error && m.message.contains("refused")
        })
        .await?;
    ensure!(refused.message.contains("annotations"), "{}", refused.message);
    solo.offer(&Version { version: "1.0.1".into(), ..version("penstock") }).await?;
    solo.ready("penstock", "1.0.1").await?;
    observed::no_panic(&solo.receiver.process)
}
