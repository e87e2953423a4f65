//! Module readiness: relevant objects and deadlines.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tidewatch_api::{Kyma, ModuleStatus, State};
use tidewatch_real_only::real_only;
use tidewatch_tests::{aggregated::Aggregated, modules::Version, observed, solo::Solo, wait};

const SOON: Duration = Duration::from_mins(1);
/// Contains an object of every kind and its namespace.
const MODULE: &str = "bollard";

type Gvk = (&'static str, &'static str, &'static str);
const CLAIM: Gvk = ("", "v1", "PersistentVolumeClaim");
const DAEMON_SET: Gvk = ("apps", "v1", "DaemonSet");
const DEPLOYMENT: Gvk = ("apps", "v1", "Deployment");
const JOB: Gvk = ("batch", "v1", "Job");
const NODE: Gvk = ("", "v1", "Node");
const POD: Gvk = ("", "v1", "Pod");
const SERVICE: Gvk = ("", "v1", "Service");
const STATEFUL_SET: Gvk = ("apps", "v1", "StatefulSet");

fn object((group, version, kind): Gvk, module: &str, name: &str, spec: &Value) -> Value {
    let api = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    json!({"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": module}, "spec": spec})
}

/// A workload without a kubelet. Its pods can be on a node that is not ready.
fn workload(gvk: Gvk, module: &str, name: &str, more: &Value) -> Value {
    let labels = json!({"app": name});
    let pod = json!({"containers": [{"name": "main", "image": "example.test/none:1"}], "tolerations": [{"operator": "Exists"}]});
    let mut spec = json!({"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}});
    for (key, value) in more.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    object(gvk, module, name, &spec)
}

fn namespace(module: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": module}})
}

#[tokio::test(flavor = "multi_thread")]
async fn exceeded_deadlines_are_errors_unless_a_manager_decides() -> Result<()> {
    let solo = Solo::start("kcp-deadline", "davit").await?;
    let objects = || {
        let deployment = workload(DEPLOYMENT, "davit", "davit", &json!({"replicas": 0}));
        let winch = workload(STATEFUL_SET, "davit", "winch", &json!({"serviceName": "winch"}));
        vec![namespace("davit"), deployment, winch]
    };
    let mut version = Version::new("davit", "1.0.0", objects());
    version.template = json!({"progressDeadlineSeconds": 5});
    solo.offer(&version).await?;
    solo.enable(&json!([{"name": "davit"}])).await?;
    let late =
        solo.module("davit", "to be in Error once its time is over", |m| m.state == State::Error).await?;
    let cause = "StatefulSet davit/winch: not ready within 5 s: its replica is not available";
    ensure!(late.message == cause, "{}", late.message);

    let mut version = Version::new("davit", "1.1.0", objects());
    version.template = json!({"progressDeadlineSeconds": 5, "manager": {
        "group": "apps", "version": "v1", "kind": "Deployment", "name": "davit", "namespace": "davit"}});
    solo.offer(&version).await?;
    solo.ready("davit", "1.1.0").await?;
    let winch = solo.objects(STATEFUL_SET, Some("davit")).get("winch").await?;
    ensure!(winch.data["status"]["readyReplicas"].as_i64().unwrap_or(0) == 0, "it is not stuck any more");
    observed::no_panic(&solo.receiver.process)
}

/// The watch can show the engine's own write before the answer. The echo causes no reconcile.
#[tokio::test(flavor = "multi_thread")]
async fn a_repaired_module_is_ready_immediately() -> Result<()> {
    let solo = Solo::start_watched("kcp-repaired", "fender", Vec::new()).await?;
    let agent = solo.agent().await?;
    let objects =
        vec![namespace("fender"), workload(DEPLOYMENT, "fender", "fender", &json!({"replicas": 0}))];
    solo.offer(&Version::new("fender", "1.0.0", objects)).await?;
    solo.enable(&json!([{"name": "fender"}])).await?;
    solo.ready_by_its_agent("fender", "1.0.0").await?;
    solo.watching(&agent, "engine.deployments.apps.status").await?;
    let deployments = solo.objects(DEPLOYMENT, Some("fender"));
    let kymas: Api<Kyma> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    for round in 0..6 {
        tidewatch_tests::fleet::at_rest(&solo.receiver).await?;
        let before = deployments.get("fender").await?.metadata.uid;
        deployments.delete("fender", &DeleteParams::background()).await?;
        wait::until("another Deployment, and its Manifest to be Ready", SOON, || async {
            let now = deployments.get_opt("fender").await?.and_then(|d| d.metadata.uid);
            let manifest = solo.manifest("fender").await?.status.unwrap_or_default();
            Ok((now.is_some() && now != before && manifest.state == State::Ready).then_some(()))
        })
        .await?;
        // Scheduled reconciles do not count.
        tidewatch_tests::fleet::at_rest(&solo.receiver).await?;
        let kyma = kymas.get(solo.kyma).await?;
        let said = kyma.module_status("fender").context("it has no status")?;
        ensure!(said.state == State::Ready, "round {round}: {} {}", said.state, said.message);
    }
    let log = observed::text(&solo.receiver.process)?;
    ensure!(!log.contains("somebody"), "it takes itself for somebody else");
    observed::no_panic(&solo.receiver.process)
}

/// An operator creates the workload of the module.
#[tokio::test(flavor = "multi_thread")]
async fn a_manager_installed_by_others_decides_readiness() -> Result<()> {
    let mut solo = Solo::start_watched("kcp-manager", "capstan", Vec::new()).await?;
    let agent = solo.agent().await?;
    let mut version = Version::new("capstan", "1.0.0", vec![namespace("capstan")]);
    version.template = json!({"manager": {"group": "apps", "version": "v1", "kind": "Deployment", "name": "pawl", "namespace": "capstan"}});
    solo.offer(&version).await?;
    solo.enable(&json!([{"name": "capstan"}])).await?;
    let waits = solo
        .module("capstan", "to wait for its manager", |m| {
            m.state == State::Processing && !m.message.is_empty()
        })
        .await?;
    ensure!(
        waits.message == "the module's manager Deployment.apps capstan/pawl is not there",
        "{}",
        waits.message
    );
    solo.watching(&agent, "engine.deployments.apps.status").await?;

    let deployments = solo.objects(DEPLOYMENT, Some("capstan"));
    let body = workload(DEPLOYMENT, "capstan", "pawl", &json!({"replicas": 0}));
    deployments.create(&PostParams::default(), &serde_json::from_value(body)?).await?;
    solo.ready_by_its_agent("capstan", "1.0.0").await?;
    solo.receiver.restart().await?;
    solo.watching(&agent, "engine.deployments.apps.status").await?;
    tidewatch_tests::fleet::at_rest(&solo.receiver).await?;
    // Each is an event.
    for (replicas, state) in [(1, State::Processing), (0, State::Ready)] {
        let scaled = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        deployments.patch("pawl", &PatchParams::default(), &scaled).await?;
        solo.module("capstan", &format!("to be {state} with {replicas} replicas"), |m| m.state == state)
            .await?;
    }
    deployments.delete("pawl", &DeleteParams::background()).await?;
    solo.module("capstan", "to miss its manager", |m| m.state == State::Processing).await?;
    observed::no_panic(&solo.receiver.process)
}

/// Waits for a module message; reports an object like an agent.
async fn says(
    solo: &Solo,
    (gvk, name): (Gvk, &str),
    what: &str,
    is: impl Fn(&ModuleStatus) -> bool + Sync,
) -> Result<()> {
    let kymas: Api<Kyma> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    wait::until(what, SOON, || async {
        solo.tell(gvk, MODULE, name).await?;
        let kyma = kymas.get(solo.kyma).await?;
        let said = kyma.module_status(MODULE).context("it has no status")?;
        ensure!(is(said), "it says: {} {}", said.state, said.message);
        Ok(Some(()))
    })
    .await
}

/// Waits until the module waits for this object first.
async fn waits_for(solo: &Solo, (gvk, name): (Gvk, &str), why: &str) -> Result<()> {
    let cause = format!("{} {MODULE}/{name}: {why}", gvk.2);
    let is = |m: &ModuleStatus| m.state == State::Processing && m.message == cause;
    says(solo, (gvk, name), &format!("the module to wait for {cause}"), is).await
}

/// Sets a pod status like a kubelet.
async fn pod_says(solo: &Solo, workload: &str, status: &Value) -> Result<()> {
    let pods = solo.objects(POD, Some(MODULE));
    let name = wait::until(&format!("a pod of {workload}"), SOON, || async {
        let all = pods.list(&ListParams::default().labels(&format!("app={workload}"))).await?;
        Ok(all.items.into_iter().find_map(|pod| pod.metadata.name))
    })
    .await?;
    let patch = Patch::Merge(json!({"status": status}));
    pods.patch_status(&name, &PatchParams::default(), &patch).await?;
    Ok(())
}

#[real_only("nodes, volumes and jobs need their controllers")]
#[tokio::test(flavor = "multi_thread")]
async fn a_module_waits_for_each_kind_in_turn() -> Result<()> {
    let solo = Solo::start("kcp-kinds", "bulwark").await?;
    // Without a node, a DaemonSet is complete.
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "berth"}});
    let nodes = solo.objects(NODE, None);
    nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
    let claim = json!({"storageClassName": MODULE, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let job = json!({"template": {"metadata": {"labels": {"app": "caulk"}}, "spec": {
        "restartPolicy": "Never", "containers": [{"name": "main", "image": "example.test/none:1"}]}}});
    let objects = vec![
        namespace(MODULE),
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": MODULE},
               "provisioner": "example.test/none", "volumeBindingMode": "Immediate"}),
        object(CLAIM, MODULE, "store", &claim),
        workload(DAEMON_SET, MODULE, "lookout", &json!({})),
        object(JOB, MODULE, "caulk", &job),
        workload(STATEFUL_SET, MODULE, "winch", &json!({"serviceName": "winch"})),
        object(
            SERVICE,
            MODULE,
            "gate",
            &json!({"type": "LoadBalancer", "ports": [{"port": 80}], "selector": {"app": "winch"}}),
        ),
    ];
    solo.offer(&Version::new(MODULE, "1.0.0", objects)).await?;
    solo.enable(&json!([{"name": MODULE}])).await?;

    waits_for(&solo, (CLAIM, "store"), "it waits for a volume").await?;
    let merge = |status: Value| Patch::Merge(json!({"status": status}));
    let (params, claims) = (PatchParams::default(), solo.objects(CLAIM, Some(MODULE)));
    claims.patch_status("store", &params, &merge(json!({"phase": "Bound"}))).await?;

    let ready = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    waits_for(&solo, (DAEMON_SET, "lookout"), "its pod is not available on every node").await?;
    pod_says(&solo, "lookout", &ready).await?;
    waits_for(&solo, (JOB, "caulk"), "it is not complete").await?;
    pod_says(&solo, "caulk", &json!({"phase": "Succeeded"})).await?;
    waits_for(&solo, (STATEFUL_SET, "winch"), "its replica is not available").await?;
    pod_says(&solo, "winch", &ready).await?;
    waits_for(&solo, (SERVICE, "gate"), "its load balancer has no address yet").await?;
    let address = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}});
    solo.objects(SERVICE, Some(MODULE)).patch_status("gate", &params, &merge(address)).await?;
    says(&solo, (SERVICE, "gate"), "the module to be Ready", |m| m.state == State::Ready).await?;

    nodes.delete("berth", &DeleteParams::default()).await?;
    observed::no_panic(&solo.receiver.process)
}

/// Pods explain it when neither the object nor a running pod does.
#[real_only("a scheduler has to refuse pods")]
#[tokio::test(flavor = "multi_thread")]
async fn the_cause_of_missing_pods_is_reported() -> Result<()> {
    let solo = Solo::start("kcp-no-pods", "jetsam").await?;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "slip"}});
    let nodes = solo.objects(NODE, None);
    nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
    let mut lookout = workload(DAEMON_SET, "jetsam", "lookout", &json!({}));
    lookout["spec"]["template"]["spec"]["serviceAccountName"] = "nobody".into();
    let cause = async |gvk: Gvk, name: &str, parts: &[&str]| {
        let told = async || solo.tell(gvk, "jetsam", name).await;
        let kymas: Api<Kyma> = Api::namespaced(solo.kcp.clone(), solo.namespace);
        wait::until(&format!("the module to say {parts:?}"), 2 * SOON, || async {
            told().await?;
            let kyma = kymas.get(solo.kyma).await?;
            let said = kyma.module_status("jetsam").context("it has no status")?;
            ensure!(parts.iter().all(|part| said.message.contains(part)), "it says: {}", said.message);
            Ok(Some(()))
        })
        .await
    };
    let version = Version::new("jetsam", "1.0.0", vec![namespace("jetsam"), lookout]);
    solo.offer(&version).await?;
    solo.enable(&json!([{"name": "jetsam"}])).await?;
    cause(DAEMON_SET, "lookout", &["its pods cannot be created", "serviceaccount \"nobody\" not found"])
        .await?;

    nodes.delete("slip", &DeleteParams::default()).await?;
    observed::no_panic(&solo.receiver.process)
}

const GAFF: &str = "gaff.example.test";
const API_SERVICE: Gvk = ("apiregistration.k8s.io", "v1", "APIService");
const KYMA: Gvk = ("operator.kyma-project.io", "v1beta2", "Kyma");
const HOOK: Gvk = (GAFF, "v1", "Hook");

fn hooks() -> Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": format!("hooks.{GAFF}")},
        "spec": {"group": GAFF, "scope": "Namespaced", "names": {"plural": "hooks", "singular": "hook", "kind": "Hook", "listKind": "HookList"},
                 "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                               "schema": {"openAPIV3Schema": schema}}]}})
}

/// Controllers, a simulated kubelet and a simulated operator change statuses; only the agent reports them.
#[real_only("pods run, and an aggregated API becomes available")]
#[tokio::test(flavor = "multi_thread")]
async fn pod_api_and_cr_are_awaited_by_events_alone() -> Result<()> {
    let solo = Solo::start_watched("kcp-more-kinds", "gaff", Vec::new()).await?;
    let group = "rigs.example.test";
    let rigs = Aggregated::start(group).await?;
    let _agent = solo.agent().await?;
    let sentry = json!({"containers": [{"name": "main", "image": "example.test/none:1"}]});
    let objects = vec![
        namespace("gaff"),
        hooks(),
        object(HOOK, "gaff", "boat", &json!({})),
        object(POD, "gaff", "sentry", &sentry),
        object(SERVICE, "gaff", "rigs", &json!({"type": "ExternalName", "externalName": "localhost"})),
        json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": format!("v1.{group}")},
            "spec": {"group": group, "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 10, "insecureSkipTLSVerify": true,
                     "service": {"name": "rigs", "namespace": "gaff", "port": rigs.port}}}),
    ];
    solo.offer(&Version::new("gaff", "1.0.0", objects)).await?;
    let modules = json!({"spec": {"modules": [{"name": "gaff"}]}});
    solo.patch(KYMA, "kyma-system", "default", "user", &modules).await?;
    let waits = async |cause: &str| {
        let is = |m: &ModuleStatus| m.state == State::Processing && m.message.starts_with(cause);
        solo.module("gaff", &format!("to wait for {cause}"), is).await
    };
    let params = PatchParams::default();
    let merge = |status: Value| Patch::Merge(json!({"status": status}));

    waits("Pod gaff/sentry: ").await?;
    let ready = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    solo.objects(POD, Some("gaff")).patch_status("sentry", &params, &merge(ready)).await?;
    waits(&format!("APIService v1.{group}: its API is not available (FailedDiscoveryCheck)")).await?;
    // The API server checks it periodically.
    rigs.serve();
    let hook = solo.objects(HOOK, Some("gaff"));
    let is = |m: &ModuleStatus| m.state == State::Ready;
    let before = solo.module("gaff", "to be Ready: the Hook says nothing", is).await?;
    let said = json!({"state": "Processing", "description": "hauling"});
    hook.patch_status("boat", &params, &merge(said)).await?;
    waits(&format!("Hook.{GAFF} gaff/boat: its state is Processing: hauling")).await?;
    hook.patch_status("boat", &params, &merge(json!({"state": "Ready", "description": null}))).await?;
    let after = solo.module("gaff", "to be Ready", is).await?;
    ensure!(before.version == after.version, "{before:?} {after:?}");

    // Leaves no API without a server to the next test.
    let none = json!({"spec": {"modules": []}});
    solo.patch(KYMA, "kyma-system", "default", "user", &none).await?;
    solo.gone("gaff").await?;
    ensure!(
        solo.objects(API_SERVICE, None).get_opt(&format!("v1.{group}")).await?.is_none(),
        "it is there still"
    );
    observed::no_panic(&solo.receiver.process)
}
