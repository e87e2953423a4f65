//! A test's own receiver and KCP namespace with one Kyma on a spare runtime. Tests report changes with v2
//! events themselves, and so control their timing.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    ControlPlane,
    env::{self, Environment},
    fleet::{self, Agent, Member, Receiver},
    http,
    modules::Version,
    runtime_pool::{self, Alone},
    spare, story, wait,
};
use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
    core::DynamicObject,
    discovery::ApiResource,
};
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, Manifest, ModuleStatus, State,
    names::{GROUP, RUNTIME_KYMA_NAME, RUNTIME_NAMESPACE, VERSION},
};

const SOON: Duration = Duration::from_mins(1);
/// The catalog's resources.
const CATALOG: [&str; 2] = ["moduletemplates", "modulereleasemetas"];

/// A receiver with one Kyma.
pub struct Solo {
    /// The shared environment.
    pub env: &'static Environment,
    /// The KCP.
    pub kcp: Client,
    /// The runtime.
    pub cluster: &'static ControlPlane,
    /// A client of the runtime.
    pub runtime: Client,
    /// The receiver.
    pub receiver: Receiver,
    /// The namespace in KCP.
    pub namespace: &'static str,
    /// The Kyma.
    pub kyma: &'static str,
    // Last field: the receiver ends before another test gets the runtime.
    _alone: Alone,
}

impl Solo {
    /// Starts a receiver that installs no agents, registers the runtime and waits until the Kyma without modules is Ready.
    pub async fn start(namespace: &'static str, kyma: &'static str) -> Result<Self> {
        Self::start_with(namespace, kyma, Vec::new()).await
    }

    /// Like [`Solo::start`], with further receiver arguments.
    pub async fn start_with(
        namespace: &'static str,
        kyma: &'static str,
        arguments: Vec<String>,
    ) -> Result<Self> {
        Self::start_on(namespace, kyma, async |env, modules| {
            Receiver::start_without_agents(&env.harness, &env.kcp, namespace, &modules, arguments).await
        })
        .await
    }

    /// Like [`Solo::start_with`], for a test that starts the runtime's [`Solo::agent`].
    pub async fn start_watched(
        namespace: &'static str,
        kyma: &'static str,
        arguments: Vec<String>,
    ) -> Result<Self> {
        Self::start_on(namespace, kyma, async |env, modules| {
            Receiver::start_with(&env.harness, &env.kcp, namespace, &modules, arguments).await
        })
        .await
    }

    async fn start_on(
        namespace: &'static str,
        kyma: &'static str,
        receiver: impl AsyncFnOnce(&'static Environment, String) -> Result<Receiver>,
    ) -> Result<Self> {
        let (env, alone) = (env::shared().await?, runtime_pool::alone().await?);
        let cluster = alone.cluster;
        spare::take_over(cluster).await?;
        let kcp = env.kcp.client()?;
        fleet::prepare_kcp(&kcp, namespace).await?;
        let receiver = receiver(env, env.registry.of(namespace)).await?;
        let this =
            Self { env, kcp, cluster, runtime: cluster.client()?, receiver, namespace, kyma, _alone: alone };
        fleet::register(&this.kcp, namespace, &this.member()).await?;
        fleet::kyma_in_state(&this.kcp, namespace, kyma, State::Ready).await?;
        Ok(this)
    }

    /// Returns the registered runtime.
    pub fn member(&self) -> Member<'static> {
        Member { cluster: self.cluster, kyma: self.kyma, id: self.kyma }
    }

    /// Starts the installed agent.
    pub async fn agent(&self) -> Result<Agent> {
        Agent::start(&self.env.harness, &self.receiver, &self.member()).await
    }

    /// Waits until the agent runs this and all other watches, its events are acknowledged, and its path is
    /// proven.
    pub async fn watching(&self, agent: &Agent, watch: &str) -> Result<()> {
        let what = format!("to watch {watch}, with nothing unacknowledged, and to be proven");
        agent
            .process
            .ready(&what, SOON, || async {
                let page = agent.status().await?;
                let all = page["watches"].as_array().map(Vec::as_slice).unwrap_or_default();
                let there = all.iter().any(|w| w["name"] == watch);
                ensure!(
                    there && all.iter().all(|w| w["reason"] == "Watching") && page["dirtyKeys"] == 0,
                    "its status: {page:#}"
                );
                let runtime = self.receiver.runtime(self.kyma).await?;
                ensure!(runtime["eventPath"] == "proven", "{}", runtime["eventPath"]);
                Ok(Some(()))
            })
            .await
    }

    /// Pushes and releases a module version.
    pub async fn offer(&self, version: &Version) -> Result<()> {
        version.offer(&self.kcp, self.namespace, &self.env.registry.of(self.namespace)).await
    }

    /// Sets the modules of the runtime's Kyma and reports the change.
    pub async fn enable(&self, modules: &Value) -> Result<()> {
        story::set_modules(&self.runtime, modules).await?;
        self.tell((GROUP, VERSION, "Kyma"), RUNTIME_NAMESPACE, RUNTIME_KYMA_NAME).await
    }

    /// Reports a changed object.
    pub async fn tell(&self, gvk: (&str, &str, &str), namespace: &str, name: &str) -> Result<()> {
        self.receiver.tell(&self.env.harness, &self.member(), gvk, namespace, name).await
    }

    /// Reports a changed object and waits for a later reconcile of its Manifest.
    pub async fn told(&self, gvk: (&str, &str, &str), namespace: &str, name: &str) -> Result<()> {
        self.looked("Manifest", gvk, namespace, name).await
    }

    /// Reports the Kyma and waits for a later reconcile.
    pub async fn look(&self) -> Result<()> {
        self.looked("Kyma", (GROUP, VERSION, "Kyma"), RUNTIME_NAMESPACE, RUNTIME_KYMA_NAME).await
    }

    async fn looked(&self, kind: &str, gvk: (&str, &str, &str), namespace: &str, name: &str) -> Result<()> {
        let object = if namespace.is_empty() { format!(" {name}") } else { format!(" {namespace}/{name}") };
        let now = Timestamp::now();
        self.tell(gvk, namespace, name).await?;
        let is_it = |record: &Value| {
            let finished: Timestamp = record["finishedAt"].as_str()?.parse().ok()?;
            let began = finished - Duration::from_secs_f64(record["workSeconds"].as_f64()?);
            let named = |cause: &Value| cause["object"].as_str().is_some_and(|o| o.ends_with(&object));
            let caused = record["causes"].as_array()?.iter().any(named);
            (record["key"].as_str()?.split_once('/')?.0 == kind && began >= now && caused).then_some(())
        };
        wait::until(&format!("a reconcile after an event of{object}"), SOON, || async {
            let page = self.receiver.runtime(self.kyma).await?;
            Ok(page["reconciles"].as_array().into_iter().flatten().find_map(is_it))
        })
        .await
    }

    /// Returns the number of finished reconciles of a key kind.
    pub async fn reconciles(&self, kind: &str) -> Result<u64> {
        let page = http::text(&format!("{}/metrics", self.receiver.admin)).await?;
        let kind = format!("kind=\"{kind}\"");
        let ended = page
            .lines()
            .filter(|line| line.starts_with("tidewatch_receiver_reconciles_total{") && line.contains(&kind));
        Ok(ended.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum())
    }

    /// Waits for a module status in KCP's Kyma.
    pub async fn module(
        &self,
        module: &str,
        what: &str,
        is: impl Fn(&ModuleStatus) -> bool + Sync,
    ) -> Result<ModuleStatus> {
        let kymas: Api<Kyma> = Api::namespaced(self.kcp.clone(), self.namespace);
        let what = format!("module {module} {what}");
        let found = |k: &Kyma| k.module_status(module).is_some_and(&is);
        let kyma = fleet::kyma_where(kymas, self.kyma, &what, found).await?;
        kyma.module_status(module).cloned().ok_or_else(|| anyhow::anyhow!("{what}: it is gone"))
    }

    /// Waits until a module has no status entry and no Manifest.
    pub async fn gone(&self, module: &str) -> Result<()> {
        wait::until(&format!("module {module} to be gone"), SOON, || async {
            let manifests: Api<Manifest> = Api::namespaced(self.kcp.clone(), self.namespace);
            let label = format!("operator.kyma-project.io/module-name={module}");
            Ok(manifests.list(&ListParams::default().labels(&label)).await?.items.is_empty().then_some(()))
        })
        .await
    }

    /// Sets labels of KCP's Kyma; `null` removes one.
    pub async fn label(&self, labels: &Value) -> Result<()> {
        let kymas: Api<Kyma> = Api::namespaced(self.kcp.clone(), self.namespace);
        let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
        kymas.patch(self.kyma, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Waits for an Event about this Kyma with this reason and all message `parts`.
    ///
    /// Tests share the runtime, so the Kyma's uid separates Events of earlier Kymas.
    pub async fn event(&self, reason: &str, parts: &[&str]) -> Result<()> {
        let kymas: Api<Kyma> = Api::namespaced(self.runtime.clone(), RUNTIME_NAMESPACE);
        let events: Api<Event> = Api::namespaced(self.runtime.clone(), RUNTIME_NAMESPACE);
        wait::until(&format!("an Event {reason} with {parts:?}"), SOON, || async {
            let uid = kymas.get(RUNTIME_KYMA_NAME).await?.metadata.uid;
            let mut all =
                events.list(&ListParams::default().fields(&format!("reason={reason}"))).await?.items;
            all.retain(|e| e.involved_object.uid == uid);
            let says = |e: &Event| {
                let message = e.message.as_deref().unwrap_or_default();
                parts.iter().all(|part| message.contains(part))
            };
            ensure!(
                all.iter().any(says),
                "there are: {:?}",
                all.iter().map(|e| &e.message).collect::<Vec<_>>()
            );
            Ok(Some(()))
        })
        .await
    }

    /// Waits until a module version is Ready. Reports workload changes like an agent.
    pub async fn ready(&self, module: &str, version: &str) -> Result<()> {
        self.becomes_ready(module, version, false).await
    }

    /// Waits until a module version is Ready, with events only from an agent.
    pub async fn ready_by_its_agent(&self, module: &str, version: &str) -> Result<()> {
        self.becomes_ready(module, version, true).await
    }

    async fn becomes_ready(&self, module: &str, version: &str, has_agent: bool) -> Result<()> {
        let kymas: Api<Kyma> = Api::namespaced(self.kcp.clone(), self.namespace);
        let what = format!("module {module} to be Ready in version {version}");
        wait::until(&what, SOON, || async {
            let kyma = kymas.get(self.kyma).await?;
            let is = |m: &ModuleStatus| m.state == State::Ready && m.version == version;
            if kyma.module_status(module).is_some_and(is) {
                return Ok(Some(()));
            }
            if let (false, Ok(manifest)) = (has_agent, self.manifest(module).await) {
                let synced = manifest.status.unwrap_or_default().synced;
                for object in synced.iter().filter(|o| o.kind == "Deployment") {
                    self.tell(("apps", "v1", "Deployment"), &object.namespace, &object.name).await?;
                }
            }
            Ok(None)
        })
        .await
    }

    /// Returns a module's Manifest.
    pub async fn manifest(&self, module: &str) -> Result<Manifest> {
        let manifests: Api<Manifest> = Api::namespaced(self.kcp.clone(), self.namespace);
        let label = format!("operator.kyma-project.io/module-name={module}");
        let list = manifests.list(&ListParams::default().labels(&label)).await?;
        let mut items = list.items.into_iter();
        let (Some(one), None) = (items.next(), items.next()) else {
            anyhow::bail!("there is not one Manifest of {module}")
        };
        Ok(one)
    }

    /// Returns the last reconcile of a Manifest.
    pub async fn last(&self, manifest: &Manifest) -> Result<Value> {
        let page = self.receiver.runtime(self.kyma).await?;
        let key = format!("Manifest/{}", manifest.name_any());
        let of_it: Vec<&Value> =
            page["reconciles"].as_array().into_iter().flatten().filter(|r| r["key"] == key).collect();
        let newest = of_it.into_iter().max_by_key(|r| r["finishedAt"].as_str().map(str::to_owned));
        newest.cloned().context("it was never reconciled")
    }

    /// Waits until a module's Manifest waits for an event, and for a scheduled reconcile no earlier than
    /// these seconds, if any.
    pub async fn waits_for_an_event(&self, module: &str, besides: f64) -> Result<()> {
        let manifest = self.manifest(module).await?;
        wait::until("the module to wait for an event, and for nothing else soon", SOON, || async {
            let last = self.last(&manifest).await?;
            let next = last["nextTrySeconds"].as_f64();
            ensure!(next.is_none_or(|next| next > besides), "{last:#}");
            Ok(Some(()))
        })
        .await
    }

    /// Returns an API for a kind in the runtime.
    pub fn objects(
        &self,
        (group, version, kind): (&str, &str, &str),
        namespace: Option<&str>,
    ) -> Api<DynamicObject> {
        let gvk = kube::core::GroupVersionKind::gvk(group, version, kind);
        let resource = ApiResource::from_gvk(&gvk);
        match namespace {
            Some(namespace) => Api::namespaced_with(self.runtime.clone(), namespace, &resource),
            None => Api::all_with(self.runtime.clone(), &resource),
        }
    }

    /// Patches an object as another field manager.
    pub async fn patch(
        &self,
        gvk: (&str, &str, &str),
        namespace: &str,
        name: &str,
        manager: &str,
        fields: &Value,
    ) -> Result<DynamicObject> {
        let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
        Ok(self.objects(gvk, Some(namespace)).patch(name, &params, &Patch::Merge(fields)).await?)
    }

    /// Returns the runtime's count of server-side applies, without Kyma and catalog.
    pub async fn applies(&self) -> Result<u64> {
        Ok(self.object_applies().await?.values().sum())
    }

    /// Returns server-side applies by resource, without Kyma and catalog.
    pub async fn object_applies(&self) -> Result<BTreeMap<String, u64>> {
        let mut all = self.applies_by_resource().await?;
        all.retain(|resource, _| resource != "kymas" && !CATALOG.contains(&resource.as_str()));
        Ok(all)
    }

    /// Returns server-side applies of the catalog.
    pub async fn catalog_applies(&self) -> Result<u64> {
        let all = self.applies_by_resource().await?;
        Ok(all.iter().filter(|(resource, _)| CATALOG.contains(&resource.as_str())).map(|(_, n)| n).sum())
    }

    /// Returns server-side applies in the runtime by resource. Only the engine applies there.
    pub async fn applies_by_resource(&self) -> Result<BTreeMap<String, u64>> {
        self.requests("APPLY").await
    }

    /// Returns requests of this verb by resource, from all clients.
    pub async fn requests(&self, verb: &str) -> Result<BTreeMap<String, u64>> {
        let request = hyper::Request::get("/metrics").body(Vec::new())?;
        let page = self.runtime.request_text(request).await?;
        let verb = format!("verb=\"{verb}\"");
        let mut requests = BTreeMap::new();
        for line in page.lines().filter(|l| l.starts_with("apiserver_request_total{") && l.contains(&verb)) {
            let resource = line.split_once("resource=\"").and_then(|(_, rest)| rest.split('"').next());
            let count = line.rsplit_once(' ').and_then(|(_, n)| n.parse::<u64>().ok());
            *requests.entry(resource.unwrap_or_default().to_owned()).or_default() +=
                count.unwrap_or_default();
        }
        Ok(requests)
    }
}
