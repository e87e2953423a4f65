//! Drift: unchanged, edited, repeatedly edited, user-owned and immutable objects.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tidewatch_api::{Kyma, State};
use tidewatch_tests::{fleet, modules::Version, observed, solo::Solo, wait};

const CONFIG_MAP: (&str, &str, &str) = ("", "v1", "ConfigMap");
const DEPLOYMENT: (&str, &str, &str) = ("apps", "v1", "Deployment");

/// Many kinds with defaults, merged lists and a rewritten quantity.
fn objects(module: &str) -> Vec<Value> {
    let labels = json!({"app": module});
    let pod = json!({
        "metadata": {"labels": labels},
        "spec": {
            "serviceAccountName": module,
            "containers": [{
                "name": "main", "image": "example.test/none:1", "args": ["-v"],
                "ports": [{"containerPort": 8080, "name": "http"}],
                "env": [{"name": "A", "value": "1"}, {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}},
                "volumeMounts": [{"name": "v", "mountPath": "/v"}]
            }],
            "volumes": [{"name": "v", "emptyDir": {}}, {"name": "c", "configMap": {"name": "settings"}}]
        }
    });
    let group = format!("{module}.example.test");
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": module}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": module, "namespace": module}}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": module},
               "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": module},
               "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": module},
               "subjects": [{"kind": "ServiceAccount", "name": module, "namespace": module}]}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": module},
               "data": {"level": "info", "version": "1"}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "pass", "namespace": module}, "data": {"a": "Yg=="}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": module, "namespace": module},
               "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": "http", "name": "a"}, {"port": 81, "name": "b"}]}}),
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": module, "namespace": module},
               "spec": {"podSelector": {"matchLabels": labels}, "ingress": [{"ports": [{"port": 80}]}]}}),
        json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": module, "namespace": module},
               "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels}}}),
        json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": module}, "value": 1000}),
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": module, "namespace": module},
               "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": pod}}),
        json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": module, "namespace": module},
               "spec": {"replicas": 0, "serviceName": module, "selector": {"matchLabels": labels}, "template": pod}}),
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": format!("reefs.{group}")},
               "spec": {"group": group, "scope": "Namespaced", "names": {"kind": "Reef", "plural": "reefs", "singular": "reef"},
                        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                            "type": "object", "properties": {"spec": {"type": "object", "properties": {
                                "depth": {"type": "integer"}, "kind": {"type": "string", "default": "fringing"}}}}}}}]}}),
        json!({"apiVersion": format!("{group}/v1"), "kind": "Reef", "metadata": {"name": "one", "namespace": module},
               "spec": {"depth": 7}}),
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "metadata": {"name": module},
               "webhooks": [{"name": format!("w.{group}"), "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Ignore",
                             "clientConfig": {"service": {"name": module, "namespace": module}},
                             "rules": [{"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["reefs"]}]}]}),
    ]
}

fn data<'a>(object: &'a DynamicObject, key: &str) -> &'a str {
    object.data["data"][key].as_str().unwrap_or_default()
}

/// Transition times of Kyma and Manifest conditions. Excludes the event path's condition, which a restart
/// resets.
async fn since(solo: &Solo, module: &str) -> Result<BTreeMap<String, Value>> {
    let kymas: Api<Kyma> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    let remote = solo.objects(("operator.kyma-project.io", "v1beta2", "Kyma"), Some("kyma-system"));
    let all = [
        ("Kyma in KCP", serde_json::to_value(kymas.get(solo.kyma).await?)?),
        ("Kyma in the runtime", serde_json::to_value(remote.get("default").await?)?),
        ("Manifest", serde_json::to_value(solo.manifest(module).await?)?),
    ];
    let mut since = BTreeMap::new();
    for (whose, object) in all {
        for condition in object["status"]["conditions"].as_array().into_iter().flatten() {
            if condition["type"] != "RuntimeEvents" {
                let what = format!("{whose}: {} is {}", condition["type"], condition["status"]);
                since.insert(what, condition["lastTransitionTime"].clone());
            }
        }
    }
    Ok(since)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_installed_object_is_written_only_on_difference() -> Result<()> {
    let mut solo = Solo::start("kcp-drift", "shelf").await?;
    let mut reef = Version::new("reef", "1.0.0", objects("reef"));
    solo.offer(&reef).await?;
    solo.enable(&json!([{"name": "reef"}])).await?;
    solo.ready("reef", "1.0.0").await?;

    // Unchanged objects cause no writes, despite events.
    fleet::at_rest(&solo.receiver).await?;
    solo.told(DEPLOYMENT, "reef", "reef").await?;
    let before = solo.applies().await?;
    for (gvk, namespace, name) in [
        (DEPLOYMENT, "reef", "reef"),
        (CONFIG_MAP, "reef", "settings"),
        (("", "v1", "Namespace"), "", "reef"),
    ] {
        solo.told(gvk, namespace, name).await?;
    }
    ensure!(solo.applies().await? == before, "{} applies of what stands", solo.applies().await? - before);

    // One changed object causes one write.
    let edit = json!({"data": {"version": "theirs"}});
    solo.patch(CONFIG_MAP, "reef", "settings", "editor", &edit).await?;
    solo.told(CONFIG_MAP, "reef", "settings").await?;
    let settings = solo.objects(CONFIG_MAP, Some("reef"));
    ensure!(data(&settings.get("settings").await?, "version") == "1", "the edit has stayed");
    ensure!(solo.applies().await? == before + 1, "more than the one object was written");
    // A deleted object is recreated. The log names runtime and object.
    solo.objects(CONFIG_MAP, Some("reef")).delete("settings", &DeleteParams::default()).await?;
    solo.told(CONFIG_MAP, "reef", "settings").await?;
    settings.get("settings").await.context("it is not made again")?;
    let log = observed::text(&solo.receiver.process)?;
    for says in ["set back to what its module says", "made again: it was gone"] {
        let told =
            |line: &&str| line.contains(says) && line.contains("shelf") && line.contains("reef/settings");
        ensure!(log.lines().filter(told).count() == 1, "the log does not say once that something was {says}");
    }

    // An upgrade removes a dropped field and changes nothing else.
    let uid = settings.get("settings").await?.metadata.uid;
    reef.version = "1.1.0".into();
    reef.objects[4]["data"] = json!({"version": "2"});
    let before = solo.applies().await?;
    solo.offer(&reef).await?;
    solo.ready("reef", "1.1.0").await?;
    let now = settings.get("settings").await?;
    ensure!(now.data["data"] == json!({"version": "2"}) && now.metadata.uid == uid, "{:#}", now.data);
    ensure!(solo.applies().await? == before + 1, "an upgrade of one object wrote more");

    // A restarted receiver checks each Kyma and writes nothing, even in a full check.
    fleet::settled(&solo.receiver).await?;
    let (before, stood) = (solo.applies_by_resource().await?, since(&solo, "reef").await?);
    solo.receiver.restart().await?;
    for kind in ["Kyma", "AgentConfig"] {
        wait::until(&format!("a look at the {kind}"), Duration::from_mins(1), || async {
            Ok((solo.reconciles(kind).await? > 0).then_some(()))
        })
        .await?;
    }
    solo.look().await?;
    solo.told(CONFIG_MAP, "reef", "settings").await?;
    let after = solo.applies_by_resource().await?;
    ensure!(after == before, "a start wrote: {before:?} became {after:?}");
    // A revert is not reported as drift.
    solo.patch(CONFIG_MAP, "reef", "settings", "editor", &json!({"data": {"version": "theirs"}})).await?;
    solo.told(CONFIG_MAP, "reef", "settings").await?;
    ensure!(data(&settings.get("settings").await?, "version") == "2", "the edit has stayed");
    let stands = since(&solo, "reef").await?;
    ensure!(stood.len() >= 5 && stands == stood, "{stood:#?} became {stands:#?}");
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crd_that_a_new_version_drops_stays_while_it_has_instances() -> Result<()> {
    let solo = Solo::start("kcp-prune", "lagoon").await?;
    let mut reef = Version::new("reef", "1.0.0", objects("reef"));
    solo.offer(&reef).await?;
    solo.enable(&json!([{"name": "reef"}])).await?;
    solo.ready("reef", "1.0.0").await?;

    let crd = ("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let reefs = solo.objects(("reef.example.test", "v1", "Reef"), Some("reef"));
    let users = json!({"apiVersion": "reef.example.test/v1", "kind": "Reef", "metadata": {"name": "users"}, "spec": {"depth": 3}});
    reefs.create(&PostParams::default(), &serde_json::from_value(users)?).await?;
    reef.version = "1.1.0".into();
    reef.objects.retain(|o| !matches!(o["kind"].as_str(), Some("CustomResourceDefinition" | "Reef")));
    solo.offer(&reef).await?;
    // The remaining CRD does not delay the upgrade.
    solo.ready("reef", "1.1.0").await?;
    solo.objects(crd, None).get("reefs.reef.example.test").await.context("the CRD")?;
    ensure!(reefs.get_opt("users").await?.is_some(), "the user's object is gone");
    ensure!(reefs.get_opt("one").await?.is_none(), "the module's object has stayed");
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_reads_only_changed_and_unwatched_objects() -> Result<()> {
    let solo = Solo::start_watched("kcp-skerry", "holm", Vec::new()).await?;
    let agent = solo.agent().await?;
    let mut skerry = Version::new("skerry", "1.0.0", objects("skerry"));
    solo.offer(&skerry).await?;
    solo.enable(&json!([{"name": "skerry"}])).await?;
    solo.ready_by_its_agent("skerry", "1.0.0").await?;
    for watch in ["statefulsets.apps", "configmaps", "reefs.skerry.example.test"] {
        solo.watching(&agent, &format!("engine.{watch}.spec")).await?;
    }
    fleet::at_rest(&solo.receiver).await?;

    // Requests for kinds that API servers read cannot be attributed.
    let ours = async |verb| {
        let mut all = solo.requests(verb).await?;
        let kinds = ["secrets", "deployments", "statefulsets", "networkpolicies", "reefs"];
        all.retain(|resource, _| kinds.contains(&resource.as_str()));
        anyhow::Ok(all)
    };
    let (reads, applies) = (ours("GET").await?, ours("APPLY").await?);
    skerry.version = "1.1.0".into();
    skerry.objects[10]["spec"]["template"]["spec"]["containers"][0]["args"] = json!(["-vv"]);
    solo.offer(&skerry).await?;
    solo.ready_by_its_agent("skerry", "1.1.0").await?;
    fleet::at_rest(&solo.receiver).await?;
    let more = |before: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>| -> BTreeMap<String, u64> {
        let more =
            now.iter().map(|(kind, n)| (kind.clone(), n - before.get(kind).copied().unwrap_or_default()));
        more.filter(|(_, n)| *n > 0).collect()
    };
    let written = more(&applies, &ours("APPLY").await?);
    ensure!(written == BTreeMap::from([("deployments".to_owned(), 1)]), "it has written {written:?}");
    let read = more(&reads, &ours("GET").await?);
    let kinds: Vec<&str> = read.keys().map(String::as_str).collect();
    let why = &solo.receiver.runtime(solo.kyma).await?["reconciles"];
    ensure!(kinds == ["deployments", "secrets"] && read["secrets"] == 1, "it has read {read:?}: {why:#}");

    // An upgrade later, edits are still reverted.
    let edit = json!({"data": {"version": "theirs"}});
    solo.patch(CONFIG_MAP, "skerry", "settings", "editor", &edit).await?;
    let settings = solo.objects(CONFIG_MAP, Some("skerry"));
    wait::until("the edit to be set back", Duration::from_mins(1), || async {
        Ok((data(&settings.get("settings").await?, "version") == "1").then_some(()))
    })
    .await?;
    skerry.version = "1.2.0".into();
    skerry.objects[4]["data"] = json!({"version": "2"});
    solo.offer(&skerry).await?;
    solo.ready_by_its_agent("skerry", "1.2.0").await?;
    ensure!(
        settings.get("settings").await?.data["data"] == json!({"version": "2"}),
        "the new version's data"
    );
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflicting_writer_is_named_and_ignored_fields_stay() -> Result<()> {
    let solo = Solo::start("kcp-fight", "sandbar").await?;
    let mut shoal = Version::new("shoal", "1.0.0", objects("shoal"));
    shoal.template = json!({"ignoreFields": [{"group": "", "kind": "ConfigMap", "name": "settings", "paths": ["/data/level"]}]});
    solo.offer(&shoal).await?;
    solo.enable(&json!([{"name": "shoal"}])).await?;
    solo.ready("shoal", "1.0.0").await?;
    let settings = solo.objects(CONFIG_MAP, Some("shoal"));
    ensure!(data(&settings.get("settings").await?, "level") == "info", "the field has no first value");

    // User-owned fields survive an upgrade; other fields are reverted.
    fleet::settled(&solo.receiver).await?;
    let edit = json!({"data": {"level": "debug", "version": "theirs"}});
    solo.patch(CONFIG_MAP, "shoal", "settings", "user", &edit).await?;
    solo.told(CONFIG_MAP, "shoal", "settings").await?;
    let now = settings.get("settings").await?;
    ensure!(data(&now, "level") == "debug" && data(&now, "version") == "1", "{:#}", now.data);
    shoal.version = "1.1.0".into();
    shoal.objects[4]["data"] = json!({"level": "warn", "version": "2"});
    solo.offer(&shoal).await?;
    solo.ready("shoal", "1.1.0").await?;
    let now = settings.get("settings").await?;
    ensure!(data(&now, "level") == "debug" && data(&now, "version") == "2", "{:#}", now.data);

    // Against a persistent writer the engine backs off and names writer and object.
    fleet::settled(&solo.receiver).await?;
    let tug = json!({"data": {"version": "mine"}});
    let mut rounds = 0;
    loop {
        solo.patch(CONFIG_MAP, "shoal", "settings", "tugboat", &tug).await?;
        solo.told(CONFIG_MAP, "shoal", "settings").await?;
        if data(&settings.get("settings").await?, "version") == "mine" {
            break;
        }
        rounds += 1;
        ensure!(rounds < 40, "the engine never gives in");
    }
    ensure!(rounds >= 20, "the engine gave in after {rounds} rounds");
    let says = |text: &str| {
        ["'tugboat'", "data.version", "ConfigMap shoal/settings", "ignoreFields"]
            .iter()
            .all(|part| text.contains(part))
    };
    solo.module("shoal", "to say who changes it", |m| m.state == State::Warning && says(&m.message)).await?;
    let before = solo.applies().await?;
    solo.told(CONFIG_MAP, "shoal", "settings").await?;
    ensure!(solo.applies().await? == before, "what is left alone was written");

    // A not-ready module reports it too: it can be the cause.
    shoal.version = "1.2.0".into();
    shoal.objects[10]["spec"]["replicas"] = 1.into();
    solo.offer(&shoal).await?;
    solo.module("shoal", "to wait for its pod, and to say who changes the field", |m| {
        m.state == State::Processing && m.message.contains("Deployment shoal/shoal") && says(&m.message)
    })
    .await?;
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeatedly_deleted_object_is_suspended_and_reported() -> Result<()> {
    let solo = Solo::start("kcp-deleter", "undertow").await?;
    solo.offer(&Version::new("ebb", "1.0.0", objects("ebb"))).await?;
    solo.enable(&json!([{"name": "ebb"}])).await?;
    solo.ready("ebb", "1.0.0").await?;
    fleet::settled(&solo.receiver).await?;
    let settings = solo.objects(CONFIG_MAP, Some("ebb"));
    let mut rounds = 0;
    while settings.get_opt("settings").await?.is_some() {
        settings.delete("settings", &DeleteParams::default()).await?;
        solo.told(CONFIG_MAP, "ebb", "settings").await?;
        rounds += 1;
        ensure!(rounds < 40, "the engine never gives in");
    }
    ensure!(rounds >= 20, "the engine gave in after {rounds} rounds");
    solo.module("ebb", "to say what is deleted", |m| {
        m.state == State::Warning && m.message.contains("ConfigMap ebb/settings is deleted again and again")
    })
    .await?;
    let before = solo.applies().await?;
    solo.told(CONFIG_MAP, "ebb", "settings").await?;
    ensure!(solo.applies().await? == before, "what is left alone was written");

    // The engine's own removal resets the conflict.
    solo.enable(&json!([])).await?;
    solo.gone("ebb").await?;
    solo.enable(&json!([{"name": "ebb"}])).await?;
    solo.ready("ebb", "1.0.0").await?;
    let uid = |settings: &DynamicObject| settings.metadata.uid.clone();
    let made = uid(&settings.get("settings").await?);
    settings.delete("settings", &DeleteParams::default()).await?;
    solo.told(CONFIG_MAP, "ebb", "settings").await?;
    ensure!(uid(&settings.get("settings").await?) != made);
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_immutable_change_is_refused_or_recreates_the_object() -> Result<()> {
    let solo = Solo::start("kcp-immutable", "breakwater").await?;
    // The API server's error for a Job contains the whole template. A suspended Job does not delay readiness.
    let job = |image: &str| {
        let pod = json!({"restartPolicy": "Never", "containers": [{"name": "main", "image": image}]});
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "survey", "namespace": "groyne"},
               "spec": {"suspend": true, "template": {"spec": pod}}})
    };
    let mut groyne = Version::new("groyne", "1.0.0", objects("groyne"));
    groyne.objects.push(job("example.test/survey:1"));
    let at = groyne.objects.len() - 1;
    solo.offer(&groyne).await?;
    solo.enable(&json!([{"name": "groyne"}])).await?;
    solo.ready("groyne", "1.0.0").await?;
    let deployments = solo.objects(DEPLOYMENT, Some("groyne"));
    let uid = deployments.get("groyne").await?.metadata.uid.context("no uid")?;

    // A Deployment's selector is immutable.
    groyne.version = "1.1.0".into();
    groyne.objects[10]["spec"]["selector"]["matchLabels"] = json!({"app": "groyne", "part": "head"});
    groyne.objects[10]["spec"]["template"]["metadata"]["labels"] = json!({"app": "groyne", "part": "head"});
    groyne.objects[4]["data"]["version"] = "2".into();
    solo.offer(&groyne).await?;
    let refused = solo
        .module("groyne", "to say what cannot be changed", |m| {
            m.state == State::Error && m.message.contains("cannot be changed in place")
        })
        .await?;
    ensure!(
        ["Deployment.apps groyne/groyne", "selector", "recreate"]
            .iter()
            .all(|part| refused.message.contains(part)),
        "{}",
        refused.message
    );
    ensure!(deployments.get("groyne").await?.metadata.uid.as_ref() == Some(&uid), "the old one is gone");
    let settings = solo.objects(CONFIG_MAP, Some("groyne")).get("settings").await?;
    ensure!(data(&settings, "version") == "2", "one refused object has held back the others");

    groyne.version = "1.2.0".into();
    groyne.objects[9]["value"] = 2000.into();
    groyne.objects[at] = job("example.test/survey:2");
    groyne.template = json!({"recreate": [{"group": "apps", "kind": "Deployment"}, {"group": "batch", "kind": "Job"},
                                          {"group": "scheduling.k8s.io", "kind": "PriorityClass"}]});
    solo.offer(&groyne).await?;
    wait::until("the Deployment to be made anew", Duration::from_mins(1), || async {
        let now = deployments.get_opt("groyne").await?;
        Ok(now.filter(|d| d.metadata.uid.as_ref() != Some(&uid)).map(drop))
    })
    .await?;
    // Reports the Deployment like an agent.
    wait::until("version 1.2.0 to be Ready", Duration::from_mins(1), || async {
        solo.told(DEPLOYMENT, "groyne", "groyne").await?;
        let manifest = solo.manifest("groyne").await?;
        Ok(manifest.status.filter(|s| s.state == State::Ready).map(drop))
    })
    .await?;
    solo.ready("groyne", "1.2.0").await?;
    let anew = deployments.get("groyne").await?;
    ensure!(
        anew.data["spec"]["selector"]["matchLabels"]["part"] == "head",
        "{:#}",
        anew.data["spec"]["selector"]
    );
    // PriorityClass values have another error text.
    let class = solo.objects(("scheduling.k8s.io", "v1", "PriorityClass"), None).get("groyne").await?;
    ensure!(class.data["value"] == 2000, "{}", class.data["value"]);
    let jobs = solo.objects(("batch", "v1", "Job"), Some("groyne"));
    let image = jobs.get("survey").await?.data["spec"]["template"]["spec"]["containers"][0]["image"].clone();
    ensure!(image == "example.test/survey:2", "the Job was not made anew: {image}");

    // The status contains unknown error texts.
    groyne.version = "1.3.0".into();
    groyne.template = json!({});
    groyne.objects[at] = job("example.test/survey:3");
    solo.offer(&groyne).await?;
    let refused = solo
        .module("groyne", "to say that the Job cannot be changed", |m| {
            m.state == State::Error
                && m.message.contains("Job.batch groyne/survey cannot be changed in place")
        })
        .await?;
    ensure!(
        ["field is immutable", "recreate"].iter().all(|part| refused.message.contains(part)),
        "{}",
        refused.message
    );
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unserved_crd_is_not_deleted_as_unused() -> Result<()> {
    let solo = Solo::start("kcp-unserved", "mudflat").await?;
    let mut tern = Version::new("tern", "1.0.0", objects("tern"));
    solo.offer(&tern).await?;
    solo.enable(&json!([{"name": "tern"}])).await?;
    solo.ready("tern", "1.0.0").await?;
    let crds = solo.objects(("apiextensions.k8s.io", "v1", "CustomResourceDefinition"), None);
    let uid = crds.get("reefs.tern.example.test").await?.metadata.uid;
    let reefs = solo.objects(("tern.example.test", "v1", "Reef"), Some("default"));
    let users = json!({"apiVersion": "tern.example.test/v1", "kind": "Reef", "metadata": {"name": "users", "namespace": "default"}});
    reefs.create(&PostParams::default(), &serde_json::from_value(users)?).await?;

    let mut crd = crds.get("reefs.tern.example.test").await?;
    crd.data["spec"]["versions"][0]["served"] = false.into();
    crds.replace("reefs.tern.example.test", &PostParams::default(), &crd).await?;
    tern.version = "1.1.0".into();
    tern.objects.truncate(12);
    solo.offer(&tern).await?;
    solo.ready("tern", "1.1.0").await?;
    fleet::settled(&solo.receiver).await?;
    let mut crd = crds.get("reefs.tern.example.test").await?;
    ensure!(crd.metadata.uid == uid && crd.metadata.deletion_timestamp.is_none(), "the CRD was deleted");
    crd.data["spec"]["versions"][0]["served"] = true.into();
    crds.replace("reefs.tern.example.test", &PostParams::default(), &crd).await?;
    wait::until("the user's object to be seen again", Duration::from_mins(1), || async {
        Ok(reefs.get_opt("users").await?)
    })
    .await?;
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_keeps_a_namespace_with_user_objects() -> Result<()> {
    let solo = Solo::start("kcp-tenanted", "shallows").await?;
    let old = objects("shoal");
    solo.offer(&Version::new("shoal", "1.0.0", old.clone())).await?;
    solo.enable(&json!([{"name": "shoal"}])).await?;
    solo.ready("shoal", "1.0.0").await?;
    let reefs = solo.objects(("shoal.example.test", "v1", "Reef"), Some("shoal"));
    let users = json!({"apiVersion": "shoal.example.test/v1", "kind": "Reef", "metadata": {"name": "users", "namespace": "shoal"}});
    reefs.create(&PostParams::default(), &serde_json::from_value(users)?).await?;

    // The next version moves the object, with the same kind.
    let moved = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shoal", "namespace": "kyma-system"}});
    solo.offer(&Version::new("shoal", "1.1.0", vec![old[12].clone(), moved.clone()])).await?;
    solo.ready("shoal", "1.1.0").await?;
    fleet::settled(&solo.receiver).await?;
    ensure!(
        solo.objects(DEPLOYMENT, Some("shoal")).get_opt("shoal").await?.is_none(),
        "the old version's is left"
    );
    let namespaces = solo.objects(("", "v1", "Namespace"), None);
    ensure!(namespaces.get("shoal").await?.metadata.deletion_timestamp.is_none(), "the namespace goes");
    ensure!(reefs.get("users").await?.metadata.deletion_timestamp.is_none(), "the user's object goes");
    // A retained CRD does not prevent completion.
    solo.offer(&Version::new("shoal", "1.2.0", vec![moved])).await?;
    solo.ready("shoal", "1.2.0").await?;
    ensure!(reefs.get("users").await?.metadata.deletion_timestamp.is_none(), "the user's object goes");
    ensure!(namespaces.get("shoal").await?.metadata.deletion_timestamp.is_none(), "the namespace goes");

    // The CRD goes with the module after its last object.
    reefs.delete("users", &DeleteParams::default()).await?;
    solo.enable(&json!([])).await?;
    solo.gone("shoal").await?;
    let left = namespaces.get_opt("shoal").await?;
    ensure!(left.is_none_or(|n| n.metadata.deletion_timestamp.is_some()), "the namespace is left behind");
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn modules_in_conflict_are_suspended_and_named() -> Result<()> {
    let solo = Solo::start("kcp-shared", "isthmus").await?;
    let shared = |level: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "common", "namespace": "kyma-system"},
               "data": {"level": level}})
    };
    for (module, level) in [("spit", "info"), ("sandbar", "debug")] {
        solo.offer(&Version::new(module, "1.0.0", vec![shared(level)])).await?;
    }
    solo.enable(&json!([{"name": "spit"}, {"name": "sandbar"}])).await?;
    for module in ["spit", "sandbar"] {
        solo.ready(module, "1.0.0").await?;
    }
    let kymas: Api<Kyma> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    let said = |kyma: &Kyma| {
        let all = kyma.status.iter().flat_map(|status| &status.modules);
        all.into_iter()
            .any(|m| m.message.contains("has ConfigMap kyma-system/common, too, with another content"))
    };
    let mut rounds = 0;
    while !said(&kymas.get(solo.kyma).await?) {
        solo.told(CONFIG_MAP, "kyma-system", "common").await?;
        rounds += 1;
        ensure!(rounds < 200, "they fight for ever");
    }
    // Both sides back off, so nothing is written.
    for _ in 0..80 {
        solo.told(CONFIG_MAP, "kyma-system", "common").await?;
    }
    let before = solo.applies().await?;
    for _ in 0..5 {
        solo.told(CONFIG_MAP, "kyma-system", "common").await?;
    }
    ensure!(solo.applies().await? == before, "they go on");
    observed::no_panic(&solo.receiver.process)
}

/// API servers store them as data.
#[tokio::test(flavor = "multi_thread")]
async fn string_data_is_kept_and_pruned_like_data() -> Result<()> {
    const SECRET: (&str, &str, &str) = ("", "v1", "Secret");
    let mut solo = Solo::start("kcp-texts", "polder").await?;
    let secret = |texts: &Value| {
        vec![
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "dyke"}}),
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "pump", "namespace": "dyke"}, "stringData": texts}),
        ]
    };
    let mut dyke =
        Version::new("dyke", "1.0.0", secret(&json!({"user": "a", "pass": "default", "old": "1"})));
    dyke.template = json!({"ignoreFields": [{"group": "", "kind": "Secret", "name": "pump", "paths": ["/stringData/pass"]}]});
    solo.offer(&dyke).await?;
    solo.enable(&json!([{"name": "dyke"}])).await?;
    solo.ready("dyke", "1.0.0").await?;
    let secrets = solo.objects(SECRET, Some("dyke"));
    let is = |wanted: Value| {
        let secrets = secrets.clone();
        move || {
            let (secrets, wanted) = (secrets.clone(), wanted.clone());
            async move {
                let data = secrets.get("pump").await?.data["data"].clone();
                ensure!(data == wanted, "{data} instead of {wanted}");
                Ok(Some(()))
            }
        }
    };

    let edit = json!({"stringData": {"user": "b", "pass": "mine"}});
    secrets.patch("pump", &PatchParams::default(), &Patch::Merge(edit)).await?;
    solo.told(SECRET, "dyke", "pump").await?;
    let kept = json!({"user": "YQ==", "pass": "bWluZQ==", "old": "MQ=="});
    wait::until("the Secret to be as it was but for what is its user's", Duration::from_mins(1), is(kept))
        .await?;

    dyke.version = "2.0.0".into();
    dyke.objects = secret(&json!({"user": "c", "pass": "other"}));
    solo.offer(&dyke).await?;
    solo.ready("dyke", "2.0.0").await?;
    let kept = json!({"user": "Yw==", "pass": "bWluZQ=="});
    wait::until("what the new version has no more to be gone", Duration::from_mins(1), is(kept)).await?;

    solo.receiver.restart().await?;
    fleet::at_rest(&solo.receiver).await?;
    let before = solo.applies().await?;
    solo.told(SECRET, "dyke", "pump").await?;
    ensure!(solo.applies().await? == before, "a Secret that nobody has changed was written");
    observed::no_panic(&solo.receiver.process)
}
