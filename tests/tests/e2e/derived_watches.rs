//! Derived watches: installed objects and objects that a removal waits for.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
    core::DynamicObject,
};
use serde_json::{Value, json};
use tidewatch_api::State;
use tidewatch_tests::{
    modules::Version,
    observed::{self, metric},
    solo::Solo,
    story::set_modules,
    wait,
};

const SOON: Duration = Duration::from_mins(1);
const POLLS: &str = "tidewatch_receiver_looks_total{reason=\"poll\"}";

type Kind = (&'static str, &'static str, &'static str);

/// A module object with a field, its specified value and an edit.
struct Installed {
    kind: Kind,
    namespaced: bool,
    name: String,
    body: Value,
    path: &'static str,
    edit: Value,
}

const RBAC: &str = "rbac.authorization.k8s.io";

fn installed(module: &str) -> Vec<Installed> {
    let labels = json!({"app": module});
    let pods = json!({"metadata": {"labels": labels},
        "spec": {"containers": [{"name": "main", "image": "example.test/none:1"}]}});
    let workload = json!({"replicas": 0, "selector": {"matchLabels": labels}, "template": pods});
    let mut set = workload.clone();
    set["serviceName"] = module.into();
    let group = format!("{module}.example.test");
    let rule = |verb: &str| json!([{"apiGroups": [""], "resources": ["pods"], "verbs": [verb]}]);
    let of = |kind: Kind, namespaced: bool, body: Value, path: &'static str, edit: Value| Installed {
        kind,
        namespaced,
        name: module.to_owned(),
        body,
        path,
        edit,
    };
    let crd = Installed {
        name: format!("beams.{group}"),
        ..of(
            ("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
            false,
            json!({"spec": {"group": group, "scope": "Namespaced",
                "names": {"plural": "beams", "singular": "beam", "kind": "Beam", "shortNames": ["bm"]},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
                    {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}),
            "/spec/names/shortNames/0",
            json!({"spec": {"names": {"shortNames": ["other"]}}}),
        )
    };
    vec![
        of(
            ("", "v1", "ConfigMap"),
            true,
            json!({"data": {"a": "1"}}),
            "/data/a",
            json!({"data": {"a": "2"}}),
        ),
        of(
            ("", "v1", "Service"),
            true,
            json!({"spec": {"selector": labels, "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}}),
            "/spec/selector/app",
            json!({"spec": {"selector": {"app": "other"}}}),
        ),
        of(
            ("apps", "v1", "Deployment"),
            true,
            json!({"spec": workload}),
            "/spec/template/spec/containers/0/image",
            json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "example.test/other:1"}]}}}}),
        ),
        of(
            ("apps", "v1", "StatefulSet"),
            true,
            json!({"spec": set}),
            "/spec/template/spec/containers/0/image",
            json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "example.test/other:1"}]}}}}),
        ),
        of(
            (RBAC, "v1", "Role"),
            true,
            json!({"rules": rule("get")}),
            "/rules/0/verbs/0",
            json!({"rules": rule("list")}),
        ),
        of(
            (RBAC, "v1", "ClusterRole"),
            false,
            json!({"rules": rule("get")}),
            "/rules/0/verbs/0",
            json!({"rules": rule("list")}),
        ),
        of(
            ("scheduling.k8s.io", "v1", "PriorityClass"),
            false,
            json!({"value": 7, "description": "ours"}),
            "/description",
            json!({"description": "mine"}),
        ),
        crd,
        of(
            ("admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration"),
            false,
            json!({"webhooks": [{"name": format!("check.{group}"), "sideEffects": "None", "failurePolicy": "Ignore",
                "admissionReviewVersions": ["v1"],
                "clientConfig": {"service": {"name": module, "namespace": module, "path": "/a", "port": 443}},
                "rules": [{"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nothing"],
                           "scope": "*"}]}]}),
            "/webhooks/0/failurePolicy",
            json!({"webhooks": [{"name": format!("check.{group}"), "sideEffects": "None", "failurePolicy": "Fail",
                "admissionReviewVersions": ["v1"],
                "clientConfig": {"service": {"name": module, "namespace": module, "path": "/a", "port": 443}},
                "rules": [{"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nothing"],
                           "scope": "*"}]}]}),
        ),
    ]
}

fn body(object: &Installed, namespace: &str) -> Value {
    let (group, version, kind) = object.kind;
    let mut body = object.body.clone();
    body["apiVersion"] = if group.is_empty() { version.into() } else { format!("{group}/{version}").into() };
    body["kind"] = kind.into();
    body["metadata"] = json!({"name": object.name});
    if object.namespaced {
        body["metadata"]["namespace"] = namespace.into();
    }
    body
}

async fn is(api: &Api<DynamicObject>, object: &Installed, uid: Option<&str>) -> Result<()> {
    let wanted = object.body.pointer(object.path).context("the test's own path")?;
    let what = format!("{} {} to be as the module has it", object.kind.2, object.name);
    wait::until(&what, SOON, || async {
        let Some(live) = api.get_opt(&object.name).await? else { return Ok(None) };
        let anew = uid.is_none_or(|uid| live.metadata.uid.as_deref() != Some(uid));
        let value = serde_json::to_value(&live)?;
        Ok((anew && live.metadata.deletion_timestamp.is_none() && value.pointer(object.path) == Some(wanted))
            .then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_installed_kind_is_repaired_by_one_event() -> Result<()> {
    let solo = Solo::start_watched("kcp-derived", "quay", Vec::new()).await?;
    let agent = solo.agent().await?;
    let namespace = "mole";
    let objects = installed(namespace);
    let mut all = vec![json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})];
    all.extend(objects.iter().map(|object| body(object, namespace)));
    let mut module = Version::new("mole", "1.0.0", all);
    module.template = json!({"data": {"apiVersion": "mole.example.test/v1", "kind": "Beam",
                                      "metadata": {"name": "default", "namespace": namespace}}});
    solo.offer(&module).await?;
    set_modules(&solo.runtime, &json!([{"name": "mole"}])).await?;
    solo.module("mole", "to be Ready", |m| m.state == State::Ready).await?;
    solo.watching(&agent, "engine.beams.mole.example.test.status").await?;

    let mut slowest = (Duration::ZERO, String::new());
    for object in &objects {
        let api = solo.objects(object.kind, object.namespaced.then_some(namespace));
        let uid = api.get(&object.name).await?.uid().context("no uid")?;
        let began = tokio::time::Instant::now();
        // A reconcile of the previous object would also check this one.
        tidewatch_tests::fleet::settled(&solo.receiver).await?;
        let edit = PatchParams { field_manager: Some("somebody".to_owned()), ..PatchParams::default() };
        api.patch(&object.name, &edit, &Patch::Merge(&object.edit)).await?;
        is(&api, object, None).await?;
        let edited = began.elapsed();
        // A changed label of the object is reverted, too.
        let mark = "app.kubernetes.io/part-of";
        let unmark = json!({"metadata": {"labels": {mark: "mine"}}});
        api.patch(&object.name, &edit, &Patch::Merge(&unmark)).await?;
        wait::until(&format!("the label of {} {} to be back", object.kind.2, object.name), SOON, || async {
            let live = api.get(&object.name).await?;
            Ok((live.labels().get(mark).map(String::as_str) != Some("mine")).then_some(()))
        })
        .await?;
        let began = tokio::time::Instant::now();
        api.delete(&object.name, &DeleteParams::background()).await?;
        is(&api, object, Some(&uid)).await?;
        let deleted = began.elapsed();
        println!("{}: edited, back after {edited:?}; deleted, back after {deleted:?}", object.kind.2);
        slowest = slowest.max((edited.max(deleted), object.kind.2.to_owned()));
    }
    ensure!(slowest.0 < Duration::from_secs(10), "{slowest:?}");

    // The default CR is recreated after a deletion.
    let beams = solo.objects(("mole.example.test", "v1", "Beam"), Some(namespace));
    wait::until("the default CR to be there", SOON, || async { Ok(beams.get_opt("default").await?) }).await?;
    let uid = beams.get("default").await?.uid();
    beams.delete("default", &DeleteParams::default()).await?;
    wait::until("the default CR to be made again", SOON, || async {
        Ok(beams.get_opt("default").await?.filter(|cr| cr.uid() != uid).map(drop))
    })
    .await?;
    ensure!(metric(&solo.receiver.admin, POLLS).await? == 0, "it was polled");
    for process in [&agent.process, &solo.receiver.process] {
        observed::no_panic(process)?;
    }

    // The module's removal ends its watches.
    set_modules(&solo.runtime, &json!([])).await?;
    solo.gone("mole").await?;
    agent
        .process
        .ready("to watch nothing of the module any more", SOON, || async {
            let page = agent.status().await?;
            let left: Vec<_> = page["watches"].as_array().into_iter().flatten().map(|w| &w["name"]).collect();
            let ours = [
                "engine.customresourcedefinitions.apiextensions.k8s.io.spec",
                "engine.enrolment",
                "engine.kymas.operator.kyma-project.io.spec",
                "engine.modulereleasemetas.operator.kyma-project.io.spec",
                "engine.moduletemplates.operator.kyma-project.io.spec",
                "engine.namespaces.spec",
            ];
            ensure!(left == ours, "its status: {page:#}");
            Ok(Some(()))
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_continues_on_the_users_last_deletion_event() -> Result<()> {
    let solo = Solo::start_watched("kcp-awaited", "slip", Vec::new()).await?;
    let agent = solo.agent().await?;
    let crd = installed("spur").remove(7);
    let mut module = Version::new("spur", "1.0.0", vec![body(&crd, "")]);
    module.template =
        json!({"associatedResources": [{"group": "spur.example.test", "version": "v1", "kind": "Beam"}]});
    solo.offer(&module).await?;
    set_modules(&solo.runtime, &json!([{"name": "spur"}])).await?;
    solo.module("spur", "to be Ready", |m| m.state == State::Ready).await?;
    let beams = solo.objects(("spur.example.test", "v1", "Beam"), Some("default"));
    let beam = json!({"apiVersion": "spur.example.test/v1", "kind": "Beam", "metadata": {"name": "mine"}});
    beams.patch("mine", &PatchParams::apply("somebody"), &Patch::Apply(beam)).await?;
    solo.watching(&agent, "engine.customresourcedefinitions.apiextensions.k8s.io.spec").await?;

    set_modules(&solo.runtime, &json!([])).await?;
    solo.module("spur", "to wait for the user's object", |m| m.message.contains("Beam default/mine")).await?;
    solo.watching(&agent, "engine.beams.spur.example.test.spec").await?;
    solo.waits_for_an_event("spur", f64::INFINITY).await?;
    let began = tokio::time::Instant::now();
    beams.delete("mine", &DeleteParams::default()).await?;
    solo.gone("spur").await?;
    println!("the module was gone {:?} after the user's last object", began.elapsed());
    ensure!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    ensure!(metric(&solo.receiver.admin, POLLS).await? == 0, "it was polled");
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_balancer_address_triggers_a_reconcile() -> Result<()> {
    let solo = Solo::start_watched("kcp-balancer", "lock", Vec::new()).await?;
    let agent = solo.agent().await?;
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "sluice", "namespace": "kyma-system"},
                         "spec": {"type": "LoadBalancer", "ports": [{"port": 80}], "selector": {"app": "sluice"}}});
    solo.offer(&Version::new("sluice", "1.0.0", vec![service])).await?;
    set_modules(&solo.runtime, &json!([{"name": "sluice"}])).await?;
    solo.module("sluice", "to wait for an address", |m| m.message.contains("has no address yet")).await?;
    solo.watching(&agent, "engine.services.status").await?;
    // Only the module's deadline is scheduled.
    solo.waits_for_an_event("sluice", 60.0).await?;
    let services = solo.objects(("", "v1", "Service"), Some("kyma-system"));
    let address = json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}});
    services.patch_status("sluice", &PatchParams::default(), &Patch::Merge(address)).await?;
    let began = tokio::time::Instant::now();
    solo.module("sluice", "to be Ready", |m| m.state == State::Ready).await?;
    println!("the module was Ready {:?} after its address", began.elapsed());
    ensure!(metric(&solo.receiver.admin, POLLS).await? == 0, "it was polled");
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unserved_version_hides_no_objects_from_a_removal() -> Result<()> {
    let solo = Solo::start_watched("kcp-outdated", "skiff", Vec::new()).await?;
    let agent = solo.agent().await?;
    // The kind has another owner, so it outlives the module.
    let mut crd = installed("skeg").remove(7);
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let versions = |old: bool| {
        json!([{"name": "v1", "served": old, "storage": false, "schema": schema},
               {"name": "v2", "served": true, "storage": true, "schema": schema}])
    };
    crd.body["spec"]["versions"] = versions(true);
    let crds = solo.objects(crd.kind, None);
    crds.patch(&crd.name, &PatchParams::apply("somebody"), &Patch::Apply(body(&crd, ""))).await?;
    let beam = |name: &str| json!({"apiVersion": "skeg.example.test/v1", "kind": "Beam", "metadata": {"name": name, "namespace": "default"}});
    let beams = solo.objects(("skeg.example.test", "v2", "Beam"), Some("default"));
    wait::until("the kind to be served", SOON, || async {
        Ok(beams.list(&ListParams::default()).await.ok())
    })
    .await?;
    let mut module = Version::new("skeg", "1.0.0", vec![beam("modules")]);
    module.template =
        json!({"associatedResources": [{"group": "skeg.example.test", "version": "v1", "kind": "Beam"}]});
    solo.offer(&module).await?;
    set_modules(&solo.runtime, &json!([{"name": "skeg"}])).await?;
    solo.module("skeg", "to be Ready", |m| m.state == State::Ready).await?;
    let mut users = beam("users");
    users["apiVersion"] = "skeg.example.test/v2".into();
    beams.patch("users", &PatchParams::apply("somebody"), &Patch::Apply(users)).await?;

    crd.body["spec"]["versions"] = versions(false);
    let params = PatchParams::apply("somebody").force();
    crds.patch(&crd.name, &params, &Patch::Apply(body(&crd, ""))).await?;
    let old = solo.objects(("skeg.example.test", "v1", "Beam"), Some("default"));
    wait::until("its old version to be gone", SOON, || async {
        Ok(old.list(&ListParams::default()).await.err())
    })
    .await?;
    set_modules(&solo.runtime, &json!([])).await?;
    solo.module("skeg", "to wait for the user's object", |m| m.message.contains("Beam default/users"))
        .await?;
    solo.watching(&agent, "engine.beams.skeg.example.test.spec").await?;
    ensure!(beams.get_opt("modules").await?.is_some(), "the module's own object went before its user's");
    beams.delete("users", &DeleteParams::default()).await?;
    solo.gone("skeg").await?;
    ensure!(beams.get_opt("modules").await?.is_none(), "the module's object is left behind");
    ensure!(crds.get_opt(&crd.name).await?.is_some(), "the CRD was not the module's");
    observed::no_panic(&solo.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_secret_is_restored_by_the_resync() -> Result<()> {
    let arguments = ["--fallback-poll=0", "--safety-resync=20"].map(str::to_owned).to_vec();
    let solo = Solo::start_watched("kcp-secrets", "vault", arguments).await?;
    let agent = solo.agent().await?;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
                        "metadata": {"name": "spile", "namespace": "default"}, "data": {"a": "MQ=="}});
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
                     "metadata": {"name": "spile", "namespace": "default"}, "data": {"a": "1"}});
    solo.offer(&Version::new("spile", "1.0.0", vec![secret, map])).await?;
    set_modules(&solo.runtime, &json!([{"name": "spile"}])).await?;
    solo.module("spile", "to be Ready", |m| m.state == State::Ready).await?;
    solo.watching(&agent, "engine.configmaps.spec").await?;
    let page = agent.status().await?;
    ensure!(!page["watches"].to_string().contains("secret"), "{page:#}");

    let secrets = solo.objects(("", "v1", "Secret"), Some("default"));
    secrets.delete("spile", &DeleteParams::default()).await?;
    wait::until("the Secret to be back", SOON, || async { Ok(secrets.get_opt("spile").await?) }).await?;
    let resyncs = metric(&solo.receiver.admin, "tidewatch_receiver_looks_total{reason=\"resync\"}").await?;
    ensure!(resyncs > 0, "nobody has looked");
    let manifest = solo.manifest("spile").await?;
    let found = solo.last(&manifest).await?;
    ensure!(found["causes"].to_string().contains("safetyResync"), "{found:#}");
    Ok(())
}
