//! What a user sees of a module while another version of it is on its way: which one runs, and which one is wanted.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, ModuleStatus, State,
    names::{RUNTIME_KYMA_NAME, RUNTIME_NAMESPACE, annotations, conditions},
};
use tidewatch_real_only::real_only;
use tidewatch_tests::{fleet, modules::Version, observed, solo::Solo, wait};

const DEPLOYMENT: (&str, &str, &str) = ("apps", "v1", "Deployment");
const SOON: Duration = Duration::from_mins(1);
const MODULE: &str = "keel";

/// A version whose manager is a Deployment of one pod, with an image of its own.
fn version(number: &str) -> Version {
    let labels = json!({"app": MODULE});
    let mut version = Version::new(
        MODULE,
        number,
        vec![
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": MODULE}}),
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": MODULE, "namespace": MODULE},
                   "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": {
                       "metadata": {"labels": labels},
                       "spec": {"containers": [{"name": "main", "image": image(number)}]}}}}),
        ],
    );
    version.template = json!({"manager": {"group": "apps", "version": "v1", "kind": "Deployment", "name": MODULE,
                                          "namespace": MODULE}});
    version
}

fn image(version: &str) -> String {
    format!("example.test/keel:{version}")
}

/// Has the pods of a version say whether they are ready, as a kubelet would, and its Deployment count them.
async fn pods_are(solo: &Solo, version: &str, ready: bool) -> Result<()> {
    let pods = solo.objects(("", "v1", "Pod"), Some(MODULE));
    let is_its = |pod: &Value| pod["spec"]["containers"][0]["image"] == image(version);
    let pod = wait::until(&format!("a pod of {version}"), SOON, || async {
        let all = pods.list(&ListParams::default().labels(&format!("app={MODULE}"))).await?;
        Ok(all.items.into_iter().find(|pod| is_its(&pod.data)))
    })
    .await?;
    let says = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]}});
    pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(says)).await?;
    let deployments = solo.objects(DEPLOYMENT, Some(MODULE));
    wait::until(&format!("the Deployment to count the pod of {version}"), SOON, || async {
        let deployment = deployments.get(MODULE).await?;
        let status = &deployment.data["status"];
        let counted = status["observedGeneration"].as_i64() == deployment.metadata.generation
            && status["readyReplicas"].as_i64().unwrap_or(0) == i64::from(ready);
        Ok(counted.then_some(()))
    })
    .await?;
    solo.tell(DEPLOYMENT, MODULE, MODULE).await
}

/// Waits until the module's entry in KCP says this, and looks whether the runtime's user and the Kyma's condition say it too.
async fn says(solo: &Solo, what: &str, is: impl Fn(&ModuleStatus) -> bool + Sync) -> Result<ModuleStatus> {
    let said = solo.module(MODULE, what, &is).await?;
    let remote: Api<Kyma> = Api::namespaced(solo.runtime.clone(), RUNTIME_NAMESPACE);
    let local: Api<Kyma> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    for (kymas, name) in [(remote, RUNTIME_KYMA_NAME), (local, solo.kyma)] {
        fleet::kyma_where(kymas, name, what, |kyma| {
            let all = kyma.status.iter().flat_map(|status| &status.conditions);
            let cause =
                all.filter(|c| c.type_ == conditions::MODULES).any(|c| c.message.contains(&said.message));
            kyma.module_status(MODULE).is_some_and(|m| m.message == said.message) && cause
        })
        .await?;
    }
    Ok(said)
}

/// Whether the entry names both versions, and why the new one is not there yet.
fn names(status: &ModuleStatus, runs: &str, wanted: &str) -> bool {
    let both =
        format!("upgrade in progress: {runs} runs, {wanted} is wanted; Deployment {MODULE}/{MODULE}: ");
    status.state == State::Processing && status.version == wanted && status.message.starts_with(&both)
}

#[real_only("pods have to come of workloads")]
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_reports_running_and_wanted_version() -> Result<()> {
    let mut solo = Solo::start("kcp-upgrade", "drydock").await?;
    let only_cause = |m: &ModuleStatus| {
        m.state == State::Processing && m.message.starts_with(&format!("Deployment {MODULE}/{MODULE}: "))
    };
    // A first installation takes the place of nothing.
    solo.offer(&version("1.0.0")).await?;
    solo.enable(&json!([{"name": MODULE}])).await?;
    says(&solo, "to say why it is not ready", only_cause).await?;
    pods_are(&solo, "1.0.0", true).await?;
    solo.ready(MODULE, "1.0.0").await?;

    solo.offer(&version("1.1.0")).await?;
    says(&solo, "to say that 1.0.0 runs", |m| names(m, "1.0.0", "1.1.0")).await?;
    let pods = solo.objects(("", "v1", "Pod"), Some(MODULE));
    let images: Vec<Value> = pods
        .list(&ListParams::default())
        .await?
        .items
        .iter()
        .map(|p| p.data["spec"]["containers"][0]["image"].clone())
        .collect();
    ensure!(images.contains(&image("1.0.0").into()), "it does not: {images:?}");

    // A receiver that starts knows it, and one version that does not get there makes no difference to the next one.
    solo.receiver.restart().await?;
    solo.look().await?;
    says(&solo, "to say that 1.0.0 still runs", |m| names(m, "1.0.0", "1.1.0")).await?;
    solo.offer(&version("1.2.0")).await?;
    says(&solo, "to say that 1.2.0 is wanted now", |m| names(m, "1.0.0", "1.2.0")).await?;

    pods_are(&solo, "1.2.0", true).await?;
    solo.ready(MODULE, "1.2.0").await?;
    let said = solo.module(MODULE, "to say nothing", |m| m.message.is_empty()).await?;
    ensure!(said.state == State::Ready, "{said:?}");

    // Nothing is written to note that it has ended.
    fleet::settled(&solo.receiver).await?;
    let before = solo.manifest(MODULE).await?;
    solo.look().await?;
    solo.told(DEPLOYMENT, MODULE, MODULE).await?;
    let after = solo.manifest(MODULE).await?;
    ensure!(before.resource_version() == after.resource_version(), "{before:#?} became {after:#?}");
    let noted = after.annotations().get(annotations::RUNNING_VERSION).context("nothing is noted")?;
    ensure!(noted == "1.0.0", "it was written for its own sake: {noted}");

    // Its troubles are no upgrade, and it is what runs when the next version comes.
    pods_are(&solo, "1.2.0", false).await?;
    says(&solo, "to say nothing but the cause", only_cause).await?;
    solo.offer(&version("1.3.0")).await?;
    says(&solo, "to say that 1.2.0 runs", |m| names(m, "1.2.0", "1.3.0")).await?;
    observed::no_panic(&solo.receiver.process)
}
