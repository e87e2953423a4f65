//! Objects that controllers change or delete, and objects of unknown kinds.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::{
    ResourceExt,
    api::{DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tidewatch_api::State;
use tidewatch_real_only::real_only;
use tidewatch_tests::{fleet, modules::Version, observed, solo::Solo, wait};

const ROLE: (&str, &str, &str) = ("rbac.authorization.k8s.io", "v1", "ClusterRole");
const WEBHOOKS: (&str, &str, &str) = ("admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration");
const DEPLOYMENT: (&str, &str, &str) = ("apps", "v1", "Deployment");
const JOB: (&str, &str, &str) = ("batch", "v1", "Job");
const POD: (&str, &str, &str) = ("", "v1", "Pod");
const SOON: Duration = Duration::from_mins(1);

fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

/// Fields that the manifest and controllers both set.
fn filled(name: &str) -> Vec<Value> {
    let labels = json!({format!("{name}.example.test/part"): "true"});
    vec![
        namespace(name),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name},
               "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": labels}]}, "rules": []}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": format!("{name}-part"), "labels": labels},
               "rules": [{"apiGroups": [""], "resources": ["services"], "verbs": ["get"]}]}),
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "metadata": {"name": name},
               "webhooks": [{"name": format!("{name}.example.test"), "admissionReviewVersions": ["v1"], "sideEffects": "None",
                             "failurePolicy": "Ignore", "clientConfig": {"url": "https://127.0.0.1:1", "caBundle": "Cg=="},
                             "rules": [{"apiGroups": [format!("{name}.example.test")], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["none"]}]}]}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": name},
               "spec": {"clusterIP": "", "ports": [{"port": 80, "nodePort": 0}]}}),
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": name,
                   "annotations": {"deployment.kubernetes.io/revision": "7"}},
               "spec": {"replicas": 0, "selector": {"matchLabels": {"app": name}},
                        "template": {"metadata": {"labels": {"app": name}},
                                     "spec": {"containers": [{"name": "main", "image": "example.test/none:1"}]}}}}),
        json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": name, "namespace": name},
               "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}, "maxReplicas": 3}}),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_filled_by_controllers_and_injectors_are_kept() -> Result<()> {
    let name = "estuary";
    let solo = Solo::start("kcp-filled", "estuary").await?;
    solo.offer(&Version::new(name, "1.0.0", filled(name))).await?;
    solo.enable(&json!([{"name": name}])).await?;
    solo.ready(name, "1.0.0").await?;
    let roles = solo.objects(ROLE, None);
    wait::until("the aggregated role to have its rules", SOON, || async {
        Ok((roles.get(name).await?.data["rules"][0]["resources"] == json!(["services"])).then_some(()))
    })
    .await?;
    // Like an injector and a scaler.
    let bundle = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCg==";
    let inject = json!([{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}]);
    let inject = Patch::Json::<Value>(serde_json::from_value(inject)?);
    solo.objects(WEBHOOKS, None).patch(name, &PatchParams::default(), &inject).await?;
    solo.patch(
        DEPLOYMENT,
        name,
        name,
        "scaler",
        &json!({"metadata": {"labels": {"scaled": "1"}}, "spec": {"replicas": 1}}),
    )
    .await?;
    fleet::at_rest(&solo.receiver).await?;
    let before = solo.applies().await?;
    for (gvk, namespace) in [(ROLE, ""), (WEBHOOKS, ""), (DEPLOYMENT, name)] {
        solo.told(gvk, namespace, name).await?;
    }
    ensure!(solo.applies().await? == before, "{} applies of what stands", solo.applies().await? - before);
    let webhooks = solo.objects(WEBHOOKS, None).get(name).await?;
    ensure!(webhooks.data["webhooks"][0]["clientConfig"]["caBundle"] == bundle, "{:#}", webhooks.data);
    let deployment = solo.objects(DEPLOYMENT, Some(name)).get(name).await?;
    ensure!(deployment.data["spec"]["replicas"] == 1, "{:#}", deployment.data["spec"]);
    let log = observed::text(&solo.receiver.process)?;
    ensure!(!log.contains("set back to what its module says"), "something was set back");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_cluster_scoped_kinds_are_created_once() -> Result<()> {
    let (group, name) = ("sounding.example.test", "sounding");
    let solo = Solo::start("kcp-scope", "sounding").await?;
    let stray = json!({"apiVersion": format!("{group}/v1"), "kind": "Lead", "metadata": {"name": "main", "namespace": "kyma-system"},
                       "spec": {"depth": 7}});
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "kyma-system"}});
    solo.offer(&Version::new(name, "1.0.0", vec![map, stray])).await?;
    solo.enable(&json!([{"name": name}])).await?;
    solo.module(name, "to wait for the kind", |module| module.message.contains("Lead")).await?;
    let definition: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": format!("leads.{group}")},
        "spec": {"group": group, "scope": "Cluster", "names": {"kind": "Lead", "plural": "leads", "singular": "lead"},
                 "versions": [{"name": "v1", "served": true, "storage": true,
                               "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}))?;
    let definitions = solo.objects(("apiextensions.k8s.io", "v1", "CustomResourceDefinition"), None);
    definitions.create(&PostParams::default(), &definition).await?;
    solo.ready(name, "1.0.0").await?;
    let uid = solo.objects((group, "v1", "Lead"), None).get("main").await?.uid();
    solo.told((group, "v1", "Lead"), "", "main").await?;
    ensure!(solo.objects((group, "v1", "Lead"), None).get("main").await?.uid() == uid, "it was made anew");
    let log = observed::text(&solo.receiver.process)?;
    let removed = log.lines().find(|line| line.contains("deleted") && line.contains("Lead"));
    ensure!(removed.is_none(), "{removed:?}");
    let synced = solo.manifest(name).await?.status.context("no status")?.synced;
    let lead = synced.iter().find(|object| object.kind == "Lead").context("it is not in the inventory")?;
    ensure!(lead.namespace.is_empty() && synced.len() == 2, "{synced:?}");
    Ok(())
}

/// A finished Job is deleted at once, so its completion is unobserved.
#[real_only("the fake API server has no Job controller")]
#[tokio::test(flavor = "multi_thread")]
async fn a_job_with_zero_ttl_runs_once() -> Result<()> {
    let name = "ballast";
    let solo = Solo::start("kcp-ballast", "ballast").await?;
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": name},
        "spec": {"ttlSecondsAfterFinished": 0, "template": {"spec": {"restartPolicy": "Never",
            "containers": [{"name": "main", "image": "example.test/none:1"}]}}}});
    solo.offer(&Version::new(name, "1.0.0", vec![namespace(name), job])).await?;
    solo.enable(&json!([{"name": name}])).await?;
    solo.module(name, "to run its Job", |module| module.state == State::Processing).await?;
    let (pods, jobs) = (solo.objects(POD, Some(name)), solo.objects(JOB, Some(name)));
    let pod = wait::until("the Job's pod", SOON, || async {
        Ok(pods.list(&ListParams::default()).await?.items.into_iter().next())
    })
    .await?;
    let done = json!({"status": {"phase": "Succeeded"}});
    pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(&done)).await?;
    wait::until("the Job to be gone", SOON, || async {
        Ok(jobs.get_opt(name).await?.is_none().then_some(()))
    })
    .await?;
    solo.tell(JOB, name, name).await?;
    solo.ready(name, "1.0.0").await?;
    solo.told(JOB, name, name).await?;
    ensure!(jobs.get_opt(name).await?.is_none(), "it runs again");
    Ok(())
}
