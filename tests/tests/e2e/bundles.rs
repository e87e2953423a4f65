//! A module's bundle: CRDs and their objects, several sources, images, platform Secrets, readiness, default
//! CR, and missing APIs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::DynamicObject,
};
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, State,
    names::{RUNTIME_NAMESPACE, annotations, conditions, labels},
};
use tidewatch_real_only::real_only;
use tidewatch_tests::{env, fleet, modules::Version, observed, solo::Solo, wait};

const CONFIG_MAP: (&str, &str, &str) = ("", "v1", "ConfigMap");
const DEPLOYMENT: (&str, &str, &str) = ("apps", "v1", "Deployment");
const SECRET: (&str, &str, &str) = ("", "v1", "Secret");
const SOON: Duration = Duration::from_mins(1);

fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

fn map(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": {"a": "1"}})
}

fn crd(group: &str, kind: &str, fields: &[String]) -> Value {
    let properties: serde_json::Map<String, Value> =
        fields.iter().map(|field| (field.clone(), json!({"type": "string"}))).collect();
    let (singular, plural) = (kind.to_lowercase(), format!("{}s", kind.to_lowercase()));
    let status = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": format!("{plural}.{group}")},
           "spec": {"group": group, "scope": "Namespaced", "names": {"kind": kind, "plural": plural, "singular": singular},
                    "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                        "type": "object", "properties": {"spec": {"type": "object", "properties": properties}, "status": status}}}}]}})
}

fn workload(kind: &str, module: &str, name: &str, replicas: u32, image: &str) -> Value {
    let labels = json!({"app": name});
    let mut object = json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": module},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels},
            "spec": {"containers": [{"name": "main", "image": image, "env": [{"name": "WORKER", "value": image}]}]}}}});
    if kind == "StatefulSet" {
        object["spec"]["serviceName"] = name.into();
    }
    object
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_changes_a_crd_and_its_objects_together() -> Result<()> {
    let solo = Solo::start("kcp-schemas", "lagoon").await?;
    let group = "atoll.example.test";
    let mut fields: Vec<String> = Vec::new();
    let mut atoll = Version::new("atoll", "1.0.0", Vec::new());
    for minor in 0..6 {
        // Each version's objects use a field that the previous schema lacks.
        fields.push(format!("field{minor}"));
        let spec: serde_json::Map<String, Value> = fields.iter().map(|f| (f.clone(), json!("set"))).collect();
        let object = json!({"apiVersion": format!("{group}/v1"), "kind": "Islet", "metadata": {"name": "one", "namespace": "atoll"},
                            "spec": spec});
        atoll.version = format!("1.{minor}.0");
        atoll.objects = vec![object, crd(group, "Islet", &fields), namespace("atoll")];
        solo.offer(&atoll).await?;
        if minor == 0 {
            solo.enable(&json!([{"name": "atoll"}])).await?;
        }
        solo.ready("atoll", &atoll.version).await?;
        let islet = solo.objects((group, "v1", "Islet"), Some("atoll")).get("one").await?;
        ensure!(islet.data["spec"] == Value::Object(spec), "of version {}: {:#}", atoll.version, islet.data);
    }
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_all_sources_of_a_module_are_installed() -> Result<()> {
    let solo = Solo::start("kcp-sources", "delta").await?;
    let group = "spit.example.test";
    let object = json!({"apiVersion": format!("{group}/v1"), "kind": "Bar", "metadata": {"name": "one", "namespace": "spit"},
                        "spec": {"a": "set"}});
    let mut spit = Version::new("spit", "1.0.0", vec![object, map("spit", "raw"), namespace("spit")]);
    spit.sources = vec![
        ("crds".to_owned(), vec![crd(group, "Bar", &["a".to_owned()])]),
        ("dashboards".to_owned(), vec![map("spit", "board")]),
        ("unused".to_owned(), vec![map("spit", "unused")]),
    ];
    spit.template = json!({"sources": ["crds", "dashboards"]});
    solo.offer(&spit).await?;
    solo.enable(&json!([{"name": "spit"}])).await?;
    solo.ready("spit", "1.0.0").await?;
    let maps = solo.objects(CONFIG_MAP, Some("spit"));
    solo.objects((group, "v1", "Bar"), Some("spit")).get("one").await?;
    ensure!(
        maps.get_opt("raw").await?.is_some() && maps.get_opt("board").await?.is_some(),
        "a source is missing"
    );
    ensure!(maps.get_opt("unused").await?.is_none(), "nobody has named this one");

    // Removing a source removes its objects.
    spit.version = "1.1.0".into();
    spit.template = json!({"sources": ["crds"]});
    solo.offer(&spit).await?;
    solo.ready("spit", "1.1.0").await?;
    ensure!(maps.get_opt("board").await?.is_none() && maps.get_opt("raw").await?.is_some(), "the rest stays");

    // A missing resource is named; the installation stays.
    spit.version = "1.2.0".into();
    spit.template = json!({"sources": ["crds", "tables"]});
    solo.offer(&spit).await?;
    let told = |m: &tidewatch_api::ModuleStatus| {
        m.state == State::Warning && m.message.contains("no resource 'tables'")
    };
    solo.module("spit", "to say which source there is none of", told).await?;
    ensure!(solo.manifest("spit").await?.spec.version == "1.1.0", "it was changed");

    // An object in two sources is an error that names both.
    spit.version = "1.3.0".into();
    spit.sources[1].1 = vec![map("spit", "raw")];
    spit.template = json!({"sources": ["crds", "dashboards"]});
    solo.offer(&spit).await?;
    let told = |m: &tidewatch_api::ModuleStatus| {
        m.state == State::Error
            && ["raw-manifest", "dashboards", "ConfigMap spit/raw"]
                .iter()
                .all(|part| m.message.contains(part))
    };
    solo.module("spit", "to say which sources have the same object", told).await?;
    observed::no_panic(&solo.receiver.process)
}

async fn put_secret(
    kcp: &kube::Client,
    namespace: &str,
    name: &str,
    labels: &Value,
    data: &str,
) -> Result<()> {
    let api: Api<Secret> = Api::namespaced(kcp.clone(), namespace);
    let body = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": labels}, "data": {"token": data}});
    api.patch(name, &PatchParams::apply("operator").force(), &Patch::Apply(body)).await?;
    Ok(())
}

async fn holds(solo: &Solo, namespace: &str, name: &str, data: &str) -> Result<()> {
    let secrets = solo.objects(SECRET, Some(namespace));
    wait::until(&format!("Secret {namespace}/{name} to hold {data}"), SOON, || async {
        let secret = secrets.get_opt(name).await?;
        Ok(secret.filter(|secret| secret.data["data"]["token"] == data).map(drop))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn images_and_pull_secrets_are_replaced() -> Result<()> {
    const NAMESPACE: &str = "kcp-transforms";
    let kcp = env::shared().await?.kcp.client()?;
    // The Secrets and their namespace exist before the receiver.
    tidewatch_demo::fleet::prepare_kcp(&kcp, NAMESPACE).await?;
    put_secret(&kcp, NAMESPACE, "platform-pull", &json!({}), "Zmlyc3Q=").await?;
    put_secret(&kcp, NAMESPACE, "injected", &json!({labels::MODULE_NAME: "deployer"}), "b3Vycw==").await?;
    let arguments = ["--skr-image-pull-secret", "platform-pull", "--rollout-window", "0"].map(str::to_owned);
    let solo = Solo::start_with(NAMESPACE, "tide-gate", arguments.to_vec()).await?;
    holds(&solo, RUNTIME_NAMESPACE, "platform-pull", "Zmlyc3Q=").await?;
    let kymas: Api<Kyma> = Api::namespaced(kcp.clone(), NAMESPACE);
    let synced = |kyma: &Kyma| {
        let all = kyma.status.iter().flat_map(|s| &s.conditions);
        all.filter(|c| c.type_ == conditions::IMAGE_PULL_SECRET_SYNC).map(|c| c.status.clone()).next()
    };
    ensure!(synced(&kymas.get(solo.kyma).await?).as_deref() == Some("True"), "the condition is missing");

    let secret = |module: &str| {
        json!({"apiVersion": "v1", "kind": "Secret", "data": {"token": "cGxhY2Vob2xkZXI="},
               "metadata": {"name": "injected", "namespace": module, "annotations": {annotations::INJECT_DATA_FROM_KCP: "true"}}})
    };
    let of = |module: &str| {
        let image = "example.test/origin/gauge:1.0.0";
        let mut version = Version::new(
            module,
            "1.0.0",
            vec![
                namespace(module),
                workload("Deployment", module, "manager", 0, image),
                workload("StatefulSet", module, "store", 0, image),
                secret(module),
            ],
        );
        version.images = vec!["copy.example.test/mirror/gauge:1.0.0".to_owned()];
        version.template = json!({"manager": {"group": "apps", "version": "v1", "kind": "Deployment", "name": "manager", "namespace": module}});
        version
    };
    for module in ["deployer", "gauge"] {
        solo.offer(&of(module)).await?;
    }
    solo.enable(&json!([{"name": "deployer"}, {"name": "gauge"}])).await?;
    for module in ["deployer", "gauge"] {
        solo.ready(module, "1.0.0").await?;
        for (kind, name) in [("Deployment", "manager"), ("StatefulSet", "store")] {
            let object = solo.objects(("apps", "v1", kind), Some(module)).get(name).await?;
            let pods = &object.data["spec"]["template"]["spec"];
            let container = &pods["containers"][0];
            ensure!(container["image"] == "copy.example.test/mirror/gauge:1.0.0", "{pods:#}");
            ensure!(pods["imagePullSecrets"] == json!([{"name": "platform-pull"}]), "{pods:#}");
            let env = container["env"].as_array().context("no env")?;
            let value = |key: &str| env.iter().find(|v| v["name"] == key).map(|v| v["value"].clone());
            ensure!(value("WORKER") == Some(json!("copy.example.test/mirror/gauge:1.0.0")), "{env:#?}");
            let told = (kind == "Deployment").then(|| json!("platform-pull"));
            ensure!(value("SKR_IMG_PULL_SECRET") == told, "{kind}: {env:#?}");
        }
    }
    holds(&solo, "deployer", "injected", "b3Vycw==").await?;
    // Other modules get no data of the control plane.
    holds(&solo, "gauge", "injected", "cGxhY2Vob2xkZXI=").await?;

    // Must not be rewritten repeatedly.
    fleet::settled(&solo.receiver).await?;
    let before = solo.applies().await?;
    solo.told(DEPLOYMENT, "deployer", "manager").await?;
    solo.look().await?;
    ensure!(solo.applies().await? == before, "{} applies of what stands", solo.applies().await? - before);

    // A new Secret is copied; a missing one is reported, and its copy stays.
    put_secret(&kcp, NAMESPACE, "platform-pull", &json!({}), "c2Vjb25k").await?;
    holds(&solo, RUNTIME_NAMESPACE, "platform-pull", "c2Vjb25k").await?;
    let secrets: Api<Secret> = Api::namespaced(kcp.clone(), NAMESPACE);
    secrets.delete("platform-pull", &DeleteParams::default()).await?;
    wait::until("the condition to be False", SOON, || async {
        let kyma = kymas.get(solo.kyma).await?;
        let state = kyma.status.as_ref().map(|s| s.state);
        Ok((synced(&kyma).as_deref() == Some("False") && state == Some(State::Processing)).then_some(()))
    })
    .await?;
    holds(&solo, RUNTIME_NAMESPACE, "platform-pull", "c2Vjb25k").await?;

    // Injected data follows its Secret too.
    put_secret(&kcp, NAMESPACE, "injected", &json!({labels::MODULE_NAME: "deployer"}), "bmV3").await?;
    holds(&solo, "deployer", "injected", "bmV3").await?;
    // Another module's Secret is not injected; the installation stays.
    put_secret(&kcp, NAMESPACE, "injected", &json!({labels::MODULE_NAME: "other"}), "dGhlaXJz").await?;
    let told = |m: &tidewatch_api::ModuleStatus| {
        m.state == State::Error && m.message.contains("'injected'") && m.message.contains("another module")
    };
    solo.module("deployer", "to say why it gets nothing", told).await?;
    holds(&solo, "deployer", "injected", "bmV3").await?;
    // The Kyma's deletion removes it.
    kymas.delete(solo.kyma, &DeleteParams::default()).await?;
    let gone = || async { Ok(kymas.get_opt(solo.kyma).await?.is_none().then_some(())) };
    wait::until("the Kyma to be gone", SOON, gone).await?;
    let left = solo.objects(SECRET, Some(RUNTIME_NAMESPACE)).get_opt("platform-pull").await?;
    ensure!(left.is_none(), "the platform's Secret is left in the runtime");
    for data in ["Zmlyc3Q=", "c2Vjb25k", "b3Vycw==", "dGhlaXJz"] {
        let log = std::fs::read_to_string(solo.receiver.process.log())?;
        ensure!(!log.contains(data), "a Secret's data is in the log");
    }
    observed::no_panic(&solo.receiver.process)
}

#[real_only("pods have to come of workloads, and fail")]
#[tokio::test(flavor = "multi_thread")]
async fn a_module_with_failing_pods_names_the_cause() -> Result<()> {
    let solo = Solo::start("kcp-causes", "shallows").await?;
    let image = "example.test/none:1";
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "store", "namespace": "sandbank"},
        "spec": {"storageClassName": "sandbank-later", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "sandbank-later"},
        "provisioner": "example.test/none", "volumeBindingMode": "WaitForFirstConsumer"});
    let objects =
        vec![namespace("sandbank"), workload("Deployment", "sandbank", "web", 2, image), claim, class];
    solo.offer(&Version::new("sandbank", "1.0.0", objects)).await?;
    solo.enable(&json!([{"name": "sandbank"}])).await?;

    // Simulates a kubelet's pod status. No event reports it.
    let pods = solo.objects(("", "v1", "Pod"), Some("sandbank"));
    let waiting = json!({"phase": "Pending", "containerStatuses": [{"name": "main", "ready": false, "restartCount": 0, "image": image, "imageID": "",
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}}]});
    wait::until("two pods", SOON, || async {
        let list = pods.list(&ListParams::default().labels("app=web")).await?;
        Ok((list.items.len() == 2).then_some(()))
    })
    .await?;
    for pod in pods.list(&ListParams::default().labels("app=web")).await? {
        let name = pod.metadata.name.context("no name")?;
        let patch = Patch::Merge(json!({"status": waiting}));
        pods.patch_status(&name, &PatchParams::default(), &patch).await?;
    }
    let told = |m: &tidewatch_api::ModuleStatus| {
        m.state == State::Processing
            && ["Deployment sandbank/web", "cannot pull its image example.test/none:1", "ImagePullBackOff"]
                .iter()
                .all(|part| m.message.contains(part))
    };
    solo.module("sandbank", "to name the image that cannot be pulled", told).await?;
    let status = solo.manifest("sandbank").await?.status.unwrap_or_default();
    ensure!(status.state == State::Processing, "{status:?}");
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_cr_is_created_once_and_shown() -> Result<()> {
    let solo = Solo::start("kcp-default-cr", "anchorage").await?;
    let group = "mooring.example.test";
    let kind = (group, "v1", "Line");
    let crd = crd(group, "Line", &["a".to_owned()]);
    let mut mooring = Version::new("mooring", "1.0.0", vec![namespace("mooring"), crd]);
    let cr = |value: &str| json!({"apiVersion": format!("{group}/v1"), "kind": "Line", "metadata": {"name": "default", "namespace": "mooring"}, "spec": {"a": value}});
    mooring.template = json!({"data": cr("first")});
    solo.offer(&mooring).await?;
    solo.enable(&json!([{"name": "mooring"}])).await?;
    solo.ready("mooring", "1.0.0").await?;

    // After creation the default CR is user-owned; upgrades do not change it.
    solo.patch(kind, "mooring", "default", "user", &json!({"spec": {"a": "theirs"}})).await?;
    let lines = solo.objects(kind, Some("mooring"));
    let before = lines.get("default").await?;
    mooring.version = "1.1.0".into();
    mooring.template = json!({"data": cr("second")});
    solo.offer(&mooring).await?;
    solo.ready("mooring", "1.1.0").await?;
    let after = lines.get("default").await?;
    ensure!(
        after.metadata.resource_version == before.metadata.resource_version
            && after.data["spec"]["a"] == "theirs",
        "an upgrade has changed it: {:#}",
        after.data
    );

    // Its status is shown.
    let says = json!({"status": {"state": "Error", "description": "the rope is too short"}});
    solo.patch(kind, "mooring", "default", "operator", &says).await?;
    solo.told(kind, "mooring", "default").await?;
    let told = |m: &tidewatch_api::ModuleStatus| {
        m.state == State::Warning
            && m.message.contains("mooring/default")
            && m.message.contains("the rope is too short")
    };
    solo.module("mooring", "to say what its custom resource says", told).await?;
    let manifest = solo.manifest("mooring").await?.status.unwrap_or_default();
    let state = manifest
        .conditions
        .iter()
        .find(|c| c.type_ == conditions::MODULE_CR_STATE)
        .context("no condition")?;
    ensure!((state.status.as_str(), state.reason.as_str()) == ("False", "Error"), "{state:?}");
    // Processing does not delay the module.
    for (text, condition) in [("Processing", "False"), ("Ready", "True")] {
        solo.patch(kind, "mooring", "default", "operator", &json!({"status": {"state": text}})).await?;
        solo.told(kind, "mooring", "default").await?;
        solo.module("mooring", "to be Ready", |m| m.state == State::Ready && m.message.is_empty()).await?;
        let manifest = solo.manifest("mooring").await?.status.unwrap_or_default();
        let shown = manifest
            .conditions
            .iter()
            .any(|c| c.type_ == conditions::MODULE_CR_STATE && c.reason == text && c.status == condition);
        ensure!(shown, "{:?}", manifest.conditions);
    }

    // A deleted default CR is recreated; the message explains how to prevent it.
    lines.delete("default", &DeleteParams::default()).await?;
    solo.tell(kind, "mooring", "default").await?;
    wait::until("it to be made anew", SOON, || async { Ok(lines.get_opt("default").await?.map(drop)) })
        .await?;
    solo.event("DefaultCRRecreated", &["mooring/default", "Ignore"]).await?;
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_former_default_cr_goes_with_the_module() -> Result<()> {
    let solo = Solo::start("kcp-former-cr", "roadstead").await?;
    let group = "fairlead.example.test";
    let kinds = ["Line", "Cable"];
    let objects: Vec<Value> = kinds.iter().map(|kind| crd(group, kind, &["a".to_owned()])).collect();
    let cr = |kind: &str, name: &str| {
        json!({"apiVersion": format!("{group}/v1"), "kind": kind, "metadata": {"name": name, "namespace": "kyma-system"},
               "spec": {"a": "first"}})
    };
    for (version, kind) in ["1.0.0", "1.1.0"].iter().zip(kinds) {
        let mut fairlead = Version::new("fairlead", version, objects.clone());
        fairlead.template = json!({"data": cr(kind, "default")});
        solo.offer(&fairlead).await?;
        solo.enable(&json!([{"name": "fairlead"}])).await?;
        solo.ready("fairlead", version).await?;
    }
    let of = |kind: &'static str| solo.objects((group, "v1", kind), Some("kyma-system"));
    let (lines, cables) = (of("Line"), of("Cable"));
    ensure!(cables.get_opt("default").await?.is_some(), "that of the present version was not made");
    ensure!(lines.get_opt("default").await?.is_some(), "an upgrade has removed that of the version before");
    let mine: DynamicObject = serde_json::from_value(cr("Line", "mine"))?;
    lines.create(&PostParams::default(), &mine).await?;

    solo.enable(&json!([])).await?;
    let waits = |m: &tidewatch_api::ModuleStatus| m.message.contains("Line kyma-system/mine (1)");
    solo.module("fairlead", "to wait for its user's object alone", waits).await?;
    lines.delete("mine", &DeleteParams::default()).await?;
    solo.tell((group, "v1", "Line"), "kyma-system", "mine").await?;
    solo.gone("fairlead").await?;
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_with_generate_name_is_reported() -> Result<()> {
    let solo = Solo::start("kcp-unnamed", "estuary").await?;
    let job = |name: &Value| {
        let pod = json!({"restartPolicy": "Never", "containers": [{"name": "main", "image": "example.test/once:1"}]});
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": name, "spec": {"suspend": true, "template": {"spec": pod}}})
    };
    let unnamed = job(&json!({"generateName": "once-", "namespace": "default"}));
    solo.offer(&Version::new("ferry", "1.0.0", vec![unnamed, map("default", "ferry")])).await?;
    solo.enable(&json!([{"name": "ferry"}])).await?;
    let told = |m: &tidewatch_api::ModuleStatus| {
        m.state == State::Error && m.message.contains("generateName 'once-' would make another Job")
    };
    solo.module("ferry", "to say which object has no name", told).await?;
    solo.objects(CONFIG_MAP, Some("default")).get("ferry").await.context("what is beside it")?;
    let named = job(&json!({"name": "once", "namespace": "default"}));
    let mut mended = Version::new("ferry", "1.1.0", vec![named]);
    mended.channels = vec!["regular".to_owned()];
    solo.offer(&mended).await?;
    solo.ready("ferry", "1.1.0").await?;
    ensure!(solo.objects(CONFIG_MAP, Some("default")).get_opt("ferry").await?.is_none(), "it was not pruned");
    observed::no_panic(&solo.receiver.process)
}

/// An API without a server.
const SHOAL: &str = "shoal.example.test";

#[tokio::test(flavor = "multi_thread")]
async fn an_unserved_api_does_not_block_other_objects() -> Result<()> {
    let solo = Solo::start("kcp-no-backend", "strand").await?;
    let services = solo.objects(("apiregistration.k8s.io", "v1", "APIService"), None);
    let name = format!("v1.{SHOAL}");
    let service = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": name},
        "spec": {"group": SHOAL, "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 10, "insecureSkipTLSVerify": true,
                 "service": {"name": "nobody", "namespace": "default"}}});
    services.patch(&name, &PatchParams::apply("somebody"), &Patch::Apply(service)).await?;
    let result = without_a_server(&solo).await;
    // The runtime is shared.
    services.delete(&name, &DeleteParams::default()).await?;
    result?;
    // No event reports the API's return, so it is polled.
    let crab = crd(SHOAL, "Crab", &["a".to_owned()]);
    let crds = solo.objects(("apiextensions.k8s.io", "v1", "CustomResourceDefinition"), None);
    crds.patch(&format!("crabs.{SHOAL}"), &PatchParams::apply("somebody"), &Patch::Apply(crab)).await?;
    wait::until("the kind's objects to come", SOON, || async {
        solo.tell(CONFIG_MAP, "shoal", "beside").await?;
        let manifest = solo.manifest("shoal").await?.status.unwrap_or_default();
        Ok((manifest.state == State::Ready).then_some(()))
    })
    .await?;
    solo.objects((SHOAL, "v1", "Crab"), Some("shoal")).get("one").await?;
    observed::no_panic(&solo.receiver.process)
}

async fn without_a_server(solo: &Solo) -> Result<()> {
    let crab = json!({"apiVersion": format!("{SHOAL}/v1"), "kind": "Crab", "metadata": {"name": "one", "namespace": "shoal"}, "spec": {"a": "b"}});
    // Modules with this kind's objects, with a dependency on it, with an impossible kind, and unrelated.
    solo.offer(&Version::new("shoal", "1.0.0", vec![namespace("shoal"), crab, map("shoal", "beside")]))
        .await?;
    for (module, group) in [("angler", SHOAL), ("dreamer", "no/such.group")] {
        let mut needs = Version::new(module, "1.0.0", vec![map("default", module)]);
        needs.template = json!({"requires": {"apis": [{"group": group, "version": "v1", "kind": "Crab"}]}});
        solo.offer(&needs).await?;
    }
    solo.offer(&Version::new("plain", "1.0.0", vec![map("default", "plain")])).await?;
    let all = ["shoal", "angler", "dreamer", "plain"].map(|name| json!({"name": name}));
    solo.enable(&json!(all)).await?;
    solo.module("plain", "to be Ready, whatever cannot be looked for", |m| m.state == State::Ready).await?;
    for (module, part) in [("angler", SHOAL), ("dreamer", "no/such.group")] {
        let waits =
            |m: &tidewatch_api::ModuleStatus| m.state == State::Processing && m.message.contains(part);
        solo.module(module, "to say what it waits for", waits).await?;
    }
    let told = |m: &tidewatch_api::ModuleStatus| m.state == State::Error && m.message.contains(SHOAL);
    solo.module("shoal", "to say which API is not there", told).await?;
    solo.objects(CONFIG_MAP, Some("shoal")).get("beside").await.context("what is beside it")?;
    // An unrelated module is changed and removed meanwhile.
    let mut plain = Version::new("plain", "1.1.0", vec![map("default", "plain-too")]);
    plain.channels = vec!["regular".to_owned()];
    solo.offer(&plain).await?;
    solo.ready("plain", "1.1.0").await?;
    ensure!(solo.objects(CONFIG_MAP, Some("default")).get_opt("plain").await?.is_none(), "it was not pruned");
    Ok(())
}
