//! A receiver of its own on a namespace of its own in KCP, with one Kyma, on a spare runtime. For tests of what the engine does
//! in one runtime: they say by a v2 event what an agent would, and so decide when.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    ControlPlane,
    berths::{self, Alone},
    env::{self, Environment},
    fleet::{self, Agent, Member, Receiver},
    http,
    modules::Version,
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

/// See the module.
pub struct Solo {
    /// What all tests share.
    pub env: &'static Environment,
    /// The KCP.
    pub kcp: Client,
    /// The runtime.
    pub cluster: &'static ControlPlane,
    /// A client of it.
    pub runtime: Client,
    /// The receiver.
    pub receiver: Receiver,
    /// The namespace in KCP.
    pub namespace: &'static str,
    /// The Kyma.
    pub kyma: &'static str,
    // Last: the receiver has ended before another test may use the runtime.
    _alone: Alone,
}

impl Solo {
    /// Starts the receiver, registers the runtime and waits until its Kyma, which has no modules, is Ready.
    pub async fn start(namespace: &'static str, kyma: &'static str) -> Result<Self> {
        Self::start_with(namespace, kyma, Vec::new()).await
    }

    /// The same, with further arguments for the receiver.
    pub async fn start_with(
        namespace: &'static str,
        kyma: &'static str,
        arguments: Vec<String>,
    ) -> Result<Self> {
        let (env, alone) = (env::shared().await?, berths::alone().await?);
        let cluster = alone.cluster;
        spare::take_over(cluster).await?;
        let kcp = env.kcp.client()?;
        fleet::prepare_kcp(&kcp, namespace).await?;
        let (modules, more) = (env.registry.of(namespace), |_: &_| Ok(arguments));
        let receiver = Receiver::start_with(&env.harness, &env.kcp, namespace, &modules, more).await?;
        let member = Member { cluster, kyma, id: kyma };
        fleet::register(&kcp, namespace, &member).await?;
        fleet::kyma_in_state(&kcp, namespace, kyma, State::Ready).await?;
        let runtime = cluster.client()?;
        Ok(Self { env, kcp, cluster, runtime, receiver, namespace, kyma, _alone: alone })
    }

    /// Starts an agent in the runtime whose file watches nothing: all that it watches comes from the engine.
    pub async fn agent(&self) -> Result<Agent> {
        let member = Member { cluster: self.cluster, kyma: self.kyma, id: self.kyma };
        let identity = self.receiver.identity(&self.env.harness, member.id, &member.domain())?;
        let watches = json!([]);
        Agent::start_with(&self.env.harness, &self.receiver, &member, identity, watches).await
    }

    /// Waits until the agent watches this and whatever else it should, nothing of what it has said is unacknowledged, and its
    /// way is proven.
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

    /// Pushes and releases a version of a module.
    pub async fn offer(&self, version: &Version) -> Result<()> {
        version.offer(&self.kcp, self.namespace, &self.env.registry.of(self.namespace)).await
    }

    /// Sets the list of modules in the runtime's Kyma, and says so.
    pub async fn enable(&self, modules: &Value) -> Result<()> {
        story::set_modules(&self.runtime, modules).await?;
        self.tell((GROUP, VERSION, "Kyma"), RUNTIME_NAMESPACE, RUNTIME_KYMA_NAME).await
    }

    /// Says that an object has changed.
    pub async fn tell(&self, gvk: (&str, &str, &str), namespace: &str, name: &str) -> Result<()> {
        let member = Member { cluster: self.cluster, kyma: self.kyma, id: self.kyma };
        self.receiver.tell(&self.env.harness, &member, gvk, namespace, name).await
    }

    /// Says that an object has changed, and waits until a reconcile of its Manifest that began after that has ended.
    pub async fn told(&self, gvk: (&str, &str, &str), namespace: &str, name: &str) -> Result<()> {
        self.looked("Manifest", gvk, namespace, name).await
    }

    /// Says that the Kyma has changed, and waits until a reconcile of it that began after that has ended.
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

    /// Reconciles of a kind of key that have ended.
    pub async fn reconciles(&self, kind: &str) -> Result<u64> {
        let page = http::text(&format!("{}/metrics", self.receiver.admin)).await?;
        let kind = format!("kind=\"{kind}\"");
        let ended = page
            .lines()
            .filter(|line| line.starts_with("tidewatch_receiver_reconciles_total{") && line.contains(&kind));
        Ok(ended.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum())
    }

    /// Waits until the status of a module in KCP's Kyma is as wanted.
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

    /// Waits until nothing of a module is left: no entry in the status, no Manifest.
    pub async fn gone(&self, module: &str) -> Result<()> {
        wait::until(&format!("module {module} to be gone"), SOON, || async {
            let manifests: Api<Manifest> = Api::namespaced(self.kcp.clone(), self.namespace);
            let label = format!("operator.kyma-project.io/module-name={module}");
            Ok(manifests.list(&ListParams::default().labels(&label)).await?.items.is_empty().then_some(()))
        })
        .await
    }

    /// Sets labels of KCP's Kyma; `null` takes one away.
    pub async fn label(&self, labels: &Value) -> Result<()> {
        let kymas: Api<Kyma> = Api::namespaced(self.kcp.clone(), self.namespace);
        let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
        kymas.patch(self.kyma, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Waits until an Event of that reason whose message has all of `parts` has been told about the runtime's Kyma. Tests
    /// share the runtime, and what was told about the Kymas before this one stays: only its uid tells them apart.
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

    /// Waits until a module is Ready in a version. What its workloads' controllers do meanwhile is told, as an agent would.
    pub async fn ready(&self, module: &str, version: &str) -> Result<()> {
        self.becomes_ready(module, version, false).await
    }

    /// The same where an agent tells, and nobody else.
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

    /// The Manifest of a module.
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

    /// The last reconcile of a Manifest.
    pub async fn last(&self, manifest: &Manifest) -> Result<Value> {
        let page = self.receiver.runtime(self.kyma).await?;
        let key = format!("Manifest/{}", manifest.name_any());
        let of_it: Vec<&Value> =
            page["reconciles"].as_array().into_iter().flatten().filter(|r| r["key"] == key).collect();
        let newest = of_it.into_iter().max_by_key(|r| r["finishedAt"].as_str().map(str::to_owned));
        newest.cloned().context("it was never reconciled")
    }

    /// Waits until a module's Manifest waits for an event, and besides for what comes in so many seconds at the earliest, if anything.
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

    /// Objects of a kind in the runtime.
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

    /// Writes fields of an object in the runtime as another field manager.
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

    /// Server-side applies of anything but the Kyma and the catalog that the runtime's API server has answered.
    pub async fn applies(&self) -> Result<u64> {
        Ok(self.object_applies().await?.values().sum())
    }

    /// The same, by resource.
    pub async fn object_applies(&self) -> Result<BTreeMap<String, u64>> {
        let mut all = self.applies_by_resource().await?;
        all.retain(|resource, _| resource != "kymas" && !CATALOG.contains(&resource.as_str()));
        Ok(all)
    }

    /// The same of the catalog.
    pub async fn catalog_applies(&self) -> Result<u64> {
        let all = self.applies_by_resource().await?;
        Ok(all.iter().filter(|(resource, _)| CATALOG.contains(&resource.as_str())).map(|(_, n)| n).sum())
    }

    /// Server-side applies that the runtime's API server has answered, by resource. Of all that works there, only our engine makes
    /// any.
    pub async fn applies_by_resource(&self) -> Result<BTreeMap<String, u64>> {
        self.requests("APPLY").await
    }

    /// Requests of this verb that the runtime's API server has answered, by resource, whoever has made them.
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
