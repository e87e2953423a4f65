//! Deletion of modules and Kymas: completeness, order and interruptions.

mod certificate;
mod crash;
mod shared_kinds;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Event, Secret};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, Manifest, State, Watcher,
    names::{API_VERSION, GROUP, RUNTIME_KYMA_NAME, RUNTIME_NAMESPACE, VERSION, annotations, labels},
};
use tidewatch_tests::{
    env,
    env::Environment,
    fleet::{self, Agent, Member, Receiver},
    modules::Version,
    observed, ports,
    runtime_pool::{self, Alone},
    spare,
    story::set_modules,
    wait,
};

const SOON: Duration = Duration::from_mins(1);
const MANAGER: &str = "tidewatch-tests";

/// A receiver in its own namespace with a Kyma of that name.
struct World {
    env: &'static Environment,
    kcp: Client,
    receiver: Receiver,
    namespace: &'static str,
    // Last field: the receiver ends before another test gets the runtime.
    alone: Alone,
}

impl World {
    async fn start(namespace: &'static str) -> Result<Self> {
        let env = env::shared().await?;
        let alone = runtime_pool::alone().await?;
        spare::take_over(alone.cluster).await?;
        let kcp = env.kcp.client()?;
        fleet::prepare_kcp(&kcp, namespace).await?;
        let receiver =
            Receiver::start(&env.harness, &env.kcp, namespace, &env.registry.of(namespace)).await?;
        let world = Self { env, kcp, receiver, namespace, alone };
        fleet::register(&world.kcp, namespace, &world.member()).await?;
        fleet::kyma_in_state(&world.kcp, namespace, namespace, State::Ready).await?;
        Ok(world)
    }

    fn member(&self) -> Member<'_> {
        Member { cluster: self.alone.cluster, kyma: self.namespace, id: self.namespace }
    }

    fn runtime(&self) -> Result<Client> {
        self.alone.cluster.client()
    }

    fn kymas(&self) -> Api<Kyma> {
        Api::namespaced(self.kcp.clone(), self.namespace)
    }

    fn manifests(&self) -> Api<Manifest> {
        Api::namespaced(self.kcp.clone(), self.namespace)
    }

    /// A module with a CRD `Beacon`, a user's CR, a keeper and a default CR.
    async fn offer(&self, version: &str) -> Result<()> {
        let mut offered = Version::new("beacons", version, keeper(self.namespace, version));
        offered.template = json!({
            "data": beacon(self.namespace, RUNTIME_NAMESPACE, "default"),
            "associatedResources": [{"group": group(self.namespace), "version": "v1", "kind": "Beacon"}],
        });
        offered.offer(&self.kcp, self.namespace, &self.env.registry.of(self.namespace)).await
    }

    /// Edits the runtime's Kyma and reports the change.
    async fn enable(&self, modules: &[&str]) -> Result<()> {
        let list: Vec<Value> = modules.iter().map(|name| json!({"name": name})).collect();
        set_modules(&self.runtime()?, &json!(list)).await?;
        self.tell().await
    }

    async fn tell(&self) -> Result<()> {
        self.tell_of((GROUP, VERSION, "Kyma"), RUNTIME_KYMA_NAME).await
    }

    async fn tell_of(&self, gvk: (&str, &str, &str), name: &str) -> Result<()> {
        self.receiver.tell(&self.env.harness, &self.member(), gvk, RUNTIME_NAMESPACE, name).await
    }

    /// Reports the keeper's changes like an agent.
    async fn ready(&self, module: &str) -> Result<()> {
        wait::until(&format!("module {module} of Kyma {} to be Ready", self.namespace), SOON, || async {
            let kyma = self.kymas().get(self.namespace).await?;
            if kyma.module_status(module).is_some_and(|m| m.state == State::Ready) {
                return Ok(Some(()));
            }
            self.tell_of(("apps", "v1", "Deployment"), "beacon-keeper").await?;
            Ok(None)
        })
        .await
    }

    async fn installed(namespace: &'static str) -> Result<Self> {
        let world = Self::start(namespace).await?;
        world.offer("1.0.0").await?;
        world.enable(&["beacons"]).await?;
        world.ready("beacons").await?;
        Ok(world)
    }

    async fn manifest(&self, module: &str) -> Result<Option<Manifest>> {
        let list = ListParams::default().labels(&format!("{}={module}", labels::MODULE_NAME));
        Ok(self.manifests().list(&list).await?.items.into_iter().next())
    }

    async fn blocked(&self, module: &str, says: &[&str]) -> Result<Manifest> {
        let what = format!("the Manifest of {module} to be Deleting and to say {says:?}");
        wait::until(&what, SOON, || async {
            let manifest = self.manifest(module).await?.context("there is no such Manifest")?;
            let status = manifest.status.as_ref().context("it has no status")?;
            let text = operation(&manifest);
            let all = says.iter().all(|part| text.contains(part));
            ensure!(status.state == State::Deleting && all, "it says {:?} {text}", status.state);
            Ok(Some(manifest))
        })
        .await
    }

    async fn gone(&self, module: &str) -> Result<()> {
        wait::until(&format!("the Manifest of {module} to be gone"), SOON, || async {
            let Some(manifest) = self.manifest(module).await? else { return Ok(Some(())) };
            anyhow::bail!("it says: {}", operation(&manifest))
        })
        .await
    }

    async fn kyma_gone(&self) -> Result<()> {
        wait::until("the Kyma to be gone", SOON, || async {
            let Some(kyma) = self.kymas().get_opt(self.namespace).await? else { return Ok(Some(())) };
            anyhow::bail!("its status: {:#?}", kyma.status)
        })
        .await
    }

    async fn told(&self, reason: &str) -> Result<Vec<String>> {
        let events: Api<Event> = Api::namespaced(self.kcp.clone(), self.namespace);
        let all = events.list(&ListParams::default()).await?.items;
        let of = |event: Event| {
            let message = event.message.unwrap_or_default();
            let kind = event.involved_object.kind.unwrap_or_default();
            format!("{} {kind}: {message}", event.type_.unwrap_or_default())
        };
        Ok(all.into_iter().filter(|e| e.reason.as_deref() == Some(reason)).map(of).collect())
    }
}

fn operation(manifest: &Manifest) -> &str {
    let operation = manifest.status.as_ref().and_then(|s| s.last_operation.as_ref());
    operation.map_or("", |op| op.operation.as_str())
}

/// A group per test, because tests share a runtime.
fn group(namespace: &str) -> String {
    format!("{namespace}.tidewatch.dev")
}

fn beacon(of: &str, namespace: &str, name: &str) -> Value {
    json!({"apiVersion": format!("{}/v1", group(of)), "kind": "Beacon",
           "metadata": {"name": name, "namespace": namespace}, "spec": {}})
}

/// The objects of `beacons`, with zero replicas because there is no kubelet.
fn keeper(of: &str, version: &str) -> Vec<Value> {
    let labels = json!({"app": "beacon-keeper"});
    vec![
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": crd_name(of)},
            "spec": {"group": group(of), "scope": "Namespaced", "names": {"kind": "Beacon", "plural": "beacons"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
                    {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}),
        json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "beacon-keeper", "namespace": RUNTIME_NAMESPACE},
            "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
                "spec": {"containers": [{"name": "keeper", "image": format!("example.local/keeper:{version}")}]}}}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "beacon-keeper", "namespace": RUNTIME_NAMESPACE},
            "data": {"version": version}}),
    ]
}

fn crd_name(of: &str) -> String {
    format!("beacons.{}", group(of))
}

fn dynamic(
    client: &Client,
    api_version: &str,
    kind: &str,
    plural: &str,
    namespace: Option<&str>,
) -> Api<DynamicObject> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let gvk = GroupVersionKind::gvk(group, version, kind);
    let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

fn beacons(client: &Client, of: &str, namespace: &str) -> Api<DynamicObject> {
    dynamic(client, &format!("{}/v1", group(of)), "Beacon", "beacons", Some(namespace))
}

fn crds(client: &Client) -> Api<DynamicObject> {
    dynamic(client, "apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", None)
}

fn deployments(client: &Client) -> Api<DynamicObject> {
    dynamic(client, "apps/v1", "Deployment", "deployments", Some(RUNTIME_NAMESPACE))
}

fn config_maps(client: &Client) -> Api<DynamicObject> {
    dynamic(client, "v1", "ConfigMap", "configmaps", Some(RUNTIME_NAMESPACE))
}

async fn put(api: &Api<DynamicObject>, object: &Value) -> Result<()> {
    let name = object["metadata"]["name"].as_str().context("no name")?;
    api.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(object)).await?;
    Ok(())
}

async fn set_finalizers(api: &Api<DynamicObject>, name: &str, finalizers: &[&str]) -> Result<()> {
    let body = json!({"metadata": {"finalizers": finalizers}});
    api.patch(name, &PatchParams::default(), &Patch::Merge(body)).await?;
    Ok(())
}

async fn watch_beacons(world: &World) -> Result<()> {
    let api: Api<Watcher> = Api::namespaced(world.kcp.clone(), world.namespace);
    let body = json!({
        "apiVersion": API_VERSION, "kind": "Watcher", "metadata": {"name": "beacons"},
        "spec": {"manager": "lifecycle-manager", "field": "spec", "labelsToWatch": {},
                 "serviceInfo": {"name": "klm", "namespace": "kcp-system", "port": 8082},
                 "gateway": {"selector": {"matchLabels": {"a": "b"}}},
                 "resourceToWatch": {"group": group(world.namespace), "version": "v1", "resource": "beacons"}}
    });
    api.patch("beacons", &PatchParams::apply(MANAGER).force(), &Patch::Apply(body)).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_module_waits_for_and_lists_its_users_objects() -> Result<()> {
    let world = World::installed("kcp-blocked").await?;
    watch_beacons(&world).await?;
    let agent = Agent::start(&world.env.harness, &world.receiver, &world.member()).await?;
    let runtime = world.runtime()?;
    let users = beacons(&runtime, world.namespace, "default");
    for n in 10..33 {
        put(&users, &beacon(world.namespace, "default", &format!("users-{n}"))).await?;
    }
    agent.connected().await?;
    world.enable(&[]).await?;

    let says =
        ["waiting for module crs deletion: Beacon default/users-10, ", "Beacon default/users-29, … (23)"];
    let manifest = world.blocked("beacons", &says).await?;
    ensure!(operation(&manifest).matches("Beacon ").count() == 20, "{}", operation(&manifest));
    fleet::kyma_where(world.kymas(), world.namespace, "the Kyma to repeat it", |k| {
        k.module_status("beacons").is_some_and(|m| m.state == State::Deleting && m.message.contains(says[1]))
    })
    .await?;
    let shown: Api<Kyma> = Api::namespaced(runtime.clone(), RUNTIME_NAMESPACE);
    fleet::kyma_where(shown, RUNTIME_KYMA_NAME, "the user to see it", |k| {
        k.module_status("beacons").is_some_and(|m| m.message.contains(says[1]))
    })
    .await?;

    // A blocked module keeps working: its objects are still restored.
    ensure!(
        beacons(&runtime, world.namespace, RUNTIME_NAMESPACE).get_opt("default").await?.is_some(),
        "no default CR"
    );
    let before = deployments(&runtime).get("beacon-keeper").await?.uid();
    deployments(&runtime).delete("beacon-keeper", &DeleteParams::background()).await?;
    wait::until("the keeper to be restored", SOON, || async {
        Ok(deployments(&runtime).get_opt("beacon-keeper").await?.filter(|d| d.uid() != before))
    })
    .await?;

    for n in 11..33 {
        users.delete(&format!("users-{n}"), &DeleteParams::default()).await?;
    }
    world.blocked("beacons", &["waiting for module crs deletion: Beacon default/users-10 (1)"]).await?;
    users.delete("users-10", &DeleteParams::default()).await?;
    world.gone("beacons").await?;
    ensure!(crds(&runtime).get_opt(&crd_name(world.namespace)).await?.is_none(), "the CRD is left");
    ensure!(deployments(&runtime).get_opt("beacon-keeper").await?.is_none(), "the keeper is left");
    ensure!(config_maps(&runtime).get_opt("beacon-keeper").await?.is_none(), "the ConfigMap is left");
    // Each Beacon's deletion was reported for this Manifest.
    let page = world.receiver.runtime(world.namespace).await?.to_string();
    ensure!(page.contains("Beacon"), "no reconcile was caused by a Beacon: {page}");
    observed::no_panic(&world.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_module_can_still_be_upgraded() -> Result<()> {
    let world = World::installed("kcp-upgraded").await?;
    let runtime = world.runtime()?;
    let users = beacons(&runtime, world.namespace, "default");
    put(&users, &beacon(world.namespace, "default", "users")).await?;
    world.enable(&[]).await?;
    let old = world.blocked("beacons", &["Beacon default/users (1)"]).await?;

    // Re-enabled in another version, the module completes its removal first.
    world.offer("1.1.0").await?;
    world.enable(&["beacons"]).await?;
    wait::until("the keeper of version 1.1.0", SOON, || async {
        let keeper = deployments(&runtime).get_opt("beacon-keeper").await?;
        let new = keeper.is_some_and(|k| k.data.to_string().contains("example.local/keeper:1.1.0"));
        Ok(new.then_some(()))
    })
    .await?;
    let now = world.blocked("beacons", &["Beacon default/users (1)"]).await?;
    ensure!(now.uid() == old.uid() && now.spec.version == "1.1.0", "{now:#?}");

    // Then it is installed again.
    users.delete("users", &DeleteParams::default()).await?;
    wait::until("a new Manifest", SOON, || async {
        Ok(world.manifest("beacons").await?.filter(|m| m.uid() != old.uid()))
    })
    .await?;
    world.ready("beacons").await?;
    world.enable(&[]).await?;
    world.gone("beacons").await?;
    observed::no_panic(&world.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_not_owned_by_the_module_stay() -> Result<()> {
    let world = World::start("kcp-owners").await?;
    let runtime = world.runtime()?;
    let map = |name: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": RUNTIME_NAMESPACE},
               "data": {"a": "b"}})
    };
    for module in ["quay", "pier"] {
        let objects =
            vec![map("shared-by-both"), map(&format!("{module}-own")), map(&format!("{module}-taken"))];
        Version::new(module, "1.0.0", objects)
            .offer(&world.kcp, world.namespace, &world.env.registry.of(world.namespace))
            .await?;
    }
    world.enable(&["quay", "pier"]).await?;
    world.ready("quay").await?;
    world.ready("pier").await?;
    // A user has claimed an object.
    let maps = config_maps(&runtime);
    let theirs = json!({"metadata": {"labels": {labels::MANAGED_BY: "helm"}, "annotations": {annotations::OWNED_BY: null}}});
    maps.patch("quay-taken", &PatchParams::default(), &Patch::Merge(theirs)).await?;

    world.enable(&["pier"]).await?;
    world.gone("quay").await?;
    for (name, there) in
        [("quay-own", false), ("quay-taken", true), ("shared-by-both", true), ("pier-own", true)]
    {
        ensure!(maps.get_opt(name).await?.is_some() == there, "{name} should be there: {there}");
    }
    let kept = maps.get("shared-by-both").await?.uid();
    world.enable(&["pier", "quay"]).await?;
    world.ready("quay").await?;
    ensure!(maps.get("shared-by-both").await?.uid() == kept, "it was made anew");
    // Removed together, the last module also removes the shared object.
    world.enable(&[]).await?;
    world.gone("quay").await?;
    world.gone("pier").await?;
    for name in ["quay-own", "pier-own", "shared-by-both", "pier-taken"] {
        ensure!(maps.get_opt(name).await?.is_none(), "{name} is left");
    }
    observed::no_panic(&world.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forced_deletion_is_done_and_reported() -> Result<()> {
    let world = World::installed("kcp-forced").await?;
    let runtime = world.runtime()?;
    let users = beacons(&runtime, world.namespace, "default");
    put(&users, &beacon(world.namespace, "default", "users")).await?;
    // The annotation has no effect before a deletion.
    let force =
        |why: &str| Patch::Merge(json!({"metadata": {"annotations": {annotations::FORCE_DELETE: why}}}));
    let operator = PatchParams { field_manager: Some("an-operator".into()), ..PatchParams::default() };
    world.enable(&[]).await?;
    let manifest = world.blocked("beacons", &["Beacon default/users (1)"]).await?;
    world.manifests().patch(&manifest.name_any(), &operator, &force("the customer has left")).await?;
    world.gone("beacons").await?;
    let told = world.told("DeletionForced").await?;
    let says =
        ["an-operator at ", "(the customer has left)", "Beacon.kcp-forced.tidewatch.dev default/users"];
    let all = |line: &&String| says.iter().all(|part| line.contains(part));
    ensure!(told.iter().filter(all).count() == 2, "on the Manifest and on the Kyma: {told:#?}");
    ensure!(deployments(&runtime).get_opt("beacon-keeper").await?.is_none(), "the keeper is left");
    // Users' data is never deleted.
    ensure!(users.get_opt("users").await?.is_some(), "the user's Beacon is gone");
    crds(&runtime).delete(&crd_name(world.namespace), &DeleteParams::default()).await?;

    // An unreachable runtime: only the state is known until an operator forces it.
    world.offer("1.0.0").await?;
    world.enable(&["beacons"]).await?;
    world.ready("beacons").await?;
    let (url, nobody) = (world.alone.cluster.url(), format!("https://127.0.0.1:{}", ports::free()?));
    let dead = world.alone.cluster.kubeconfig_yaml(tidewatch_tests::cluster::ADMIN)?.replace(url, &nobody);
    fleet::put_kubeconfig(&world.kcp, world.namespace, world.namespace, &dead).await?;
    world.kymas().delete(world.namespace, &DeleteParams::default()).await?;
    let unreachable = "cannot be reached";
    fleet::kyma_where(world.kymas(), world.namespace, "the Kyma to be Deleting and say why", |k| {
        let status = k.status.as_ref();
        let text = status.and_then(|s| s.last_operation.as_ref()).map_or("", |op| op.operation.as_str());
        status.is_some_and(|s| s.state == State::Deleting) && text.contains(unreachable)
    })
    .await?;
    let manifest = world.manifest("beacons").await?.context("the Manifest is gone")?;
    ensure!(
        manifest.metadata.deletion_timestamp.is_none() || operation(&manifest).contains(unreachable),
        "{manifest:#?}"
    );
    world.kymas().patch(world.namespace, &operator, &force("no such cluster")).await?;
    world.kyma_gone().await?;
    let told = world.told("DeletionForced").await?;
    let of_kyma = |line: &&String| {
        line.contains("Warning Kyma: the deletion of Kyma kcp-forced was forced by an-operator")
    };
    ensure!(told.iter().any(|line| of_kyma(&line)), "{told:#?}");
    // The runtime stays untouched.
    ensure!(deployments(&runtime).get_opt("beacon-keeper").await?.is_some(), "who has deleted the keeper?");
    clean(&runtime, world.namespace).await?;
    observed::no_panic(&world.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forced_deletion_needs_no_valid_credentials() -> Result<()> {
    let world = World::installed("kcp-revoked").await?;
    let runtime = world.runtime()?;
    let good = world.alone.cluster.kubeconfig_yaml(tidewatch_tests::cluster::ADMIN)?;
    let revoked: Vec<String> = good
        .lines()
        .map(|line| match line.split_once("token: ") {
            Some((before, _)) => format!("{before}token: revoked"),
            None => line.to_owned(),
        })
        .collect();
    ensure!(revoked.iter().any(|line| line.ends_with("revoked")), "there is no token");
    fleet::put_kubeconfig(&world.kcp, world.namespace, world.namespace, &revoked.join("\n")).await?;
    world.kymas().delete(world.namespace, &DeleteParams::default()).await?;
    fleet::kyma_where(world.kymas(), world.namespace, "the Kyma to say why it cannot go on", |k| {
        let operation = k.status.as_ref().and_then(|status| status.last_operation.as_ref());
        operation.is_some_and(|op| op.operation.contains("does not accept the credentials"))
    })
    .await?;
    let force =
        json!({"metadata": {"annotations": {annotations::FORCE_DELETE: "the cluster is another team's"}}});
    world.kymas().patch(world.namespace, &PatchParams::default(), &Patch::Merge(force)).await?;
    world.kyma_gone().await?;
    let told = world.told("DeletionForced").await?;
    ensure!(told.iter().any(|line| line.contains("does not accept the credentials")), "{told:#?}");
    ensure!(deployments(&runtime).get_opt("beacon-keeper").await?.is_some(), "who has deleted the keeper?");
    clean(&runtime, world.namespace).await?;
    observed::no_panic(&world.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_runtime_does_not_block_deletion() -> Result<()> {
    let world = World::installed("kcp-vanished").await?;
    let runtime = world.runtime()?;
    let secrets: Api<Secret> = Api::namespaced(world.kcp.clone(), world.namespace);
    // Users' objects delay the Kyma's deletion.
    put(&beacons(&runtime, world.namespace, "default"), &beacon(world.namespace, "default", "users")).await?;
    world.kymas().delete(world.namespace, &DeleteParams::default()).await?;
    world.blocked("beacons", &["Beacon default/users (1)"]).await?;
    let what = "the Kyma to say what it waits for";
    fleet::kyma_where(world.kymas(), world.namespace, what, |k| {
        let status = k.status.clone().unwrap_or_default();
        let text = status.last_operation.map(|op| op.operation).unwrap_or_default();
        status.state == State::Deleting
            && text == "waiting for the modules to be removed: beacons"
            && k.module_status("beacons").is_some_and(|m| m.message.contains("Beacon default/users (1)"))
    })
    .await?;
    // The cluster and its Secret are gone.
    let began = tokio::time::Instant::now();
    secrets.delete(&format!("kubeconfig-{}", world.namespace), &DeleteParams::default()).await?;
    world.kyma_gone().await?;
    ensure!(began.elapsed() >= Duration::from_secs(10), "one look is not enough");
    ensure!(world.manifest("beacons").await?.is_none(), "a Manifest is left");
    ensure!(deployments(&runtime).get_opt("beacon-keeper").await?.is_some(), "who has deleted the keeper?");
    clean(&runtime, world.namespace).await?;
    observed::no_panic(&world.receiver.process)
}

async fn clean(runtime: &Client, of: &str) -> Result<()> {
    let params = DeleteParams::background();
    let _gone = crds(runtime).delete(&crd_name(of), &params).await;
    let _gone = deployments(runtime).delete("beacon-keeper", &params).await;
    let _gone = config_maps(runtime).delete("beacon-keeper", &params).await;
    Ok(())
}
