//! A Kyma's life in two simulated clusters, with engine crashes.

mod cuts;
mod engine;
mod preexisting;
mod snapshot;

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use kube::{
    Api, Client, Config,
    api::{DeleteParams, Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, ModuleReleaseMeta, ModuleTemplate,
    names::{API_VERSION, KCP_NAMESPACE, RUNTIME_KYMA_NAME, RUNTIME_NAMESPACE, labels},
};
use tidewatch_demo::fleet;
use tidewatch_drain::Drain;
use tidewatch_fake_apiserver::{
    Hosted, Options, Server, ServerOptions, Token, User, registry::Registry, script::chance,
};
use tidewatch_oci::{self, ModulePackage, RegistryConfig};
use tokio::time::{Instant, sleep};

pub(crate) use cuts::Cuts;
use engine::Incarnation;
pub(crate) use preexisting::LEFT as LEFT_BEFORE;
use snapshot::{Snapshot, snapshot};

const KYMA: &str = "harbour";
const ENGINE: &str = "engine";
/// On a busy machine.
const SOON: Duration = Duration::from_mins(1);
const PAUSE: Duration = Duration::from_millis(20);

pub(crate) struct World {
    server: Server,
    registry: Registry,
    cuts: Arc<Cuts>,
    _drain: Drain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Created,
    Enabled,
    Upgraded,
    Disabled,
    Deleted,
}

pub(crate) const ALL: [Part; 5] =
    [Part::Created, Part::Enabled, Part::Upgraded, Part::Disabled, Part::Deleted];

/// Writes until each crash, and whether the last succeeds.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    ends: Vec<(u64, bool)>,
    /// First part that counts.
    from: Part,
}

impl Default for Plan {
    fn default() -> Self {
        Self { ends: Vec::new(), from: Part::Created }
    }
}

impl Plan {
    /// One to three crashes, the first anywhere.
    pub(crate) fn of(seed: u64, writes: u64) -> Self {
        let pick = |label: &str, end: u64| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "a draw"
            )]
            let drawn = (chance(seed, label) * end as f64) as u64;
            drawn.min(end - 1)
        };
        let count = 1 + pick("count", 3);
        let cut = |n: u64| {
            let within = if n == 0 { writes } else { writes / 3 };
            (1 + pick(&format!("write {n}"), within), pick(&format!("done {n}"), 2) == 1)
        };
        Self { ends: (0..count).map(cut).collect(), from: Part::Created }
    }

    pub(crate) fn in_deletion(write: u64, done: bool) -> Self {
        Self { ends: vec![(write, done)], from: Part::Deleted }
    }
}

pub(crate) struct Lived {
    pub(crate) crashes: u64,
    pub(crate) writes: u64,
    /// Writes of the last part.
    pub(crate) last_writes: u64,
    snapshots: Vec<Snapshot>,
}

impl Lived {
    /// Form of `object`: `cluster Kind namespace/name`.
    pub(crate) fn has(&self, part: usize, object: &str) -> bool {
        self.snapshots.get(part).is_some_and(|snapshot| snapshot.has(object))
    }
}

impl World {
    pub(crate) async fn start() -> Result<Self> {
        let drain = Drain::new();
        let cuts = Arc::new(Cuts::default());
        let faults = Arc::clone(&cuts) as Arc<dyn tidewatch_fake_apiserver::Faults>;
        let server = Server::start(ServerOptions { faults, ..ServerOptions::default() }, &drain).await?;
        let registry = Registry::start(&drain).await?;
        let client = tidewatch_oci::Registry::new(RegistryConfig::default())?;
        for (module, version) in [("beacons", "1.0.0"), ("beacons", "1.1.0"), ("quay", "1.0.0")] {
            let documents: Vec<String> = objects(module, version).iter().map(Value::to_string).collect();
            let package = ModulePackage {
                sources: Vec::new(),
                component_name: component(module),
                version: version.to_owned(),
                raw_manifest: documents.join("\n---\n"),
                default_cr: None,
                images: Vec::new(),
            };
            tidewatch_oci::push(&client, &registry.host(), &package).await?;
        }
        Ok(Self { server, registry, cuts, _drain: drain })
    }
}

fn component(module: &str) -> String {
    format!("tidewatch.dev/module/{module}")
}

/// One namespace is shared.
fn objects(module: &str, version: &str) -> Vec<Value> {
    let (labels, system) = (json!({"app": module}), format!("{module}-system"));
    let map = |name: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": system},
               "data": {"version": version}})
    };
    let mut all = vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": system}}),
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shared-system"}}),
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": module, "namespace": system},
            "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
                "spec": {"containers": [{"name": "keeper", "image": format!("example.local/{module}:{version}")}]}}}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": module, "namespace": system}}),
        map(&format!("{module}-{version}")),
    ];
    if module == "beacons" {
        all.push(json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "beacons.sim.tidewatch.dev"},
            "spec": {"group": "sim.tidewatch.dev", "scope": "Namespaced", "names": {"kind": "Beacon", "plural": "beacons"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
                    {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}));
    }
    all
}

pub(crate) struct Life {
    world: Arc<World>,
    name: String,
    kcp: Client,
    runtime: Client,
    hosted: Arc<Hosted>,
    engine_config: Config,
    plan: Plan,
    counts: bool,
    engine: Option<Incarnation>,
    crashes: u64,
    unacknowledged: bool,
}

async fn config(kubeconfig: &str) -> Result<Config> {
    let parsed = Kubeconfig::from_yaml(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await?;
    config.proxy_url = None;
    Ok(config)
}

impl Life {
    pub(crate) async fn new(world: &Arc<World>, name: &str, plan: Plan) -> Result<Self> {
        let mut clusters = Vec::new();
        for (seed, role) in [(1, "kcp"), (2, "rt")] {
            let cluster = format!("{role}-{name}");
            let options = Options { seed, ignore_cel: true, ..Options::default() };
            let hosted = world.server.add(&cluster, options)?;
            let url = format!("https://{}", world.server.listen(&cluster).await?);
            for user in [ENGINE, "test"] {
                hosted.allow_token(Token(format!("{user}-{cluster}")), User::admin(user));
            }
            let kubeconfig =
                |user: &str| world.server.kubeconfig_for(&cluster, &url, &format!("{user}-{cluster}"));
            clusters.push((
                hosted,
                kubeconfig(ENGINE),
                Client::try_from(config(&kubeconfig("test")).await?)?,
            ));
        }
        let [(_, kcp_config, kcp), (hosted, runtime_config, runtime)] =
            <[_; 2]>::try_from(clusters).ok().context("two clusters")?;
        fleet::prepare_kcp(&kcp, KCP_NAMESPACE).await?;
        let life = Self {
            world: Arc::clone(world),
            name: name.to_owned(),
            kcp,
            runtime,
            hosted,
            engine_config: config(&kcp_config).await?,
            plan,
            counts: false,
            engine: None,
            crashes: 0,
            unacknowledged: false,
        };
        for (module, version) in [("beacons", "1.0.0"), ("beacons", "1.1.0"), ("quay", "1.0.0")] {
            life.offer(module, version).await?;
        }
        life.release("beacons", "1.0.0").await?;
        life.release("quay", "1.0.0").await?;
        preexisting::prepare(&life.kcp, &life.runtime).await?;
        fleet::register(&life.kcp, KCP_NAMESPACE, KYMA, "runtime-harbour", &runtime_config).await?;
        Ok(life)
    }

    async fn offer(&self, module: &str, version: &str) -> Result<()> {
        let mut body = json!({
            "apiVersion": API_VERSION, "kind": "ModuleTemplate",
            "metadata": {"name": ModuleTemplate::object_name(module, version), "labels": {labels::MODULE_NAME: module}},
            "spec": {"moduleName": module, "version": version, "descriptor": {}}
        });
        if module == "beacons" {
            body["spec"]["data"] = json!({"apiVersion": "sim.tidewatch.dev/v1", "kind": "Beacon",
                "metadata": {"name": "default", "namespace": RUNTIME_NAMESPACE}, "spec": {}});
        }
        let api: Api<ModuleTemplate> = Api::namespaced(self.kcp.clone(), KCP_NAMESPACE);
        let name = ModuleTemplate::object_name(module, version);
        api.patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(body)).await?;
        Ok(())
    }

    async fn release(&self, module: &str, version: &str) -> Result<()> {
        let body = json!({
            "apiVersion": API_VERSION, "kind": "ModuleReleaseMeta", "metadata": {"name": module},
            "spec": {"moduleName": module, "ocmComponentName": component(module),
                     "channels": [{"channel": "regular", "version": version}]}
        });
        let api: Api<ModuleReleaseMeta> = Api::namespaced(self.kcp.clone(), KCP_NAMESPACE);
        api.patch(module, &PatchParams::apply("test").force(), &Patch::Apply(body)).await?;
        Ok(())
    }

    async fn want(&mut self, modules: &[&str]) -> Result<()> {
        let list: Vec<Value> = modules.iter().map(|name| json!({"name": name})).collect();
        let api: Api<Kyma> = Api::namespaced(self.runtime.clone(), RUNTIME_NAMESPACE);
        let patch = Patch::Merge(json!({"spec": {"modules": list}}));
        api.patch(RUNTIME_KYMA_NAME, &PatchParams::default(), &patch).await?;
        self.unacknowledged = true;
        Ok(())
    }

    /// Plays parts, which must end as in `whole`.
    pub(crate) async fn live(mut self, parts: &[Part], whole: Option<&Lived>) -> Result<Lived> {
        let (mut snapshots, mut before) = (Vec::new(), 0);
        for (number, part) in parts.iter().enumerate() {
            before = self.world.cuts.writes(&self.name);
            if *part == self.plan.from {
                self.counts = true;
                self.arm();
            }
            match part {
                Part::Created => {}
                Part::Enabled => self.want(&["beacons", "quay"]).await?,
                Part::Upgraded => self.release("beacons", "1.1.0").await?,
                Part::Disabled => self.want(&["beacons"]).await?,
                Part::Deleted => {
                    let api: Api<Kyma> = Api::namespaced(self.kcp.clone(), KCP_NAMESPACE);
                    api.delete(KYMA, &DeleteParams::default()).await?;
                }
            }
            let expected = whole.and_then(|whole| whole.snapshots.get(number));
            snapshots.push(self.settle(expected).await.with_context(|| format!("{part:?}"))?);
        }
        ensure!(!snapshots.iter().any(Snapshot::is_empty), "a snapshot of nothing shows nothing");
        if let Some(engine) = self.engine.take() {
            engine.end().await;
        }
        for role in ["kcp", "rt"] {
            self.world.server.remove(&format!("{role}-{}", self.name));
        }
        let writes = self.world.cuts.writes(&self.name);
        Ok(Lived { crashes: self.crashes, writes, last_writes: writes - before, snapshots })
    }

    fn arm(&self) {
        let next = usize::try_from(self.crashes).ok().and_then(|n| self.plan.ends.get(n)).copied();
        self.world.cuts.arm(&self.name, next.filter(|_| self.counts));
    }

    /// Runs engines until `expected`, or until nothing changes.
    async fn settle(&mut self, expected: Option<&Snapshot>) -> Result<Snapshot> {
        let (deadline, mut quiet) = (Instant::now() + SOON, 0);
        let mut seen = self.hosted.changes();
        loop {
            if self.world.cuts.is_cut(&self.name)
                && let Some(engine) = self.engine.take()
            {
                self.crashes += 1;
                self.unacknowledged |= !engine.has_acknowledged();
                engine.end().await;
            }
            let engine = if let Some(engine) = &self.engine {
                engine
            } else {
                self.arm();
                let engine =
                    Incarnation::begin(self.engine_config.clone(), self.world.registry.host()).await?;
                self.engine.insert(engine)
            };
            // Acts as the agent: reports until acknowledged.
            if std::mem::take(&mut self.unacknowledged) {
                engine.tell_of_kyma();
            }
            if seen.has_changed()? {
                seen.borrow_and_update();
                engine.tell_of_objects();
                quiet = 0;
            }
            let idle = engine.is_idle() && !self.world.cuts.is_cut(&self.name);
            quiet = if idle { quiet + 1 } else { 0 };
            if quiet > 15 || (expected.is_some() && quiet > 3) {
                let found = snapshot(&self.kcp, &self.runtime).await?;
                match expected {
                    None if !found.is_transient() => return Ok(found),
                    Some(expected) if found == *expected => return Ok(found),
                    _ => {}
                }
            }
            if Instant::now() > deadline {
                let found = snapshot(&self.kcp, &self.runtime).await?;
                let differences = expected.map(|expected| expected.differences(&found));
                anyhow::bail!("it does not settle; {:?}; {:#?}", engine.last(), differences);
            }
            sleep(PAUSE).await;
        }
    }
}
