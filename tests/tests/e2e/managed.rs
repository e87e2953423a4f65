//! Unmanaged modules and default CRs, and their return.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use kube::{
    Api,
    api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
    core::DynamicObject,
};
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, Manifest, ModuleStatus, State,
    names::{annotations, finalizers, labels},
};
use tidewatch_tests::{fleet, modules::Version, observed, solo::Solo, wait};

pub(super) const CONFIG_MAP: (&str, &str, &str) = ("", "v1", "ConfigMap");
pub(super) const DEPLOYMENT: (&str, &str, &str) = ("apps", "v1", "Deployment");
const NAMESPACE: (&str, &str, &str) = ("", "v1", "Namespace");
const CRD: (&str, &str, &str) = ("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
const KYMA: (&str, &str, &str) = ("operator.kyma-project.io", "v1beta2", "Kyma");
const SOON: Duration = Duration::from_mins(1);

pub(super) fn version(module: &str, version: &str) -> Version {
    let (labels, group) = (json!({"app": module}), format!("{module}.example.test"));
    let mut offered = Version::new(
        module,
        version,
        vec![
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": module}}),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": module},
                   "data": {"version": version}}),
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": module, "namespace": module},
                   "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": {
                       "metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "example.test/none:1"}]}}}}),
            json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                   "metadata": {"name": format!("quays.{group}")},
                   "spec": {"group": group, "scope": "Namespaced", "names": {"kind": "Quay", "plural": "quays", "singular": "quay"},
                            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                                "type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}),
        ],
    );
    let cr = json!({"apiVersion": format!("{group}/v1"), "kind": "Quay", "metadata": {"name": "one", "namespace": module}});
    offered.template = json!({"data": cr});
    offered
}

pub(super) async fn objects(solo: &Solo, module: &str) -> Result<Vec<DynamicObject>> {
    let (group, crd) = (format!("{module}.example.test"), format!("quays.{module}.example.test"));
    let quay = (group.as_str(), "v1", "Quay");
    let mut found = Vec::new();
    for (gvk, namespace, name) in [
        (NAMESPACE, None, module),
        (CONFIG_MAP, Some(module), "settings"),
        (DEPLOYMENT, Some(module), module),
        (CRD, None, &crd),
        (quay, Some(module), "one"),
    ] {
        found.push(solo.objects(gvk, namespace).get(name).await.with_context(|| format!("{gvk:?} {name}"))?);
    }
    Ok(found)
}

pub(super) fn uids(objects: &[DynamicObject]) -> Vec<Option<String>> {
    objects.iter().map(|object| object.metadata.uid.clone()).collect()
}

/// Whether an object has any of the engine's marks.
fn is_marked(object: &DynamicObject) -> bool {
    let (labels, annotations) = (&object.metadata.labels, &object.metadata.annotations);
    let keys = labels.iter().flatten().chain(annotations.iter().flatten());
    keys.into_iter().any(|(key, value)| {
        key.contains("kyma-project.io/") || key.starts_with("app.kubernetes.io/") || value.contains("kcp-")
    })
}

/// Whether the module's objects are unchanged and unmarked.
async fn given_up(solo: &Solo, module: &str, before: &[DynamicObject]) -> Result<()> {
    let now = objects(solo, module).await?;
    ensure!(uids(&now) == uids(before), "an object was deleted or made anew");
    let marked: Vec<_> = now.iter().filter(|o| is_marked(o)).map(|o| (&o.types, &o.metadata)).collect();
    ensure!(marked.is_empty(), "marks are left: {marked:#?}");
    // Generations of Deployments also count annotations.
    ensure!(now[2].data["spec"] == before[2].data["spec"], "the Deployment was changed");
    Ok(())
}

pub(super) fn manifests(solo: &Solo) -> Api<Manifest> {
    Api::namespaced(solo.kcp.clone(), solo.namespace)
}

/// Waits until the module is unmanaged while its Kyma stays Ready.
async fn unmanaged(solo: &Solo, module: &str) -> Result<()> {
    let kymas: Api<Kyma> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    let flipped = AtomicBool::new(false);
    let what = format!("module {module} to be Unmanaged");
    let kyma = fleet::kyma_where(kymas, solo.kyma, &what, |k| {
        flipped.fetch_or(k.status.as_ref().is_none_or(|s| s.state != State::Ready), Ordering::SeqCst);
        k.module_status(module).is_some_and(|m| m.state == State::Unmanaged)
    })
    .await?;
    ensure!(!flipped.load(Ordering::SeqCst), "the Kyma was not Ready for a while");
    let status = kyma.module_status(module).context("no status")?;
    ensure!(
        status.manifest.is_none() && status.resource.is_none() && status.template.is_none(),
        "{status:?}"
    );
    let label = format!("{}={module}", labels::MODULE_NAME);
    let left = manifests(solo).list(&ListParams::default().labels(&label)).await?.items;
    ensure!(left.is_empty(), "its Manifest is there");
    Ok(())
}

/// Waits until a version is Ready; reports the Deployment like an agent.
pub(super) async fn settled(solo: &Solo, module: &str, version: &str) -> Result<()> {
    solo.module(module, "to get the version", |m| m.version == version && m.manifest.is_some()).await?;
    let kymas: Api<Kyma> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    wait::until(&format!("module {module} to be Ready in version {version}"), SOON, || async {
        solo.tell(DEPLOYMENT, module, module).await?;
        let kyma = kymas.get(solo.kyma).await?;
        Ok(kyma.module_status(module).filter(|m| m.state == State::Ready).map(drop))
    })
    .await
}

pub(super) async fn label(solo: &Solo, manifest: &str, labels: &Value) -> Result<()> {
    let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
    manifests(solo).patch(manifest, &PatchParams::default(), &patch).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unmanaged_module_keeps_running_and_is_managed_again() -> Result<()> {
    let solo = Solo::start("kcp-managed", "wharf").await?;
    solo.offer(&version("mole", "1.0.0")).await?;
    solo.enable(&json!([{"name": "mole"}])).await?;
    solo.ready("mole", "1.0.0").await?;
    let before = objects(&solo, "mole").await?;
    ensure!(before[..4].iter().all(is_marked), "they carry marks while they are managed");

    solo.enable(&json!([{"name": "mole", "managed": false}])).await?;
    unmanaged(&solo, "mole").await?;
    given_up(&solo, "mole", &before).await?;
    solo.event("ModuleUnmanaged", &["mole"]).await?;
    wait::until("the runtime's Kyma to say so", SOON, || async {
        let kyma = solo.objects(KYMA, Some("kyma-system")).get("default").await?;
        Ok((kyma.data["status"]["modules"][0]["state"] == "Unmanaged").then_some(()))
    })
    .await?;

    // An unmanaged module never changes.
    let edit = json!({"data": {"version": "theirs"}});
    solo.patch(CONFIG_MAP, "mole", "settings", "user", &edit).await?;
    fleet::at_rest(&solo.receiver).await?;
    let applies = solo.applies().await?;
    solo.offer(&version("mole", "1.1.0")).await?;
    solo.tell(CONFIG_MAP, "mole", "settings").await?;
    solo.look().await?;
    unmanaged(&solo, "mole").await?;
    given_up(&solo, "mole", &before).await?;
    ensure!(solo.applies().await? == applies, "something was written");
    let settings = solo.objects(CONFIG_MAP, Some("mole"));
    ensure!(settings.get("settings").await?.data["data"]["version"] == "theirs");

    solo.enable(&json!([{"name": "mole", "managed": true}])).await?;
    settled(&solo, "mole", "1.1.0").await?;
    let back = objects(&solo, "mole").await?;
    ensure!(uids(&back) == uids(&before), "an object was made anew");
    ensure!(back[2].data["spec"] == before[2].data["spec"], "the Deployment was restarted");
    ensure!(back[..4].iter().all(is_marked), "they carry marks again");
    ensure!(back[1].data["data"]["version"] == "1.1.0", "the settings are the module's again");

    // Managed again, it can be removed.
    solo.enable(&json!([])).await?;
    solo.gone("mole").await?;
    ensure!(solo.objects(DEPLOYMENT, Some("mole")).get_opt("mole").await?.is_none());
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn removing_the_entry_of_an_unmanaged_module_leaves_its_objects() -> Result<()> {
    let solo = Solo::start("kcp-unmanaged", "landing").await?;
    for module in ["jetty", "slipway"] {
        solo.offer(&version(module, "1.0.0")).await?;
    }
    solo.enable(&json!([{"name": "jetty"}, {"name": "slipway"}])).await?;
    solo.ready("jetty", "1.0.0").await?;
    solo.ready("slipway", "1.0.0").await?;
    let (jetty, slipway) = (objects(&solo, "jetty").await?, objects(&solo, "slipway").await?);

    // An unmanaged entry needs only its name.
    solo.enable(&json!([{"name": "jetty", "managed": false}, {"name": "slipway"}])).await?;
    unmanaged(&solo, "jetty").await?;
    solo.enable(&json!([{"name": "slipway"}])).await?;
    let kymas: Api<Kyma> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    let gone = |k: &Kyma| k.module_status("jetty").is_none();
    fleet::kyma_where(kymas.clone(), solo.kyma, "jetty to be gone from the status", gone).await?;
    given_up(&solo, "jetty", &jetty).await?;

    // The user need not wait for it.
    let manifest = solo.manifest("slipway").await?.metadata.name.context("no name")?;
    label(&solo, &manifest, &json!({labels::SKIP_RECONCILIATION: "true"})).await?;
    solo.enable(&json!([{"name": "slipway", "managed": false}])).await?;
    wait::until("the Manifest to be marked", SOON, || async {
        let annotations = manifests(&solo).get(&manifest).await?.metadata.annotations.unwrap_or_default();
        Ok(annotations.contains_key(annotations::IS_UNMANAGED).then_some(()))
    })
    .await?;
    solo.enable(&json!([])).await?;
    wait::until("the Manifest to be on its way out", SOON, || async {
        Ok(manifests(&solo).get(&manifest).await?.metadata.deletion_timestamp.map(drop))
    })
    .await?;
    label(&solo, &manifest, &json!({labels::SKIP_RECONCILIATION: null})).await?;
    solo.gone("slipway").await?;
    given_up(&solo, "slipway", &slipway).await?;
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ignored_default_cr_is_user_owned() -> Result<()> {
    let solo = Solo::start("kcp-ignore", "tender").await?;
    solo.offer(&version("thole", "1.0.0")).await?;
    let (quay, under) = (
        ("thole.example.test", "v1", "Quay"),
        |policy| json!([{"name": "thole", "customResourcePolicy": policy}]),
    );
    let quays = solo.objects(quay, Some("thole"));
    solo.enable(&under("Ignore")).await?;
    solo.ready("thole", "1.0.0").await?;
    ensure!(quays.get_opt("one").await?.is_none(), "it was made");
    let manifest = solo.manifest("thole").await?;
    ensure!(
        manifest.metadata.finalizers.as_deref() == Some(&[finalizers::MANIFEST.to_owned()]),
        "{manifest:?}"
    );

    // An existing default CR stays but is not recreated.
    solo.enable(&under("CreateAndDelete")).await?;
    let made = wait::until("it to be made", SOON, || async { Ok(quays.get_opt("one").await?) }).await?;
    solo.enable(&under("Ignore")).await?;
    wait::until("the Manifest to leave it to its user", SOON, || async {
        let manifest = solo.manifest("thole").await?;
        Ok((!manifest.spec.creates_default_cr()).then_some(()))
    })
    .await?;
    settled(&solo, "thole", "1.0.0").await?;
    ensure!(quays.get("one").await?.metadata.uid == made.metadata.uid, "it was made anew");
    quays.delete("one", &DeleteParams::default()).await?;
    solo.told(CONFIG_MAP, "thole", "settings").await?;
    ensure!(quays.get_opt("one").await?.is_none(), "it was made again");

    // The user's own CR delays the removal.
    quays.create(&PostParams::default(), &stripped(made)).await?;
    solo.enable(&json!([])).await?;
    let waits = |m: &ModuleStatus| m.message.starts_with("waiting for module crs deletion: Quay thole/one");
    solo.module("thole", "to wait for its user's object", waits).await?;
    objects(&solo, "thole").await.context("objects are gone")?;
    quays.delete("one", &DeleteParams::default()).await?;
    solo.tell(quay, "thole", "one").await?;
    solo.gone("thole").await?;
    ensure!(
        solo.objects(NAMESPACE, None)
            .get_opt("thole")
            .await?
            .is_none_or(|n| n.metadata.deletion_timestamp.is_some())
    );
    observed::no_panic(&solo.receiver.process)
}

fn stripped(object: DynamicObject) -> DynamicObject {
    let DynamicObject { types, metadata, data } = object;
    let metadata = ObjectMeta { name: metadata.name, namespace: metadata.namespace, ..ObjectMeta::default() };
    DynamicObject { types, metadata, data }
}
