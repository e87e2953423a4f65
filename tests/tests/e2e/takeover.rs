//! Takeover of a fleet from the Go manager, and the way back.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    core::DynamicObject,
    runtime::{WatchStreamExt, watcher},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tidewatch_api::{
    CustomResourcePolicy, Kyma, Manifest, ModuleStatus, State,
    names::{API_VERSION, GROUP, RUNTIME_NAMESPACE, annotations, finalizers, labels},
};
use tidewatch_tests::{
    ControlPlane,
    env::{self, Environment},
    fleet::{self, Agent, Member, Receiver},
    gomanager::{self, GoManager, kyma_in_runtime, live, shared_fields, watcher_in},
    observed,
    runtime_pool::{self, Alone},
    spare, wait,
};
use tokio::task::JoinHandle;

const SOON: Duration = Duration::from_mins(1);
/// The agent's canary changes once a minute.
const PROVEN: Duration = Duration::from_mins(3);
/// Objects of the Go manager's watcher.
const WATCHER: usize = 10;

/// A Kyma of the Go manager.
struct Rig {
    env: &'static Environment,
    cluster: &'static ControlPlane,
    go: GoManager<'static>,
    // Last field: everything on the runtime has ended before.
    _alone: Alone,
}

impl Rig {
    async fn start(namespace: &'static str, kyma: &'static str, module: &str) -> Result<Self> {
        let (env, alone) = (env::shared().await?, runtime_pool::alone().await?);
        let cluster = alone.cluster;
        spare::take_over(cluster).await?;
        let (kcp, runtime) = (env.kcp.client()?, cluster.client()?);
        gomanager::clean(&runtime).await?;
        fleet::prepare_kcp(&kcp, namespace).await?;
        let module = gomanager::module(module, "1.0.0");
        let go = GoManager { kcp, runtime, namespace, kyma, registry: env.registry.of(namespace), module };
        let rig = Self { env, cluster, go, _alone: alone };
        rig.go_manager_works().await?;
        Ok(rig)
    }

    async fn go_manager_works(&self) -> Result<()> {
        self.go.works(&self.cluster.kubeconfig_yaml(tidewatch_tests::cluster::ADMIN)?).await
    }

    async fn receiver(&self) -> Result<Receiver> {
        let (env, go) = (self.env, &self.go);
        Receiver::start_without_agents(&env.harness, &env.kcp, go.namespace, &go.registry, Vec::new()).await
    }

    /// A receiver that installs the agent.
    async fn watched_receiver(&self) -> Result<Receiver> {
        let (env, go) = (self.env, &self.go);
        Receiver::start(&env.harness, &env.kcp, go.namespace, &go.registry).await
    }

    async fn dry_run(&self) -> Result<(Option<i32>, Value, String)> {
        let (kcp, go) = (&self.env.kcp, &self.go);
        fleet::dry_run(&self.env.harness, kcp, go.namespace, &go.registry, &[]).await
    }

    /// Starts the agent and waits for a proven event path.
    async fn agent(&self, receiver: &Receiver) -> Result<Agent> {
        let member = Member { cluster: self.cluster, kyma: self.go.kyma, id: self.go.kyma };
        let agent = Agent::start(&self.env.harness, receiver, &member).await?;
        agent
            .process
            .ready("to be proven", PROVEN, || async {
                let page = receiver.runtime(self.go.kyma).await?;
                Ok((page["eventPath"] == "proven").then_some(()))
            })
            .await?;
        Ok(agent)
    }

    fn kymas(&self) -> Api<Kyma> {
        Api::namespaced(self.go.kcp.clone(), self.go.namespace)
    }

    fn manifests(&self) -> Api<Manifest> {
        Api::namespaced(self.go.kcp.clone(), self.go.namespace)
    }

    async fn manifest(&self) -> Result<Manifest> {
        Ok(self.manifests().get(&self.go.manifest()).await?)
    }

    /// Versions of the Go manager's applied objects. Any write changes a version.
    async fn versions(&self) -> Result<BTreeMap<String, Option<String>>> {
        let there = self.there().await?;
        let mut versions: BTreeMap<_, _> =
            there.into_iter().map(|(name, object)| (name, object.resource_version())).collect();
        versions.insert("Manifest".into(), self.manifest().await?.resource_version());
        Ok(versions)
    }

    /// The Go manager's applied objects in the runtime.
    async fn there(&self) -> Result<BTreeMap<String, DynamicObject>> {
        let mut all = self.go.objects();
        all.push(self.go.default_cr());
        all.extend(self.go.catalog());
        all.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": RUNTIME_NAMESPACE}}));
        for name in ["kymas", "moduletemplates", "modulereleasemetas"] {
            all.push(json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                            "metadata": {"name": format!("{name}.{GROUP}")}}));
        }
        let mut there = BTreeMap::new();
        for object in &all {
            let object = live(&self.go.runtime, object).await?;
            let kind = object.types.as_ref().map_or("", |types| types.kind.as_str());
            there.insert(format!("{kind} {}", object.name_any()), object);
        }
        Ok(there)
    }

    /// Field values and owners without times and controllers' statuses. Excludes the catalog: the Go manager
    /// copies empty fields and tools' annotations.
    async fn contents(&self) -> Result<BTreeMap<String, Value>> {
        let mut contents = BTreeMap::new();
        let of_catalog =
            |name: &String| name.starts_with("ModuleTemplate ") || name.starts_with("ModuleReleaseMeta ");
        for (name, mut object) in self.there().await?.into_iter().filter(|(name, _)| !of_catalog(name)) {
            object.metadata.resource_version = None;
            let owners = object.metadata.managed_fields.iter_mut().flatten();
            owners.for_each(|owner| owner.time = None);
            let mut value = serde_json::to_value(&object)?;
            value.as_object_mut().context("no object")?.remove("status");
            let owners = value["metadata"]["managedFields"].as_array_mut().context("nobody owns it")?;
            owners.retain(|owner| owner["subresource"] != "status");
            contents.insert(name, value);
        }
        Ok(contents)
    }

    async fn kyma_versions(&self) -> Result<[Option<String>; 2]> {
        let there = live(&self.go.runtime, &kyma_in_runtime()).await?;
        Ok([self.kymas().get(self.go.kyma).await?.resource_version(), there.resource_version()])
    }

    /// Reports a module change; waits for a reconcile of each key kind and for rest. A Ready module is not
    /// reconciled at the start.
    async fn looked(&self, receiver: &Receiver) -> Result<()> {
        let (member, module) =
            (Member { cluster: self.cluster, kyma: self.go.kyma, id: self.go.kyma }, &self.go.module.module);
        receiver.tell(&self.env.harness, &member, ("apps", "v1", "Deployment"), module, module).await?;
        for kind in ["Kyma", "Manifest", "Catalog", "AgentConfig"] {
            wait::until(&format!("a look at the {kind}"), SOON, || async {
                let page = receiver.runtime(self.go.kyma).await?;
                let all = page["reconciles"].as_array().cloned().unwrap_or_default();
                let is = |record: &Value| {
                    record["key"].as_str().is_some_and(|key| key.starts_with(&format!("{kind}/")))
                };
                Ok(all.iter().any(is).then_some(()))
            })
            .await?;
        }
        // An installed agent may not have been started yet.
        fleet::settled_but_for_retries(receiver).await
    }
}

/// Observed states and conditions that are missing or not True.
struct Seen {
    troubles: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Seen {
    fn of(api: Api<DynamicObject>, name: &str, always: &'static [&'static str]) -> Self {
        let troubles = Arc::<Mutex<Vec<String>>>::default();
        let (list, what) = (Arc::clone(&troubles), name.to_owned());
        let one = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let task = tokio::spawn(async move {
            let mut events = watcher(api, one).default_backoff().applied_objects().boxed();
            while let Some(event) = events.next().await {
                let Ok(object) = event else { continue };
                let status = &object.data["status"];
                let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
                let holds =
                    |type_: &str| conditions.iter().any(|c| c["type"] == type_ && c["status"] == "True");
                if status["state"] != "Ready" || !always.iter().all(|type_| holds(type_)) {
                    list.lock().push(format!("{what}: {status}"));
                }
            }
        });
        Self { troubles, task }
    }

    fn nothing(self) -> Result<()> {
        self.task.abort();
        let troubles = self.troubles.lock();
        ensure!(troubles.is_empty(), "it was not as it should be all the time: {troubles:#?}");
        Ok(())
    }
}

fn dynamic(client: &Client, kind: &str, namespace: &str) -> Api<DynamicObject> {
    let gvk = kube::core::GroupVersionKind::gvk(GROUP, "v1beta2", kind);
    Api::namespaced_with(client.clone(), namespace, &kube::discovery::ApiResource::from_gvk(&gvk))
}

fn list<'a>(report: &'a Value, kyma: &str, which: &str) -> Vec<(&'a str, &'a Value)> {
    let all = report["runtimes"][kyma][which].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().map(|write| (write["object"].as_str().unwrap_or_default(), write)).collect()
}

fn has(kyma: &Value, condition: &str) -> bool {
    let all = kyma["status"]["conditions"].as_array().into_iter().flatten();
    all.into_iter().any(|c| c["type"] == condition)
}

fn of_status(entry: &Value) -> bool {
    entry["subresource"] == "status"
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_is_taken_over_in_place_and_given_back() -> Result<()> {
    let rig = Rig::start("kcp-takeover", "keelson", "skeg").await?;
    let (go, kyma) = (&rig.go, rig.go.kyma);
    gomanager::leads(&go.kcp, go.namespace).await?;
    let leases: Api<Lease> = Api::namespaced(go.kcp.clone(), go.namespace);
    let (before, kymas_before) = (rig.versions().await?, rig.kyma_versions().await?);
    let first = (rig.kymas().get(kyma).await?, rig.manifest().await?);

    // The dry run plans only the watcher's replacement and changes nothing.
    let lease = leases.get(gomanager::LEASE).await?.resource_version();
    let (code, report, printed) = rig.dry_run().await?;
    ensure!(code == Some(0) && report["verdict"] == "expected", "{code:?} {report:#}");
    ensure!(
        list(&report, kyma, "changes").is_empty() && list(&report, kyma, "marks").is_empty(),
        "{report:#}"
    );
    let exchange = list(&report, kyma, "exchange");
    let deleted = exchange.iter().filter(|(_, write)| write["operations"] == json!(["delete"])).count();
    ensure!(deleted == WATCHER, "{report:#}");
    let made: Vec<_> =
        exchange.iter().filter(|(_, write)| write["operations"] == json!(["create"])).collect();
    ensure!(
        made.iter().any(|(object, _)| object.ends_with("kyma-system/tidewatch-agent-config")),
        "{report:#}"
    );
    for (object, fields) in [
        (format!("Kyma {kyma}"), json!(["status.conditions[SKRWebhook]"])),
        (
            format!("Kyma.{GROUP} kyma-system/default"),
            // Its conditions refer to KCP's generation.
            json!([
                "status.conditions[CRDsSync].observedGeneration",
                "status.conditions[Modules].observedGeneration",
                "status.conditions[SKRWebhook]"
            ]),
        ),
    ] {
        ensure!(
            exchange.iter().any(|(o, write)| *o == object && write["fields"] == fields),
            "{object}: {report:#}"
        );
    }
    ensure!(report["runtimes"][kyma]["extensions"] == json!([]), "{report:#}");
    ensure!(
        rig.versions().await? == before && rig.kyma_versions().await? == kymas_before,
        "a dry run has written"
    );
    ensure!(leases.get(gomanager::LEASE).await?.resource_version() == lease, "a dry run has taken the Lease");
    ensure!(watcher_in(&go.runtime).await?.len() == WATCHER, "a dry run has deleted");
    ensure!(!printed.contains("panicked"), "{printed}");

    // Starts after the Go manager's Lease ends. The watcher stays until an agent's path is proven.
    let always = ["CRDsSync", "Modules", "ModuleCatalog"];
    let seen = [
        Seen::of(dynamic(&go.kcp, "Kyma", go.namespace), kyma, &["CRDsSync", "Modules", "ModuleCatalog"]),
        Seen::of(dynamic(&go.kcp, "Manifest", go.namespace), &go.manifest(), &["Installation", "ModuleCR"]),
        Seen::of(
            dynamic(&go.runtime, "Kyma", RUNTIME_NAMESPACE),
            "default",
            &["CRDsSync", "Modules", "ModuleCatalog"],
        ),
    ];
    let mut receiver = rig.watched_receiver().await?;
    rig.looked(&receiver).await?;
    ensure!(
        rig.versions().await? == before,
        "something was written: {before:#?} {:#?}",
        rig.versions().await?
    );
    ensure!(
        watcher_in(&go.runtime).await?.len() == WATCHER,
        "the watcher went before the agent's way was proven"
    );

    let agent = rig.agent(&receiver).await?;
    wait::until("the Go manager's watcher to be gone", SOON, || async {
        let left = watcher_in(&go.runtime).await?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(Some(()))
    })
    .await?;
    fleet::settled(&receiver).await?;
    ensure!(
        rig.versions().await? == before,
        "something was written: {before:#?} {:#?}",
        rig.versions().await?
    );

    // Each status field has one owner; the watcher's status is removed.
    let remote = live(&go.runtime, &kyma_in_runtime()).await?;
    let central = live(&go.kcp, &json!({"apiVersion": API_VERSION, "kind": "Kyma", "metadata": {"name": kyma, "namespace": go.namespace}})).await?;
    for object in [&remote, &central] {
        let shared = shared_fields(object, of_status);
        ensure!(shared.is_empty(), "several own {shared:?}");
        ensure!(
            !has(&object.data, "SKRWebhook") && always.iter().all(|c| has(&object.data, c)),
            "{}",
            object.data
        );
    }
    let entries = serde_json::to_value(&remote.metadata.managed_fields)?;
    let updates = |entry: &&Value| of_status(entry) && entry["operation"] == "Update";
    ensure!(entries.as_array().into_iter().flatten().find(updates).is_none(), "{entries:#}");

    // A second reconcile neither writes nor looks for the watcher.
    let stands = rig.kyma_versions().await?;
    receiver.restart().await?;
    rig.looked(&receiver).await?;
    agent
        .process
        .ready("to be proven again", PROVEN, || async {
            let page = receiver.runtime(kyma).await?;
            Ok((page["eventPath"] == "proven").then_some(()))
        })
        .await?;
    fleet::settled(&receiver).await?;
    ensure!(
        rig.kyma_versions().await? == stands && rig.versions().await? == before,
        "a second look has written"
    );
    seen.into_iter().try_for_each(Seen::nothing)?;
    observed::no_panic(&receiver.process)?;

    // Way back: the Lease is free and the Go manager's status is restored.
    drop(agent);
    receiver.process.begin_end();
    wait::until("the receiver to end", SOON, || async { Ok(receiver.process.ended()) }).await?;
    let lease = leases.get(gomanager::LEASE).await?.spec.context("no spec")?;
    ensure!(lease.holder_identity.unwrap_or_default().is_empty(), "the Lease is still held");
    let (now_kyma, now_manifest) = (rig.kymas().get(kyma).await?, rig.manifest().await?);
    ensure!(now_kyma.finalizers() == [finalizers::KYMA] && now_kyma.labels() == first.0.labels());
    ensure!(now_kyma.spec == first.0.spec && now_kyma.annotations() == first.0.annotations());
    ensure!(now_kyma.metadata.generation == first.0.metadata.generation);
    ensure!(now_manifest.metadata == first.1.metadata && now_manifest.spec == first.1.spec);
    ensure!(now_manifest.status == first.1.status && now_manifest.finalizers().len() == 3);
    // The Go manager continues and restores its watcher without conflicts.
    rig.go_manager_works().await?;
    ensure!(watcher_in(&go.runtime).await?.len() == WATCHER);
    let back = rig.kymas().get(kyma).await?;
    ensure!(
        back.status.context("no status")?.state == State::Ready
            && has(&live(&go.runtime, &kyma_in_runtime()).await?.data, "SKRWebhook")
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_lists_changes_and_used_extensions() -> Result<()> {
    let rig = Rig::start("kcp-dryrun", "leeboard", "lee").await?;
    let (go, kyma) = (&rig.go, rig.go.kyma);
    // Edits installed objects, including a Secret.
    let params = PatchParams { field_manager: Some("editor".into()), ..PatchParams::default() };
    for (kind, name, edit) in [
        ("ConfigMap", "settings", json!({"data": {"level": "trace"}})),
        ("Secret", "pass", json!({"data": {"word": "aHVzaA=="}})),
    ] {
        let gvk = kube::core::GroupVersionKind::gvk("", "v1", kind);
        let resource = kube::discovery::ApiResource::from_gvk(&gvk);
        let api: Api<DynamicObject> = Api::namespaced_with(go.runtime.clone(), "lee", &resource);
        api.patch(name, &params, &Patch::Merge(edit)).await?;
    }
    let (versions, kymas) = (rig.versions().await?, rig.kyma_versions().await?);
    let (code, report, printed) = rig.dry_run().await?;
    ensure!(code == Some(3) && report["verdict"] == "changes", "{code:?} {report:#}");
    let changes = list(&report, kyma, "changes");
    let fields =
        |object: &str| changes.iter().find(|(o, _)| *o == object).map(|(_, write)| write["fields"].clone());
    ensure!(fields("ConfigMap lee/settings") == Some(json!(["data.level"])), "{report:#}");
    ensure!(fields("Secret lee/pass") == Some(json!(["data"])), "{report:#}");
    ensure!(changes.len() == 2, "{report:#}");
    ensure!(!printed.contains("aHVzaA") && !printed.contains("hush"), "the data of a Secret is printed");
    ensure!(
        rig.versions().await? == versions && rig.kyma_versions().await? == kymas,
        "a dry run has written"
    );

    // A wrong registry or an empty namespace must not look healthy.
    let (harness, kcp) = (&rig.env.harness, &rig.env.kcp);
    let (code, report, _) = fleet::dry_run(harness, kcp, go.namespace, "127.0.0.1:1/none", &[]).await?;
    let failures = report["runtimes"][kyma]["failures"].to_string();
    ensure!(code == Some(4) && failures.contains("cannot be read"), "{code:?} {report:#}");
    fleet::prepare_kcp(&go.kcp, "kcp-nobodys").await?;
    let (code, report, _) = fleet::dry_run(harness, kcp, "kcp-nobodys", &go.registry, &[]).await?;
    ensure!(
        code == Some(4) && report.to_string().contains("there is no Kyma in the namespace kcp-nobodys"),
        "{code:?} {report:#}"
    );

    // A fixed version has no equivalent on the way back. Reports unreachable runtimes.
    let api = dynamic(&go.runtime, "Kyma", RUNTIME_NAMESPACE);
    let pinned = json!({"spec": {"modules": [{"name": "lee", "version": "1.0.0"}]}});
    api.patch("default", &params, &Patch::Merge(pinned)).await?;
    tidewatch_tests::kcp::put_kyma(&go.kcp, go.namespace, "wreck", "wreck", None).await?;
    let (code, report, _) = rig.dry_run().await?;
    ensure!(code == Some(4) && report["verdict"] == "incomplete", "{code:?} {report:#}");
    ensure!(
        report["runtimes"][kyma]["extensions"] == json!(["module lee: spec.modules[].version 1.0.0"]),
        "{report:#}"
    );
    let failures = report["runtimes"]["wreck"]["failures"].to_string();
    ensure!(failures.contains("there is no kubeconfig Secret"), "{report:#}");
    ensure!(report["runtimes"][kyma]["failures"] == json!([]), "{report:#}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_proceeds_by_label_and_spares_foreign_objects() -> Result<()> {
    let rig = Rig::start("kcp-stepped", "capstan", "cap").await?;
    let (go, kyma) = (&rig.go, rig.go.kyma);
    let skip =
        |value: Value| Patch::Merge(json!({"metadata": {"labels": {labels::SKIP_RECONCILIATION: value}}}));
    let params = PatchParams::default();
    rig.kymas().patch(kyma, &params, &skip("true".into())).await?;
    rig.manifests().patch(&go.manifest(), &params, &skip("true".into())).await?;
    // One watcher object has another owner.
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "skr-webhook-metrics", "namespace": RUNTIME_NAMESPACE}});
    let theirs = json!({"metadata": {"labels": {labels::MANAGED_BY: "somebody"}}});
    let services =
        Api::<k8s_openapi::api::core::v1::Service>::namespaced(go.runtime.clone(), RUNTIME_NAMESPACE);
    services.patch("skr-webhook-metrics", &params, &Patch::Merge(theirs)).await?;
    let uid = live(&go.runtime, &service).await?.uid();

    let (before, kymas) = (rig.versions().await?, rig.kyma_versions().await?);
    let receiver = rig.watched_receiver().await?;
    wait::until("a look at the Kyma", SOON, || async {
        let page = receiver.runtime(kyma).await?;
        let all = page["reconciles"].as_array().cloned().unwrap_or_default();
        Ok(all.iter().any(|record| record["key"] == format!("Kyma/{kyma}")).then_some(()))
    })
    .await?;
    fleet::settled(&receiver).await?;
    ensure!(
        rig.versions().await? == before && rig.kyma_versions().await? == kymas,
        "what is skipped was written"
    );

    // Its update is due.
    rig.manifests().patch(&go.manifest(), &params, &skip(Value::Null)).await?;
    rig.kymas().patch(kyma, &params, &skip(Value::Null)).await?;
    let agent = rig.agent(&receiver).await?;
    wait::until("the Go manager's watcher to be gone", SOON, || async {
        let left = watcher_in(&go.runtime).await?;
        ensure!(left == ["Service skr-webhook-metrics"], "{left:?}");
        Ok(Some(()))
    })
    .await?;
    ensure!(live(&go.runtime, &service).await?.uid() == uid, "somebody's Service was made anew");

    // Objects of the Go manager's second field manager are removed by a module change.
    let ignore = json!({"spec": {"modules": [{"name": "cap", "customResourcePolicy": "Ignore"}]}});
    dynamic(&go.runtime, "Kyma", RUNTIME_NAMESPACE).patch("default", &params, &Patch::Merge(ignore)).await?;
    wait::until("the Manifest to leave the default CR to its user", SOON, || async {
        let manifest = rig.manifest().await?;
        ensure!(manifest.spec.custom_resource_policy == CustomResourcePolicy::Ignore, "{:?}", manifest.spec);
        ensure!(manifest.spec.resource.is_some(), "the Go manager finds its kind there");
        Ok(Some(()))
    })
    .await?;
    fleet::kyma_in_state(&go.kcp, go.namespace, kyma, State::Ready).await?;
    let manifest = rig.manifest().await?;
    ensure!(
        manifest.annotations().contains_key(annotations::SYNC_OCI_REF) && manifest.finalizers().len() == 3
    );
    observed::no_panic(&receiver.process)?;
    drop(agent);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_equals_the_go_managers() -> Result<()> {
    let mut rig = Rig::start("kcp-wayback", "sternpost", "stern").await?;
    let mut receiver = rig.receiver().await?;
    rig.looked(&receiver).await?;
    rig.go.module = gomanager::module("stern", "1.1.0");
    rig.go.module.offer(&rig.go.kcp, rig.go.namespace, &rig.go.registry).await?;
    let member = Member { cluster: rig.cluster, kyma: rig.go.kyma, id: rig.go.kyma };
    wait::until("the upgrade to be Ready", SOON, || async {
        let kyma = rig.kymas().get(rig.go.kyma).await?;
        let is_done = |m: &ModuleStatus| m.version == "1.1.0" && m.state == State::Ready;
        if kyma.module_status("stern").is_some_and(is_done) {
            return Ok(Some(()));
        }
        receiver.tell(&rig.env.harness, &member, ("apps", "v1", "Deployment"), "stern", "stern").await?;
        Ok(None)
    })
    .await?;
    fleet::settled(&receiver).await?;
    observed::no_panic(&receiver.process)?;
    receiver.process.begin_end();
    wait::until("the receiver to end", SOON, || async { Ok(receiver.process.ended()) }).await?;

    // The Go manager's writes change neither values nor owners.
    let (before, ours) = (rig.contents().await?, rig.manifest().await?);
    rig.go_manager_works().await?;
    let (after, theirs) = (rig.contents().await?, rig.manifest().await?);
    for (name, ours) in &before {
        ensure!(after.get(name) == Some(ours), "{name}: {ours:#} {:#}", after[name]);
    }
    ensure!(ours.spec == theirs.spec, "{:#?} {:#?}", ours.spec, theirs.spec);
    let marks = |m: &Manifest| {
        let mut notes = m.annotations().clone();
        // An outdated annotation causes one more apply. The Go manager removes Tidewatch's annotations.
        for note in [annotations::SYNC_OCI_REF, annotations::RUNNING_VERSION, annotations::TEMPLATE_UID] {
            notes.remove(note);
        }
        (m.labels().clone(), notes, m.finalizers().to_vec())
    };
    ensure!(marks(&ours) == marks(&theirs), "{:#?} {:#?}", marks(&ours), marks(&theirs));
    ensure!(ours.owner_references() == theirs.owner_references());
    let synced = |m: &Manifest| {
        let all = m.status.iter().flat_map(|status| status.synced.iter());
        all.map(|o| format!("{} {} {} {} {}", o.group, o.version, o.kind, o.namespace, o.name))
            .collect::<BTreeSet<_>>()
    };
    ensure!(synced(&ours) == synced(&theirs), "{:#?} {:#?}", synced(&ours), synced(&theirs));
    Ok(())
}
