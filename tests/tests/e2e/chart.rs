//! The Helm chart on a real control plane: every object is accepted, and the receiver works as its pods say, with their rights alone.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Namespace, Secret},
    discovery::v1::EndpointSlice,
    rbac::v1::Role,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;
use tidewatch_api::{
    Kyma, State,
    names::{AGENT_NAME, KCP_NAMESPACE, RUNTIME_NAMESPACE},
};
use tidewatch_demo::story::{Cast, World as Story};
use tidewatch_real_only::real_only;
use tidewatch_tests::{
    ControlPlane, Options, Process,
    chart::{self, Ports, Shell},
    cluster::ADMIN,
    env,
    fleet::{self, Agent, Member, Receiver},
    observed, ports,
    report::Recorder,
    runtime_pool, spare, story, wait,
};
use tokio::time::Instant;

const INSTALL: &str = include_str!("../../../docs/operate/install.md");
const SINGLE_CLUSTER: &str = include_str!("../../../docs/operate/single-cluster.md");
const UPGRADE: &str = include_str!("../../../docs/operate/upgrade.md");
const SOON: Duration = Duration::from_mins(1);
/// From `helm install` to a runtime with a proven event path.
const INSTALLED: Duration = Duration::from_mins(1);
/// Names of the pages.
const KYMA: &str = "harbour";
const MODULE: &str = "greeting";
/// The rights that the page names where the chart binds no cluster-admin.
const RIGHTS_FOR_LIGHTHOUSE: &str = include_str!("single_cluster_rights.yaml");
/// Groups of other products.
const UNSERVED: [&str; 2] = ["cert-manager.io", "monitoring.coreos.com"];
const REQUIRED: &str =
    "--set image.registry=registry.example.com/tidewatch,modules.registry=registry.example.com/modules";

/// Creates a namespace that refuses pods, and warns of Deployments, without the restricted security context.
async fn restricted(client: &Client, name: &str) -> Result<()> {
    let levels = json!({"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted"});
    let namespace = json!({"metadata": {"name": name, "labels": levels}});
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.create(&PostParams::default(), &serde_json::from_value(namespace)?).await?;
    Ok(())
}

#[real_only("the fake API server validates no Deployments, NetworkPolicies and PodDisruptionBudgets")]
#[tokio::test(flavor = "multi_thread")]
async fn every_object_of_every_mode_is_accepted() -> Result<()> {
    let (env, namespace) = (env::shared().await?, "kcp-chart-modes");
    restricted(&env.kcp.client()?, namespace).await?;
    // The take-over's Role is in Istio's namespace.
    let istio: Namespace = serde_json::from_value(json!({"metadata": {"name": "istio-system"}}))?;
    let namespaces: Api<Namespace> = Api::all(env.kcp.client()?);
    if namespaces.get_opt("istio-system").await?.is_none() {
        namespaces.create(&PostParams::default(), &istio).await?;
    }
    let shell = Shell::new(&env.harness, &env.kcp, namespace)?;
    for mode in ["certManagement=built-in", "certManagement=cert-manager", "mode=single-cluster,agent.url="] {
        let few = format!("{REQUIRED},{mode}");
        let fewer = shell.is_accepted(namespace, &few, &UNSERVED).await?;
        let all = format!("{few} --values deploy/charts/tidewatch/tests/everything.yaml");
        let more = shell.is_accepted(namespace, &all, &UNSERVED).await?;
        ensure!(fewer >= 12 && more > fewer, "{mode}: {fewer} and {more} objects");
    }
    Ok(())
}

/// A control plane with nothing but the chart, and its operator.
pub(super) struct World {
    pub(super) kcp: ControlPlane,
    pub(super) shell: Shell,
    pub(super) ports: Ports,
    pub(super) modules: String,
}

impl World {
    /// Starts a control plane, and gives the shell the runtime's `runtime.yaml`.
    pub(super) async fn start(name: &str, runtime: &ControlPlane) -> Result<Self> {
        let env = env::shared().await?;
        spare::take_over(runtime).await?;
        let options = Options { pods: true, ..Options::named(name) };
        let kcp = Box::pin(ControlPlane::start(&env.harness, env.etcd(), options)).await?;
        restricted(&kcp.client()?, KCP_NAMESPACE).await?;
        let shell = Shell::new(&env.harness, &kcp, &format!("{name}-operator"))?;
        shell.write("runtime.yaml", &runtime.kubeconfig_yaml(ADMIN)?)?;
        let ports = Ports { events: ports::free()?, admin: ports::free()? };
        Ok(Self { kcp, shell, ports, modules: env.registry.of(&format!("kcp-{name}")) })
    }

    /// Runs a block of a page, with the addresses of this host.
    async fn run(&self, block: &str) -> Result<String> {
        let block = block.replace("registry.example.com/modules", &self.modules);
        self.shell
            .run(&block.replace("events.example.com:8443", &format!("127.0.0.1:{}", self.ports.events)))
            .await
    }

    pub(super) async fn start_receiver(&self) -> Result<Receiver> {
        chart::start_receiver(&env::shared().await?.harness, &self.kcp, KCP_NAMESPACE, self.ports).await
    }

    pub(super) fn kymas(&self) -> Result<Api<Kyma>> {
        Ok(Api::namespaced(self.kcp.client()?, KCP_NAMESPACE))
    }

    async fn uid(&self) -> Result<String> {
        self.kymas()?.get(KYMA).await?.metadata.uid.context("no uid")
    }
}

#[real_only("Helm needs a complete API server, and the Deployment needs pods")]
#[tokio::test(flavor = "multi_thread")]
async fn the_pages_install_upgrade_and_uninstall_as_they_say() -> Result<()> {
    let [install, register, publish, enable, check] =
        <[&str; 5]>::try_from(chart::commands(INSTALL)).map_err(|found| anyhow!("{found:?}"))?;
    let [upgrade, rollback, uninstall] =
        <[&str; 3]>::try_from(chart::commands(UPGRADE)).map_err(|found| anyhow!("{found:?}"))?;
    let (env, alone) = (env::shared().await?, runtime_pool::alone().await?);
    let world = World::start("chart", alone.cluster).await?;
    let (client, runtime) = (world.kcp.client()?, alone.cluster.client()?);

    let began = Instant::now();
    let notes = world.run(install).await?;
    ensure!(notes.contains("tidewatch runtime add") && notes.contains("keeps the CRDs"), "{notes}");
    let receiver = world.start_receiver().await?;
    let up = began.elapsed();
    let member = Member { cluster: alone.cluster, kyma: KYMA, id: KYMA };
    let (added, agent) = tokio::join!(world.run(register), Agent::start(&env.harness, &receiver, &member));
    let proven = began.elapsed();
    added?;
    let agent = agent?;
    println!("helm install to receiver ready: {up:.1?}, to a proven runtime: {proven:.1?}");
    ensure!(proven < INSTALLED, "from helm install to a proven runtime: {proven:?}");
    serves_the_leaders_address(&client, &receiver).await?;

    world.run(publish).await?;
    world.run(enable).await?;
    println!("helm install to a Ready module: {:.1?}", began.elapsed());
    world.run(check).await?;

    let uid = world.uid().await?;
    let tagged = upgrade.replace("flags.workers=32", "flags.workers=32,image.tag=9.9.9");
    world.run(&tagged).await?;
    end(receiver.process).await?;
    let receiver = world.start_receiver().await?;
    ensure!(
        receiver.process.spec().args.contains(&"--workers=32".to_owned()),
        "the pod has the former arguments"
    );
    agent_has(&runtime, ":9.9.9").await?;

    // The agent keeps a change while no receiver runs.
    world.run(rollback).await?;
    end(receiver.process).await?;
    story::set_modules(&runtime, &json!([])).await?;
    let receiver = world.start_receiver().await?;
    fleet::kyma_where(world.kymas()?, KYMA, "the module to go", |kyma| kyma.module_status(MODULE).is_none())
        .await?;
    agent_has(&runtime, &format!(":{}", env!("CARGO_PKG_VERSION"))).await?;
    let config_maps: Api<ConfigMap> = Api::namespaced(runtime.clone(), "default");
    ensure!(config_maps.get_opt(MODULE).await?.is_none(), "the module's object has stayed");

    end(receiver.process).await?;
    let kept = world.run(uninstall).await?;
    for plural in ["kymas", "manifests", "modulereleasemetas", "moduletemplates", "watchers"] {
        ensure!(kept.contains(&format!("{plural}.operator.kyma-project.io")), "{kept}");
    }
    release_is_gone(&client).await?;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), KCP_NAMESPACE);
    secrets.get("tidewatch-ca").await.context("the agents' CA")?;
    story::set_modules(&runtime, &json!([{"name": MODULE}])).await?;
    world.run(install).await?;
    let receiver = world.start_receiver().await?;
    fleet::kyma_where(world.kymas()?, KYMA, "the module to be Ready again", |kyma| {
        kyma.module_status(MODULE).is_some_and(|module| module.state == State::Ready)
    })
    .await?;
    ensure!(world.uid().await? == uid, "the Kyma was replaced");

    world.kymas()?.delete(KYMA, &DeleteParams::default()).await?;
    wait::until("the Kyma to go", SOON, || async {
        Ok(world.kymas()?.get_opt(KYMA).await?.is_none().then_some(()))
    })
    .await?;
    ensure!(config_maps.get_opt(MODULE).await?.is_none(), "the module's object has stayed");
    observed::no_panic(&agent.process)?;
    end(receiver.process).await
}

/// Ends a receiver, which had all the rights that it needs.
pub(super) async fn end(mut receiver: Process) -> Result<()> {
    receiver.begin_end();
    wait::until("the receiver to end", SOON, || async { Ok(receiver.ended()) }).await?;
    // An API server finds the kind of an owner only some seconds after its CRD was created.
    let log = observed::text(&receiver)?;
    let mut lines = log.lines().filter(|line| !line.contains("cannot find RESTMapping"));
    let forbidden = lines.find(|line| line.contains("forbidden"));
    ensure!(forbidden.is_none(), "the chart gives too few rights: {forbidden:?}");
    observed::no_panic(&receiver)
}

/// The Service for agents has no selector.
async fn serves_the_leaders_address(kcp: &Client, receiver: &Receiver) -> Result<()> {
    let slices: Api<EndpointSlice> = Api::namespaced(kcp.clone(), KCP_NAMESPACE);
    let slice = slices.get("tidewatch-receiver").await?;
    let found: Vec<&String> =
        slice.endpoints.iter().flatten().flat_map(|endpoint| &endpoint.addresses).collect();
    let env = &receiver.process.spec().env;
    let expected: Vec<&String> =
        env.iter().filter(|(name, _)| name == "TIDEWATCH_POD_IP").map(|(_, ip)| ip).collect();
    ensure!(found == expected, "{found:?} instead of {expected:?}");
    Ok(())
}

/// Waits until the engine has applied the agent's Deployment with an image that ends so.
async fn agent_has(runtime: &Client, tag: &str) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(runtime.clone(), RUNTIME_NAMESPACE);
    wait::until(&format!("the agent of the image {tag}"), SOON, || async {
        let spec = deployments.get(AGENT_NAME).await?.spec.and_then(|spec| spec.template.spec);
        let image = spec.and_then(|spec| spec.containers.into_iter().next()?.image).unwrap_or_default();
        Ok(image.ends_with(tag).then_some(()))
    })
    .await
}

async fn release_is_gone(kcp: &Client) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(kcp.clone(), KCP_NAMESPACE);
    let roles: Api<Role> = Api::namespaced(kcp.clone(), KCP_NAMESPACE);
    let all = ListParams::default();
    wait::until("the release to go", SOON, || async {
        let left = deployments.list(&all).await?.items.len() + roles.list(&all).await?.items.len();
        Ok((left == 0).then_some(()))
    })
    .await
}

/// The receiver of a single cluster, as the chart's pods say.
struct SinglePod<'a> {
    cluster: &'a ControlPlane,
    ports: Ports,
    process: Option<Process>,
}

impl Cast for SinglePod<'_> {
    async fn receiver(&mut self) -> Result<String> {
        let harness = &env::shared().await?.harness;
        let (process, admin) =
            chart::start_single(harness, self.cluster, RUNTIME_NAMESPACE, self.ports).await?;
        self.process = Some(process);
        Ok(admin)
    }

    async fn agent(&mut self, _: usize) -> Result<String> {
        bail!("a single cluster has no agents")
    }
}

/// Plays the demo's story, from a Kyma without kubeconfig Secret to its deletion.
async fn plays_the_story(cluster: &ControlPlane, modules: &str) -> Result<()> {
    let ports = Ports { events: ports::free()?, admin: ports::free()? };
    let mut pod = SinglePod { cluster, ports, process: None };
    let recorder = Recorder::default();
    let story = Story::start_single(cluster.client()?, modules, &mut pod, &recorder).await?;
    let told = story.run(&recorder).await;
    let process = pod.process.context("there is no receiver")?;
    told.with_context(|| process.log_tail(60))?;
    end(process).await
}

#[real_only("Helm needs a complete API server, and the Deployment needs pods")]
#[tokio::test(flavor = "multi_thread")]
async fn a_single_cluster_works_with_the_rights_of_its_page() -> Result<()> {
    let env = env::shared().await?;
    let options = Options { pods: true, ..Options::named("chart-single") };
    let cluster = Box::pin(ControlPlane::start(&env.harness, env.etcd(), options)).await?;
    let shell = Shell::new(&env.harness, &cluster, "chart-single-operator")?;
    let modules = env.registry.of("chart-single");
    let install = chart::commands(SINGLE_CLUSTER).into_iter().find(|block| block.contains("helm install"));
    let install = install.context("the page has no helm install")?;
    let install =
        install.replace("=REGISTRY", "=registry.example.com").replace("=MODULES", &format!("={modules}"));

    let began = Instant::now();
    shell.run(&install).await?;
    plays_the_story(&cluster, &modules).await?;
    println!("helm install and the story as cluster-admin: {:.1?}", began.elapsed());

    let chart = "deploy/charts/tidewatch --namespace kyma-system";
    shell
        .run(&format!("helm upgrade tidewatch {chart} --reuse-values --set rbac.clusterAdmin=false"))
        .await?;
    fleet::apply_yaml(&cluster.client()?, RIGHTS_FOR_LIGHTHOUSE).await?;
    let began = Instant::now();
    plays_the_story(&cluster, &modules).await?;
    println!("the story with the rights of the page: {:.1?}", began.elapsed());
    Ok(())
}
