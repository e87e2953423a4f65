//! Real manifests: rewritten values, rejected leftovers, shared fields, enlarged claims.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tidewatch_api::State;
use tidewatch_real_only::real_only;
use tidewatch_tests::{fleet, modules::Version, observed, solo::Solo, wait};

const CONFIG_MAP: (&str, &str, &str) = ("", "v1", "ConfigMap");
const DEPLOYMENT: (&str, &str, &str) = ("apps", "v1", "Deployment");
const SERVICE: (&str, &str, &str) = ("", "v1", "Service");
const CLAIM: (&str, &str, &str) = ("", "v1", "PersistentVolumeClaim");
const SOON: Duration = Duration::from_mins(1);

fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

fn deployment(name: &str, namespace: &str, containers: &Value) -> Value {
    let labels = json!({"app": name});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": namespace},
           "spec": {"replicas": 0, "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}}}})
}

fn service(name: &str, namespace: &str, spec: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace}, "spec": spec})
}

/// Values that the API server drops or rewrites.
fn rewritten(module: &str) -> Vec<Value> {
    let container = json!({"name": "main", "image": "example.test/none:1", "command": null, "envFrom": [], "tty": false,
        "env": [{"name": "EMPTY", "value": ""}, {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1000m"}}}],
        "ports": [{"containerPort": 8080, "protocol": "TCP", "hostPort": 0}],
        "securityContext": {"capabilities": {"add": []}, "privileged": false}, "resources": {"limits": {"memory": "0.5Gi"}}});
    let mut workload = deployment(module, module, &json!([container]));
    workload["spec"]["paused"] = false.into();
    workload["spec"]["template"]["metadata"]["creationTimestamp"] = Value::Null;
    workload["spec"]["template"]["metadata"]["annotations"] = json!({});
    let pod = &mut workload["spec"]["template"]["spec"];
    for (field, value) in [
        ("hostPID", json!(false)),
        ("imagePullSecrets", json!([])),
        ("tolerations", json!([])),
        ("hostAliases", Value::Null),
        ("nodeSelector", json!({})),
        ("affinity", json!({"nodeAffinity": {}})),
        ("securityContext", json!({"supplementalGroups": []})),
        ("schedulerName", json!("")),
        ("volumes", json!([{"name": "tmp", "emptyDir": {"medium": "", "sizeLimit": "1024Mi"}}])),
    ] {
        pod[field] = value;
    }
    vec![
        namespace(module),
        workload,
        service(
            module,
            module,
            &json!({"type": "NodePort", "clusterIP": "", "sessionAffinity": "", "externalIPs": [],
                "selector": {"app": module}, "ports": [{"port": 80, "nodePort": 0, "name": "a"}, {"port": 81, "name": "b"}]}),
        ),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cert", "namespace": module},
               "data": {"cert": "aGVsbG8g\nd29y\nbGQ=\n"}, "stringData": null}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": module, "labels": null},
               "data": {"level": "", "mode": null}, "binaryData": {"logo": "aGVs\nbG8=\n"}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": module, "namespace": module},
               "secrets": [], "imagePullSecrets": []}),
        json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": module, "namespace": module},
               "spec": {"limits": [{"type": "Container", "max": {"cpu": "2000m"}, "default": {"memory": "0.5Gi"}}]}}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": module},
               "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
               "subjects": [{"apiGroup": "", "kind": "ServiceAccount", "name": module, "namespace": module}]}),
        json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": module, "namespace": module},
               "spec": {"minReplicas": null, "maxReplicas": 2, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "none"},
                        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "AverageValue", "averageValue": "1000m"}}}]}}),
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": format!("rays.{module}.example.test")},
               "spec": {"group": format!("{module}.example.test"), "scope": "Cluster", "preserveUnknownFields": false,
                        "names": {"kind": "Ray", "plural": "rays", "singular": "ray", "shortNames": []},
                        "versions": [{"name": "v1", "served": true, "storage": true, "deprecated": false, "additionalPrinterColumns": [],
                                      "schema": {"openAPIV3Schema": {"type": "object", "description": "", "required": [],
                                                                    "x-kubernetes-preserve-unknown-fields": true}}}]},
               "status": {"acceptedNames": {"kind": "", "plural": ""}, "conditions": [], "storedVersions": []}}),
    ]
}

#[real_only("the API server has to drop, rewrite and refuse values as a real one does")]
#[tokio::test(flavor = "multi_thread")]
async fn server_rewritten_values_are_no_drift_after_a_restart() -> Result<()> {
    let mut solo = Solo::start("kcp-rewritten", "manta").await?;
    solo.offer(&Version::new("manta", "1.0.0", rewritten("manta"))).await?;
    solo.enable(&json!([{"name": "manta"}])).await?;
    solo.ready("manta", "1.0.0").await?;
    fleet::settled(&solo.receiver).await?;

    solo.receiver.restart().await?;
    wait::until("a look at the Kyma", SOON, || async {
        Ok((solo.reconciles("Kyma").await? > 0).then_some(()))
    })
    .await?;
    let before = solo.applies_by_resource().await?;
    solo.look().await?;
    solo.told(CONFIG_MAP, "manta", "settings").await?;
    let after = solo.applies_by_resource().await?;
    ensure!(before == after, "what stands was written: {before:?} became {after:?}");
    let log = observed::text(&solo.receiver.process)?;
    let drift: Vec<&str> =
        log.lines().filter(|line| line.contains("set back to what its module says")).collect();
    ensure!(drift.is_empty(), "nobody has changed anything: {drift:#?}");

    // Other changes are still detected.
    solo.patch(SERVICE, "manta", "manta", "editor", &json!({"spec": {"sessionAffinity": "ClientIP"}}))
        .await?;
    solo.told(SERVICE, "manta", "manta").await?;
    let found = solo.objects(SERVICE, Some("manta")).get("manta").await?;
    ensure!(found.data["spec"]["sessionAffinity"] == "None", "{:#}", found.data["spec"]);
    observed::no_panic(&solo.receiver.process)
}

#[real_only("the API server has to drop, rewrite and refuse values as a real one does")]
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_refused_for_unowned_fields_succeeds() -> Result<()> {
    let solo = Solo::start("kcp-settled", "gurnard").await?;
    let main = |more: Value| {
        let mut container = json!({"name": "main", "image": "example.test/none:1"});
        container
            .as_object_mut()
            .into_iter()
            .for_each(|all| all.extend(more.as_object().cloned().unwrap_or_default()));
        json!([container])
    };
    let set = |strategy: Value| {
        let mut set = deployment("store", "gurnard", &main(json!({})));
        set["kind"] = "StatefulSet".into();
        set["spec"]["serviceName"] = "store".into();
        set["spec"]["updateStrategy"] = strategy;
        set
    };
    let node_port = |name: &str| {
        service(name, "gurnard", &json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30944}]}))
    };
    let ports = |port: u16| service("named", "gurnard", &json!({"ports": [{"port": port, "name": "http"}]}));
    let probe = |kind: &str| main(json!({"livenessProbe": {kind: {"port": 80}}}));
    let mut gurnard = Version::new(
        "gurnard",
        "1.0.0",
        vec![
            namespace("gurnard"),
            deployment("web", "gurnard", &main(json!({}))),
            set(json!({"type": "RollingUpdate"})),
            deployment("probed", "gurnard", &probe("httpGet")),
            ports(80),
            node_port("old"),
        ],
    );
    solo.offer(&gurnard).await?;
    solo.enable(&json!([{"name": "gurnard"}])).await?;
    solo.ready("gurnard", "1.0.0").await?;
    // Like objects from a backup: without field owners.
    for (gvk, name) in [(DEPLOYMENT, "probed"), (SERVICE, "named")] {
        let nobody = json!([{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}]);
        let patch = Patch::Json::<()>(serde_json::from_value(nobody)?);
        solo.objects(gvk, Some("gurnard")).patch(name, &PatchParams::default(), &patch).await?;
    }

    gurnard.version = "1.1.0".into();
    gurnard.objects[1]["spec"]["strategy"] = json!({"type": "Recreate"});
    gurnard.objects[2] = set(json!({"type": "OnDelete"}));
    gurnard.objects[3] = deployment("probed", "gurnard", &probe("tcpSocket"));
    gurnard.objects[4] = ports(81);
    gurnard.objects[5] = node_port("new");
    solo.offer(&gurnard).await?;
    solo.ready("gurnard", "1.1.0").await?;
    let web = solo.objects(DEPLOYMENT, Some("gurnard")).get("web").await?;
    ensure!(
        web.data["spec"]["strategy"] == json!({"type": "Recreate"}),
        "{:#}",
        web.data["spec"]["strategy"]
    );
    let named = solo.objects(SERVICE, Some("gurnard")).get("named").await?;
    ensure!(
        named.data["spec"]["ports"].as_array().is_some_and(|ports| ports.len() == 1),
        "{:#}",
        named.data["spec"]
    );

    // Another field manager's fields stay and are named.
    let add = json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}});
    let mut back = gurnard.clone();
    back.version = "1.2.0".into();
    back.objects[1]["spec"].as_object_mut().context("no spec")?.remove("strategy");
    solo.offer(&back).await?;
    solo.ready("gurnard", "1.2.0").await?;
    solo.patch(DEPLOYMENT, "gurnard", "web", "tuner", &add).await?;
    gurnard.version = "1.3.0".into();
    solo.offer(&gurnard).await?;
    solo.module("gurnard", "to name the writer that keeps the field", |m| {
        m.state == State::Error && m.message.contains("'tuner'") && m.message.contains("recreate")
    })
    .await?;
    observed::no_panic(&solo.receiver.process)
}

#[real_only("the API server has to drop, rewrite and refuse values as a real one does")]
#[tokio::test(flavor = "multi_thread")]
async fn dropped_installer_fields_go_and_user_edits_stay() -> Result<()> {
    let solo = Solo::start("kcp-installed", "weever").await?;
    let container = |name: &str, env: &[&str]| {
        let env: Vec<Value> = env.iter().map(|name| json!({"name": name, "value": "1"})).collect();
        json!({"name": name, "image": "example.test/none:1", "env": env})
    };
    let installed = deployment(
        "pump",
        "weever",
        &json!([container("main", &["DEBUG", "LEVEL"]), container("sidecar", &[])]),
    );
    let spaces = solo.objects(("", "v1", "Namespace"), None);
    spaces.create(&PostParams::default(), &serde_json::from_value(namespace("weever"))?).await?;
    let deployments = solo.objects(DEPLOYMENT, Some("weever"));
    let mut by_hand = installed.clone();
    by_hand["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/last-applied-configuration": "{}"});
    let as_kubectl =
        PostParams { field_manager: Some("kubectl-client-side-apply".into()), ..PostParams::default() };
    deployments.create(&as_kubectl, &serde_json::from_value(by_hand)?).await?;

    let mut weever = Version::new("weever", "1.0.0", vec![namespace("weever"), installed]);
    solo.offer(&weever).await?;
    solo.enable(&json!([{"name": "weever"}])).await?;
    solo.ready("weever", "1.0.0").await?;
    solo.patch(
        DEPLOYMENT,
        "weever",
        "pump",
        "kubectl-edit",
        &json!({"spec": {"template": {"spec": {"priorityClassName": "mine"}}}}),
    )
    .await?;
    weever.version = "1.1.0".into();
    weever.objects[1] = deployment("pump", "weever", &json!([container("main", &["LEVEL"])]));
    solo.offer(&weever).await?;
    solo.ready("weever", "1.1.0").await?;
    let pods = deployments.get("pump").await?.data["spec"]["template"]["spec"].clone();
    let names = |list: &Value| -> Vec<String> {
        list.as_array()
            .into_iter()
            .flatten()
            .filter_map(|item| Some(item["name"].as_str()?.to_owned()))
            .collect()
    };
    let left = (names(&pods["containers"]), names(&pods["containers"][0]["env"]));
    ensure!(left == (vec!["main".to_owned()], vec!["LEVEL".to_owned()]), "{pods:#}");
    ensure!(pods["priorityClassName"] == "mine", "what a user has added by hand is gone: {pods:#}");
    observed::no_panic(&solo.receiver.process)
}

#[real_only("the API server has to drop, rewrite and refuse values as a real one does")]
#[tokio::test(flavor = "multi_thread")]
async fn an_enlarged_claim_stays_until_more_is_desired() -> Result<()> {
    let solo = Solo::start("kcp-grown", "lumpfish").await?;
    let claim = |size: &str| {
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "logs", "namespace": "lumpfish"},
               "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "lumpfish", "resources": {"requests": {"storage": size}}}})
    };
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "lumpfish"},
                       "provisioner": "example.test/none", "allowVolumeExpansion": true});
    let mut module = Version::new("lumpfish", "1.0.0", vec![namespace("lumpfish"), class, claim("2Gi")]);
    solo.offer(&module).await?;
    solo.enable(&json!([{"name": "lumpfish"}])).await?;
    let claims = solo.objects(CLAIM, Some("lumpfish"));
    wait::until("the claim", SOON, || async { Ok(claims.get_opt("logs").await?) }).await?;
    // Like a provisioner.
    let bound = |size: &str| json!({"status": {"phase": "Bound", "capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"]}});
    solo.patch(CLAIM, "lumpfish", "logs", "provisioner", &json!({"spec": {"volumeName": "none"}})).await?;
    claims.patch_status("logs", &PatchParams::default(), &Patch::Merge(bound("2Gi"))).await?;
    solo.tell(CLAIM, "lumpfish", "logs").await?;
    solo.ready("lumpfish", "1.0.0").await?;

    let grow = json!({"spec": {"resources": {"requests": {"storage": "3Gi"}}}});
    solo.patch(CLAIM, "lumpfish", "logs", "user", &grow).await?;
    let before = solo.applies().await?;
    solo.told(CLAIM, "lumpfish", "logs").await?;
    ensure!(solo.applies().await? == before, "a claim that its user has enlarged was written");
    let size = async || -> Result<Value> {
        Ok(claims.get("logs").await?.data["spec"]["resources"]["requests"]["storage"].clone())
    };
    ensure!(size().await? == "3Gi", "{}", size().await?);
    solo.ready("lumpfish", "1.0.0").await?;

    for (version, asks, has) in [("1.1.0", "2560Mi", "3Gi"), ("1.2.0", "4Gi", "4Gi")] {
        module.version = version.into();
        module.objects[2] = claim(asks);
        solo.offer(&module).await?;
        solo.ready("lumpfish", version).await?;
        ensure!(size().await? == has, "{version}: {}", size().await?);
    }
    observed::no_panic(&solo.receiver.process)
}
