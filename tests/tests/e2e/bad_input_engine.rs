//! Unreachable runtimes and invalid modules: the Kyma shows reason and retry time, and everything else
//! continues.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::{
    api::core::v1::ConfigMap,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::{
        CustomResourceDefinition, CustomResourceDefinitionSpec, JSONSchemaProps,
    },
};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, Manifest, ModuleStatus, State,
    names::{GROUP, RUNTIME_KYMA_NAME, RUNTIME_NAMESPACE, VERSION},
};
use tidewatch_oci::{Digest, ModulePackage, Registry, RegistryConfig, push};
use tidewatch_tests::{
    ControlPlane,
    cluster::ADMIN,
    env::{self, Environment},
    fleet::{self, Member, Receiver},
    http, kcp, observed,
    oci_faults::{DamagingRegistry, pack_with_fault, push_packed},
    ports,
    spare::{self, Spare},
    story::set_modules,
    wait,
};
use tokio::sync::MutexGuard;

const SOON: Duration = Duration::from_mins(1);
/// A healthy Kyma on runtime 3.
const PIER: (&str, &str) = ("pier", "runtime-pier");

/// A receiver in its own namespace with a healthy Kyma.
struct World {
    env: &'static Environment,
    spare: &'static Spare,
    kcp: Client,
    registry: DamagingRegistry,
    receiver: Receiver,
    namespace: &'static str,
    // Last field: the receiver ends before another test gets the runtimes.
    _alone: MutexGuard<'static, ()>,
}

impl World {
    async fn start(namespace: &'static str) -> Result<Self> {
        let env = env::shared().await?;
        let spare = spare::shared().await?;
        let alone = spare.register_alone().await;
        for cluster in [&spare.runtime3, &spare.runtime4] {
            spare::take_over(cluster).await?;
        }
        let kcp = env.kcp.client()?;
        fleet::prepare_kcp(&kcp, namespace).await?;
        let registry = DamagingRegistry::start(env.registry.host()).await?;
        let modules = format!("{}/{namespace}", registry.host());
        let receiver =
            Receiver::start_without_agents(&env.harness, &env.kcp, namespace, &modules, Vec::new()).await?;
        let world = Self { env, spare, kcp, registry, receiver, namespace, _alone: alone };
        fleet::register(&world.kcp, namespace, &world.pier()).await?;
        fleet::kyma_in_state(&world.kcp, namespace, PIER.0, State::Ready).await?;
        Ok(world)
    }

    fn pier(&self) -> Member<'_> {
        Member { cluster: &self.spare.runtime3, kyma: PIER.0, id: PIER.1 }
    }

    fn kymas(&self) -> Api<Kyma> {
        Api::namespaced(self.kcp.clone(), self.namespace)
    }

    /// Pushes a version with one ConfigMap and applies its ModuleTemplate. Returns the layer's digest.
    async fn push(&self, module: &str, version: &str) -> Result<Digest> {
        let client = Registry::new(RegistryConfig::default())?;
        let pushed = push(&client, &self.env.registry.of(self.namespace), &package(module, version)).await?;
        kcp::put_template(&self.kcp, self.namespace, module, version).await?;
        Ok(pushed.raw_manifest_digest)
    }

    async fn release(&self, module: &str, channels: &[(&str, &str)]) -> Result<()> {
        kcp::put_release(&self.kcp, self.namespace, module, channels).await
    }

    /// Edits a runtime's Kyma and reports the change.
    async fn enable(&self, member: &Member<'_>, modules: &[&str]) -> Result<()> {
        let list: Vec<Value> = modules.iter().map(|name| json!({"name": name})).collect();
        set_modules(&member.cluster.client()?, &json!(list)).await?;
        self.tell(member).await
    }

    async fn tell(&self, member: &Member<'_>) -> Result<()> {
        let kyma = (GROUP, VERSION, "Kyma");
        self.receiver.tell(&self.env.harness, member, kyma, RUNTIME_NAMESPACE, RUNTIME_KYMA_NAME).await
    }

    /// The healthy Kyma gets a module and stays healthy.
    async fn pier_gets(&self, module: &str) -> Result<()> {
        self.enable(&self.pier(), &[module]).await?;
        self.module_ready(PIER.0, module).await?;
        installed(&self.spare.runtime3, module).await?;
        let pier = fleet::kyma_in_state(&self.kcp, self.namespace, PIER.0, State::Ready).await?;
        let status = pier.status.context("the Kyma has no status")?;
        ensure!(status.modules.len() == 1 && operation(&status) == "kyma is ready", "{status:#?}");
        Ok(())
    }

    async fn module_ready(&self, kyma: &str, module: &str) -> Result<()> {
        let what = format!("module {module} of Kyma {kyma} to be Ready");
        fleet::kyma_where(self.kymas(), kyma, &what, |k| {
            k.module_status(module).is_some_and(|m| m.state == State::Ready)
        })
        .await?;
        Ok(())
    }

    /// Failed reconciles of a Kyma from the admin page, newest last.
    async fn failures(&self, kyma: &str) -> Result<Vec<Value>> {
        let page = self.receiver.runtime(kyma).await?;
        let records = page["reconciles"].as_array().context("the page has no reconciles")?;
        Ok(records.iter().filter(|r| r["outcome"] == "failed").cloned().collect())
    }

    fn healthy(&self) -> Result<()> {
        fleet::alive(&self.receiver.process)?;
        observed::no_panic(&self.receiver.process)
    }
}

fn package(module: &str, version: &str) -> ModulePackage {
    ModulePackage {
        sources: Vec::new(),
        component_name: kcp::component(module),
        version: version.to_owned(),
        raw_manifest: format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {module}, namespace: {RUNTIME_NAMESPACE}}}\n\
             data: {{version: \"{version}\"}}\n"
        ),
        default_cr: None,
        images: Vec::new(),
    }
}

async fn installed(cluster: &ControlPlane, module: &str) -> Result<ConfigMap> {
    let api: Api<ConfigMap> = Api::namespaced(cluster.client()?, RUNTIME_NAMESPACE);
    api.get(module).await.with_context(|| format!("the ConfigMap of {module} in {}", cluster.name()))
}

fn operation(status: &tidewatch_api::KymaStatus) -> &str {
    status.last_operation.as_ref().map_or("", |op| op.operation.as_str())
}

fn all_in(text: &str, parts: &[&str]) -> bool {
    parts.iter().all(|part| text.contains(part))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inaccessible_runtime_is_in_error_and_others_continue() -> Result<()> {
    let world = World::start("kcp-bad-access").await?;
    let World { spare, kcp, namespace, .. } = &world;
    world.push("calm-light", "1.0.0").await?;
    world.release("calm-light", &[("regular", "1.0.0")]).await?;

    let good = spare.runtime4.kubeconfig_yaml(ADMIN)?;
    let closed = format!("https://127.0.0.1:{}", ports::free()?);
    let with_exec = good.replace(
        &format!("    token: {}", spare.runtime4.token(ADMIN)?),
        "    exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/true}",
    );
    ensure!(with_exec != good, "the kubeconfig has another shape");
    let wrong_token = good.replace(spare.runtime4.token(ADMIN)?, "token-of-nobody");
    let to_kcp = world.env.kcp.kubeconfig_yaml(ADMIN)?;
    let unreachable = good.replace(spare.runtime4.url(), &closed);
    // Kyma, kubeconfig, expected status text.
    let when_changed = "tried again when it changes";
    let cases: [(&str, Option<&str>, &[&str]); 8] = [
        ("late", None, &["no kubeconfig Secret", "kyma-name=late", "tried again when one appears"]),
        (
            "scribble",
            Some("users: [{token: hush-hush}\n  - x: {"),
            &["kubeconfig-scribble", "no valid YAML", when_changed],
        ),
        ("blank", Some("{}"), &["kubeconfig-blank", "no current-context", when_changed]),
        ("runner", Some(&with_exec), &["kubeconfig-runner", "uses exec", "not allowed", when_changed]),
        ("inward", Some(&to_kcp), &["kubeconfig-inward", "denied by rule", when_changed]),
        ("island", Some(&unreachable), &["cannot be reached", "Connection refused", "next try within"]),
        (
            "locked",
            Some(&wrong_token),
            &["does not accept the credentials", "renew the kubeconfig", "next try within"],
        ),
        ("garbage", Some("\u{1}\u{2}\0"), &["kubeconfig-garbage", "no valid YAML", when_changed]),
    ];
    for (kyma, kubeconfig, _) in &cases {
        if let Some(kubeconfig) = kubeconfig {
            fleet::put_kubeconfig(kcp, namespace, kyma, kubeconfig).await?;
        }
        kcp::put_kyma(kcp, namespace, kyma, &format!("runtime-{kyma}"), Some("x.runtimes.example")).await?;
    }
    for (kyma, _, says) in &cases {
        let what = format!("Kyma {kyma} to be in Error and to say {says:?}");
        fleet::kyma_where(world.kymas(), kyma, &what, |k| {
            k.status.as_ref().is_some_and(|s| s.state == State::Error && all_in(operation(s), says))
        })
        .await?;
    }
    world.pier_gets("calm-light").await?;

    // Errors that need a change are not retried; the others show a retry time.
    for (kyma, retried) in [("runner", false), ("island", true), ("locked", true)] {
        let wanted = if retried { 2 } else { 1 };
        let failures = wait::until(&format!("{wanted} failed tries of {kyma}"), SOON, || async {
            let failures = world.failures(kyma).await?;
            ensure!(failures.len() >= wanted, "there are: {failures:#?}");
            Ok(Some(failures))
        })
        .await?;
        for failure in &failures {
            ensure!(failure["nextTrySeconds"].is_number() == retried, "{kyma}: {failure:#}");
        }
    }
    let log = observed::text(&world.receiver.process)?;
    for secret in ["hush-hush", "token-of-nobody", spare.runtime4.token(ADMIN)?] {
        ensure!(!log.contains(secret), "the log shows what a kubeconfig holds");
    }

    // The Secret alone is sufficient.
    fleet::put_kubeconfig(kcp, namespace, "late", &good).await?;
    fleet::kyma_in_state(kcp, namespace, "late", State::Ready).await?;
    let late = Member { cluster: &spare.runtime4, kyma: "late", id: "runtime-late" };
    let remote: Api<Kyma> = Api::namespaced(late.cluster.client()?, RUNTIME_NAMESPACE);
    remote.get(RUNTIME_KYMA_NAME).await.context("the Kyma in the runtime whose Secret came late")?;
    world.healthy()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_uninstallable_module_is_in_error_and_others_continue() -> Result<()> {
    let world = World::start("kcp-bad-modules").await?;
    let World { spare, kcp, namespace, registry, .. } = &world;
    let wreck = Member { cluster: &spare.runtime4, kyma: "wreck", id: "runtime-wreck" };
    fleet::register(kcp, namespace, &wreck).await?;
    for (module, channel) in [("lamp", "regular"), ("tidal", "fast"), ("rusty", "regular")] {
        let layer = world.push(module, "1.0.0").await?;
        world.release(module, &[(channel, "1.0.0")]).await?;
        if module == "rusty" {
            registry.damage(&layer);
        }
    }
    for (module, version) in [("unpushed", "1.0.0"), ("garbled", "1.0.0")] {
        kcp::put_template(kcp, namespace, module, version).await?;
        world.release(module, &[("regular", version)]).await?;
    }
    let garbled = package("garbled", "1.0.0");
    let packed = pack_with_fault(&garbled, "data: {v", "data: [v")?;
    push_packed(&world.env.registry.of(namespace), &garbled, &packed).await?;
    fleet::kyma_in_state(kcp, namespace, wreck.kyma, State::Ready).await?;

    let cases: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("ghost", &["no module 'ghost'", "ModuleReleaseMeta", "tried again when one appears"][..]),
        ("tidal", &["no version in channel 'regular'", "it has: fast", "tried again when"]),
        ("unpushed", &["unpushed:1.0.0", "is not in the registry", "next try within"]),
        ("rusty", &["expected sha256:", "damaged or tampered", "next try within"]),
        ("garbled", &["invalid YAML", "document 1", "tried again when"]),
    ]);
    let mut modules: Vec<&str> = cases.keys().copied().collect();
    modules.push("lamp");
    world.enable(&wreck, &modules).await?;
    for (module, says) in &cases {
        let told = |m: &ModuleStatus| m.state == State::Error && all_in(&m.message, says);
        let what = format!("module {module} to be in Error and to say {says:?}");
        let is = |k: &Kyma| k.module_status(module).is_some_and(told);
        fleet::kyma_where(world.kymas(), wreck.kyma, &what, is).await?;
        // The runtime's Kyma shows it too.
        let remote: Api<Kyma> = Api::namespaced(wreck.cluster.client()?, RUNTIME_NAMESPACE);
        fleet::kyma_where(remote, RUNTIME_KYMA_NAME, &format!("{what}, in the runtime"), is).await?;
    }
    let kyma = fleet::kyma_in_state(kcp, namespace, wreck.kyma, State::Error).await?;
    let status = kyma.status.context("the Kyma has no status")?;
    ensure!(
        all_in(operation(&status), &["not all modules are in ready state", "first cause: "]),
        "{status:#?}"
    );
    for module in ["rusty", "garbled"] {
        manifest_says(&world, wreck.kyma, module, cases[module]).await?;
    }
    // Other modules and Kymas stay healthy.
    world.module_ready(wreck.kyma, "lamp").await?;
    installed(wreck.cluster, "lamp").await?;
    world.pier_gets("lamp").await?;

    // A never installed module can be removed.
    let others: Vec<&str> = modules.iter().copied().filter(|module| *module != "garbled").collect();
    world.enable(&wreck, &others).await?;
    let manifests: Api<Manifest> = Api::namespaced(kcp.clone(), namespace);
    wait::until("the Manifest of garbled to be gone", SOON, || async {
        let all = manifests.list(&kube::api::ListParams::default()).await?;
        Ok((!all.iter().any(|m| m.module_name() == Some("garbled"))).then_some(()))
    })
    .await?;
    world.enable(&wreck, &modules).await?;

    // Each module recovers after its cause ends.
    let damaged = world.push("rusty", "1.0.0").await?;
    registry.repair(&damaged);
    world.push("unpushed", "1.0.0").await?;
    world.push("ghost", "1.0.0").await?;
    world.release("ghost", &[("regular", "1.0.0")]).await?;
    world.release("tidal", &[("fast", "1.0.0"), ("regular", "1.0.0")]).await?;
    world.push("garbled", "1.0.1").await?;
    world.release("garbled", &[("regular", "1.0.1")]).await?;
    for module in modules {
        world.module_ready(wreck.kyma, module).await?;
        installed(wreck.cluster, module).await?;
    }
    fleet::kyma_in_state(kcp, namespace, wreck.kyma, State::Ready).await?;
    world.healthy()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_throttling_registry_is_spared_and_others_continue() -> Result<()> {
    let world = World::start("kcp-bad-registry").await?;
    let World { spare, kcp, namespace, registry, .. } = &world;
    let queue = Member { cluster: &spare.runtime4, kyma: "queue", id: "runtime-queue" };
    fleet::register(kcp, namespace, &queue).await?;
    for module in ["known", "waited", "waited-too"] {
        world.push(module, "1.0.0").await?;
        world.release(module, &[("regular", "1.0.0")]).await?;
    }
    fleet::kyma_in_state(kcp, namespace, queue.kyma, State::Ready).await?;
    world.enable(&queue, &["known"]).await?;
    world.module_ready(queue.kyma, "known").await?;

    registry.limit(Some(20));
    world.enable(&queue, &["known", "waited", "waited-too"]).await?;
    let says = ["is left alone", "limits our request rate", "next try within"];
    for module in ["waited", "waited-too"] {
        let told = |m: &ModuleStatus| m.state == State::Error && all_in(&m.message, &says[1..]);
        let what = format!("module {module} to be in Error because of the registry");
        fleet::kyma_where(world.kymas(), queue.kyma, &what, |k| k.module_status(module).is_some_and(told))
            .await?;
    }
    // Other modules continue; retries do not reach the registry.
    world.pier_gets("known").await?;
    for _ in 0..5 {
        world.tell(&queue).await?;
    }
    let text = format!("tidewatch_receiver_registry_breaker_open{{host=\"{}\"}} 1", registry.host());
    ensure!(
        http::text(&format!("{}/metrics", world.receiver.admin)).await?.contains(&text),
        "the metrics do not say that it is left alone"
    );
    let sent_away = registry.sent_away();
    ensure!(
        (1..=2).contains(&sent_away),
        "it was asked {sent_away} times, for two modules that were asked for at once"
    );
    registry.limit(None);
    for module in ["waited", "waited-too"] {
        world.module_ready(queue.kyma, module).await?;
        installed(queue.cluster, module).await?;
    }
    ensure!(registry.sent_away() == sent_away, "nobody asked before the time was over");
    fleet::kyma_in_state(kcp, namespace, queue.kyma, State::Ready).await?;
    world.healthy()
}

/// Versions are immutable, so an installed version needs no registry, even after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn installed_modules_stay_ready_without_a_registry() -> Result<()> {
    let mut world = World::start("kcp-bad-restart").await?;
    let late = Member { cluster: &world.spare.runtime4, kyma: "late-tide", id: "runtime-late-tide" };
    fleet::register(&world.kcp, world.namespace, &late).await?;
    for module in ["moored", "awaited"] {
        world.push(module, "1.0.0").await?;
        world.release(module, &[("regular", "1.0.0")]).await?;
    }
    fleet::kyma_in_state(&world.kcp, world.namespace, late.kyma, State::Ready).await?;
    world.enable(&late, &["moored"]).await?;
    world.module_ready(late.kyma, "moored").await?;
    let before = installed(late.cluster, "moored").await?;

    world.registry.limit(Some(20));
    world.receiver.restart().await?;
    world.enable(&late, &["moored", "awaited"]).await?;
    let what = "the new module to be in Error because of the registry, and the other one to stay Ready";
    fleet::kyma_where(world.kymas(), late.kyma, what, |k| {
        let is = |module: &str, state: State| k.module_status(module).filter(|told| told.state == state);
        is("awaited", State::Error).is_some_and(|told| told.message.contains("limits our request rate"))
            && is("moored", State::Ready).is_some_and(|told| told.message.is_empty())
    })
    .await?;
    ensure!(world.registry.sent_away() > 0, "it was not asked, and this shows nothing");
    world.registry.limit(None);
    world.module_ready(late.kyma, "awaited").await?;
    fleet::kyma_in_state(&world.kcp, world.namespace, late.kyma, State::Ready).await?;
    let after = installed(late.cluster, "moored").await?;
    ensure!(after.metadata == before.metadata, "the module was touched: {after:#?}");
    world.healthy()
}

/// With a user's CRD of Kyma, an invalid module list must not count as empty.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_module_list_removes_no_module() -> Result<()> {
    let world = World::start("kcp-bad-list").await?;
    let World { spare, kcp, namespace, .. } = &world;
    let mutiny = Member { cluster: &spare.runtime4, kyma: "mutiny", id: "runtime-mutiny" };
    fleet::register(kcp, namespace, &mutiny).await?;
    world.push("keepsake", "1.0.0").await?;
    world.release("keepsake", &[("regular", "1.0.0")]).await?;
    fleet::kyma_in_state(kcp, namespace, mutiny.kyma, State::Ready).await?;
    world.enable(&mutiny, &["keepsake"]).await?;
    world.module_ready(mutiny.kyma, "keepsake").await?;
    let before = installed(mutiny.cluster, "keepsake").await?;

    let runtime = mutiny.cluster.client()?;
    let crds: Api<CustomResourceDefinition> = Api::all(runtime.clone());
    let strict = crds.get(CRD).await?.spec;
    let mut loose = strict.clone();
    let schema = loose.versions.iter_mut().find(|v| v.name == VERSION).and_then(|v| v.schema.as_mut());
    let schema = schema.and_then(|s| s.open_api_v3_schema.as_mut()).context("the CRD has no schema")?;
    let anything = JSONSchemaProps {
        type_: Some("object".to_owned()),
        x_kubernetes_preserve_unknown_fields: Some(true),
        ..JSONSchemaProps::default()
    };
    schema.properties.get_or_insert_default().insert("spec".to_owned(), anything);
    replace(&crds, loose).await?;
    let many = Patch::Merge(json!({"spec": {"modules": "m".repeat(10_000)}}));
    let kind = ApiResource::erase::<Kyma>(&());
    let raw: Api<DynamicObject> = Api::namespaced_with(runtime, RUNTIME_NAMESPACE, &kind);
    wait::until("the runtime to take a list of modules that is none", SOON, || async {
        raw.patch(RUNTIME_KYMA_NAME, &PatchParams::default(), &many).await?;
        Ok(Some(()))
    })
    .await?;
    world.tell(&mutiny).await?;
    let says = ["spec of", "cannot be read", "nothing was changed", "tried again when it changes"];
    let what = format!("Kyma mutiny to be in Error and to say {says:?}");
    let kyma = fleet::kyma_where(world.kymas(), mutiny.kyma, &what, |k| {
        k.status.as_ref().is_some_and(|s| s.state == State::Error && all_in(operation(s), &says))
    })
    .await?;
    ensure!(operation(&kyma.status.context("no status")?).len() < 600, "the message quotes all of it");
    world.pier_gets("keepsake").await?;
    let after = installed(mutiny.cluster, "keepsake").await?;
    ensure!(after.metadata == before.metadata, "the module was touched: {after:#?}");

    world.enable(&mutiny, &["keepsake"]).await?;
    replace(&crds, strict).await?;
    fleet::kyma_in_state(kcp, namespace, mutiny.kyma, State::Ready).await?;
    world.module_ready(mutiny.kyma, "keepsake").await?;
    world.healthy()
}

const CRD: &str = "kymas.operator.kyma-project.io";

/// Retries, because others update the CRD's status.
async fn replace(crds: &Api<CustomResourceDefinition>, spec: CustomResourceDefinitionSpec) -> Result<()> {
    wait::until("the CRD of Kyma to be replaced", SOON, || async {
        let mut crd = crds.get(CRD).await?;
        crd.spec = spec.clone();
        crds.replace(CRD, &PostParams::default(), &crd).await?;
        Ok(Some(()))
    })
    .await
}

async fn manifest_says(world: &World, kyma: &str, module: &str, says: &[&str]) -> Result<()> {
    let api: Api<Manifest> = Api::namespaced(world.kcp.clone(), world.namespace);
    wait::until(&format!("the Manifest of {module} to say {says:?}"), SOON, || async {
        let all = api.list(&kube::api::ListParams::default()).await?;
        let of = |m: &&Manifest| m.kyma_name() == Some(kyma) && m.module_name() == Some(module);
        let manifest = all.iter().find(of).context("there is no such Manifest")?;
        let status = manifest.status.as_ref().context("it has no status")?;
        let text = status.last_operation.as_ref().map_or("", |op| op.operation.as_str());
        ensure!(status.state == State::Error && all_in(text, says), "its status: {status:#?}");
        Ok(Some(()))
    })
    .await
}
