//! A module's lifecycle for demo and end-to-end test.
//!
//! Without polls, a lost event causes a timeout. Only one that shortens a deletion's wait (`Finish::Recheck`) can be lost unnoticed.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::Namespace},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
    runtime::wait::{Condition, await_condition},
};
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, Manifest, State,
    names::{KCP_NAMESPACE, RUNTIME_KYMA_NAME, RUNTIME_NAMESPACE},
};
use tokio::time::Instant;

use crate::{
    fixtures, fleet, http,
    report::{Line, Reporter},
    snapshot::Snapshot,
    wait,
};

/// Kyma names and runtime ids.
pub const RUNTIMES: [(&str, &str); 2] = [("harbour", "runtime-harbour"), ("lagoon", "runtime-lagoon")];
const LIMIT: Duration = Duration::from_secs(90);
const SYSTEM: &str = "lighthouse-system";
const MANAGER: &str = "lighthouse-keeper";

/// A runtime of the story.
#[derive(Clone)]
pub struct Runtime {
    /// Administrator's client.
    pub client: Client,
    /// The engine's kubeconfig, inline.
    pub kubeconfig: String,
}

/// Clusters and registry.
#[derive(Clone)]
pub struct Stage {
    /// Client of KCP's administrator.
    pub kcp: Client,
    /// Ordered as [`RUNTIMES`].
    pub runtimes: [Runtime; 2],
    /// Module registry, `host:port`.
    pub registry: String,
}

/// Starts the programs.
pub trait Cast {
    /// Starts the receiver; returns its admin URL once ready.
    fn receiver(&mut self) -> impl Future<Output = Result<String>> + Send;

    /// Starts an agent; returns its admin URL once connected with all watches.
    fn agent(&mut self, runtime: usize) -> impl Future<Output = Result<String>> + Send;
}

/// Running receiver and agents.
#[derive(Clone)]
pub struct World {
    kcp: Client,
    subject: Subject,
    /// Client of the runtime that must not change; none in a single cluster.
    other: Option<Client>,
    /// The receiver's admin URL.
    pub receiver: String,
    /// The agents' admin URLs.
    pub agents: Vec<String>,
}

/// The runtime with the module.
#[derive(Clone)]
struct Subject {
    client: Client,
    /// Its name in the story.
    place: &'static str,
    /// Namespace and name of the Kyma in KCP.
    namespace: &'static str,
    kyma: &'static str,
    id: &'static str,
}

struct Tell<'a> {
    reporter: &'a dyn Reporter,
    started: Instant,
}

impl<'a> Tell<'a> {
    fn start(reporter: &'a dyn Reporter, what: &str) -> Self {
        reporter.working(what);
        Self { reporter, started: Instant::now() }
    }

    fn took(&self) -> Duration {
        Instant::now().duration_since(self.started)
    }

    fn done(&self, what: impl Into<String>) {
        self.reporter.done(Line { what: what.into(), took: self.took(), seq: None });
    }

    /// The number is looked up after the time was taken.
    fn caused(&self, what: impl Into<String>, took: Duration, seq: Option<u64>) {
        self.reporter.done(Line { what: what.into(), took, seq });
    }
}

impl World {
    /// Fills KCP, registers runtimes, starts all programs.
    pub async fn start(stage: Stage, cast: &mut impl Cast, reporter: &dyn Reporter) -> Result<Self> {
        let kcp = &stage.kcp;
        offer_modules(kcp, KCP_NAMESPACE, &stage.registry, reporter).await?;

        let tell = Tell::start(reporter, "starting the receiver");
        let receiver = cast.receiver().await?;
        tell.done("receiver ready: mTLS port open, KCP watched");

        let tell = Tell::start(reporter, "registering both runtimes");
        for ((kyma, id), runtime) in RUNTIMES.iter().zip(&stage.runtimes) {
            fleet::register(kcp, KCP_NAMESPACE, kyma, id, &runtime.kubeconfig).await?;
        }
        for (kyma, _) in RUNTIMES {
            fleet::kyma_in_state(kcp, KCP_NAMESPACE, kyma, State::Ready).await?;
        }
        tell.done("two runtimes registered: Kyma CRD and Kyma created in each, Ready in KCP");

        let tell = Tell::start(reporter, "starting one agent per runtime");
        let mut agents = Vec::new();
        for runtime in 0..RUNTIMES.len() {
            agents.push(cast.agent(runtime).await?);
        }
        tell.done("two agents connected by mTLS, verified by CN and SAN; all watches live");
        let Stage { kcp, runtimes: [runtime1, runtime2], registry: _ } = stage;
        let (kyma, id) = RUNTIMES[0];
        let subject =
            Subject { client: runtime1.client, place: "runtime 1", namespace: KCP_NAMESPACE, kyma, id };
        Ok(Self { kcp, subject, other: Some(runtime2.client), receiver, agents })
    }

    /// Fills one cluster, and starts the receiver that manages it.
    pub async fn start_single(
        client: Client,
        registry: &str,
        cast: &mut impl Cast,
        reporter: &dyn Reporter,
    ) -> Result<Self> {
        let (namespace, kyma) = (RUNTIME_NAMESPACE, RUNTIME_KYMA_NAME);
        offer_modules(&client, namespace, registry, reporter).await?;
        let tell = Tell::start(reporter, "starting the receiver");
        let receiver = cast.receiver().await?;
        tell.done("receiver ready in single-cluster mode: no port for agents, no certificates");

        let tell = Tell::start(reporter, "applying the Kyma");
        let body = json!({
            "apiVersion": "operator.kyma-project.io/v1beta2", "kind": "Kyma",
            "metadata": {"name": kyma, "namespace": namespace}, "spec": {"channel": "regular"}
        });
        fleet::apply_yaml(&client, &body.to_string()).await?;
        fleet::kyma_in_state(&client, namespace, kyma, State::Ready).await?;
        let page = format!("{receiver}/runtimes/{kyma}");
        wait::until("the event path to be proven", LIMIT, || async {
            Ok((http::json(&page).await?["eventPath"] == "proven").then_some(()))
        })
        .await?;
        tell.done(
            "Kyma without kubeconfig Secret applied: Ready, and the cluster's events are proven to arrive",
        );
        let subject = Subject { client: client.clone(), place: "the cluster", namespace, kyma, id: kyma };
        Ok(Self { kcp: client, subject, other: None, receiver, agents: Vec::new() })
    }

    fn runtime1(&self) -> Client {
        self.subject.client.clone()
    }

    fn kcp(&self) -> Client {
        self.kcp.clone()
    }

    /// Plays the story in runtime 1; runtime 2 must not change. A single cluster's Kyma is deleted in the end.
    pub async fn run(&self, reporter: &dyn Reporter) -> Result<()> {
        let tell = Tell::start(reporter, "looking at all runtimes as they are");
        let without_module = Snapshot::take(&self.runtime1()).await?;
        let before = match &self.other {
            Some(other) => Some((other, Snapshot::take(other).await?)),
            None => None,
        };
        tell.done("all runtimes noted as they are, every object of every kind");
        self.enable(reporter).await?;
        self.break_and_repair(reporter).await?;
        self.upgrade(reporter).await?;
        self.remove(reporter, &without_module).await?;
        let Some((runtime2, before)) = before else { return self.delete_kyma(reporter).await };
        let tell = Tell::start(reporter, "comparing runtime 2 with how it was");
        let changes = before.changes(&Snapshot::take(runtime2).await?);
        ensure!(changes.is_empty(), "runtime 2 has changed: {changes:#?}");
        tell.done("runtime 2 is as it was: no object of any kind added, changed or removed");
        Ok(())
    }

    /// Deletes the Kyma of a single cluster, which needs its namespace and CRDs further on.
    async fn delete_kyma(&self, reporter: &dyn Reporter) -> Result<()> {
        let tell = Tell::start(reporter, "deleting the Kyma");
        let Subject { namespace, kyma, .. } = self.subject;
        let kymas: Api<Kyma> = Api::namespaced(self.kcp(), namespace);
        kymas.delete(kyma, &DeleteParams::default()).await?;
        until(kymas, kyma, "the Kyma to go", |k: Option<&Kyma>| k.is_none()).await?;
        let namespaces: Api<Namespace> = Api::all(self.kcp());
        ensure!(namespaces.get(namespace).await?.metadata.deletion_timestamp.is_none(), "the namespace goes");
        tell.done("Kyma deleted; the receiver's namespace and CRDs stay");
        Ok(())
    }

    async fn enable(&self, reporter: &dyn Reporter) -> Result<()> {
        let (runtime, place) = (self.runtime1(), self.subject.place);
        let kcp = self.kcp();
        let since = self.last_seq().await?;
        let tell = Tell::start(reporter, &format!("enabling lighthouse in {place}"));
        set_modules(&runtime, &json!([{"name": "lighthouse"}])).await?;
        let deployments: Api<Deployment> = Api::namespaced(runtime.clone(), SYSTEM);
        until(deployments, MANAGER, "the module's Deployment to appear", |d: Option<&Deployment>| {
            d.is_some()
        })
        .await?;
        let took = tell.took();
        let seq = self.cause("Kyma/", "Kyma", since).await?;
        tell.caused(
            format!("module enabled in the Kyma of {place} -> its Deployment applied there"),
            took,
            seq,
        );

        let beacons = beacons(&runtime);
        until(beacons, "default", "the default CR to appear", |b: Option<&DynamicObject>| b.is_some())
            .await?;
        tell.caused("default CR created (Beacon kyma-system/default)", tell.took(), seq);

        let remote: Api<Kyma> = Api::namespaced(runtime, RUNTIME_NAMESPACE);
        fleet::kyma_where(
            remote,
            RUNTIME_KYMA_NAME,
            "the module to be Ready in the runtime",
            has_ready_module,
        )
        .await?;
        let api: Api<Kyma> = Api::namespaced(kcp, self.subject.namespace);
        fleet::kyma_where(api, self.subject.kyma, "the module to be Ready in KCP", has_ready_module).await?;
        let took = tell.took();
        let seq = self.cause("Manifest/", "Deployment", since).await?;
        let also = if self.other.is_some() { " and in KCP" } else { "" };
        tell.caused(format!("module Ready, in {place}{also}"), took, seq);
        Ok(())
    }

    async fn break_and_repair(&self, reporter: &dyn Reporter) -> Result<()> {
        let deployments: Api<Deployment> = Api::namespaced(self.runtime1(), SYSTEM);
        let old = deployments.get(MANAGER).await?.uid().context("the Deployment has no uid")?;
        let since = self.last_seq().await?;
        let tell = Tell::start(reporter, "deleting the module's Deployment");
        deployments.delete(MANAGER, &DeleteParams::background()).await?;
        until(deployments.clone(), MANAGER, "the Deployment to come back", |d: Option<&Deployment>| {
            d.and_then(ResourceExt::uid).is_some_and(|uid| uid != old)
        })
        .await?;
        let took = tell.took();
        let seq = self.cause("Manifest/", "Deployment", since).await?;
        let place = self.subject.place;
        tell.caused(format!("Deployment deleted by hand in {place} -> restored"), took, seq);

        until(deployments, MANAGER, "the Deployment to be available", |d: Option<&Deployment>| {
            d.and_then(|d| d.status.as_ref()?.available_replicas) == Some(1)
        })
        .await?;
        self.module_ready_in_kcp().await?;
        tell.caused("module Ready again", tell.took(), seq);
        Ok(())
    }

    async fn upgrade(&self, reporter: &dyn Reporter) -> Result<()> {
        let runtime = self.runtime1();
        let since = self.last_seq().await?;
        let tell = Tell::start(reporter, "moving lighthouse to the channel fast");
        set_modules(&runtime, &json!([{"name": "lighthouse", "channel": "fast"}])).await?;
        let kymas: Api<Kyma> = Api::namespaced(runtime.clone(), RUNTIME_NAMESPACE);
        fleet::kyma_where(kymas, RUNTIME_KYMA_NAME, "version 1.1.0 to be Ready", |k| {
            k.module_status("lighthouse").is_some_and(|m| m.version == "1.1.0" && m.state == State::Ready)
        })
        .await?;
        let services: Api<k8s_openapi::api::core::v1::Service> = Api::namespaced(runtime, SYSTEM);
        ensure!(
            services.get_opt("lighthouse-metrics").await?.is_none(),
            "the Service of 1.0.0 was not pruned"
        );
        let took = tell.took();
        let seq = self.cause("Kyma/", "Kyma", since).await?;
        tell.caused("channel regular -> fast: upgraded to 1.1.0, the obsolete Service pruned", took, seq);
        Ok(())
    }

    async fn remove(&self, reporter: &dyn Reporter, without_module: &Snapshot) -> Result<()> {
        let (runtime, place) = (self.runtime1(), self.subject.place);
        let kcp = self.kcp();
        let since = self.last_seq().await?;
        let tell = Tell::start(reporter, &format!("removing lighthouse from {place}"));
        set_modules(&runtime, &json!([])).await?;
        let deployments: Api<Deployment> = Api::namespaced(runtime.clone(), SYSTEM);
        until(deployments, MANAGER, "the module's Deployment to go", |d: Option<&Deployment>| d.is_none())
            .await?;
        let took = tell.took();
        let seq = self.cause("Kyma/", "Kyma", since).await?;
        tell.caused(format!("module removed from the Kyma of {place} -> its Deployment is gone"), took, seq);

        let namespaces: Api<Namespace> = Api::all(runtime.clone());
        until(namespaces, SYSTEM, "the module's namespace to go", |n: Option<&Namespace>| n.is_none())
            .await?;
        let crds: Api<CustomResourceDefinition> = Api::all(runtime.clone());
        until(
            crds,
            "beacons.lighthouse.tidewatch.dev",
            "the module's CRD to go",
            |c: Option<&CustomResourceDefinition>| c.is_none(),
        )
        .await?;
        let manifests: Api<Manifest> = Api::namespaced(kcp, self.subject.namespace);
        wait::until("the Manifest to go", LIMIT, || async {
            Ok(manifests.list(&ListParams::default()).await?.items.is_empty().then_some(()))
        })
        .await?;
        let kymas: Api<Kyma> = Api::namespaced(runtime.clone(), RUNTIME_NAMESPACE);
        fleet::kyma_where(kymas, RUNTIME_KYMA_NAME, "the module to leave the status", |k| {
            k.status.as_ref().is_some_and(|s| s.modules.is_empty() && s.state == State::Ready)
        })
        .await?;
        let took = tell.took();
        // The API server's own cleanup is delayed.
        wait::until("nothing of the module to be left", LIMIT, || async {
            let left = without_module.added(&Snapshot::take(&runtime).await?);
            ensure!(left.is_empty(), "left behind: {left:#?}");
            Ok(Some(()))
        })
        .await?;
        tell.caused("every object of the module is gone; Kyma Ready without it", took, seq);
        Ok(())
    }

    async fn module_ready_in_kcp(&self) -> Result<()> {
        let api: Api<Kyma> = Api::namespaced(self.kcp(), self.subject.namespace);
        fleet::kyma_where(api, self.subject.kyma, "the module to be Ready in KCP", has_ready_module).await?;
        Ok(())
    }

    async fn last_seq(&self) -> Result<u64> {
        let Some(agent) = self.agents.first() else {
            let all = self.causes("").await?;
            return Ok(all.iter().filter_map(|cause| cause["seq"].as_u64()).max().unwrap_or(0));
        };
        Ok(http::json(&format!("{agent}/status")).await?["lastObservedSeq"].as_u64().unwrap_or(0))
    }

    /// Returns the event after `since` about a `kind` that caused a reconcile of `key`. For a Kyma edit use its own key: a reconcile in
    /// flight may have changed the Manifest already. Without agents, an edit of the Kyma is a change in KCP, and no event.
    async fn cause(&self, key: &str, kind: &str, since: u64) -> Result<Option<u64>> {
        if self.agents.is_empty() && kind == "Kyma" {
            return Ok(None);
        }
        let what = format!("a reconcile of {key} that was caused by an event about a {kind} after #{since}");
        wait::until(&what, LIMIT, || async {
            let causes = self.causes(key).await?;
            let found = causes
                .iter()
                .filter(|c| c["type"] == "event" && c["object"].as_str().is_some_and(|o| o.starts_with(kind)))
                .filter_map(|c| c["seq"].as_u64())
                .find(|seq| *seq > since);
            Ok(found)
        })
        .await
        .map(Some)
    }

    /// Returns the causes of the reconciles of `key`.
    async fn causes(&self, key: &str) -> Result<Vec<Value>> {
        let page = http::json(&format!("{}/runtimes/{}", self.receiver, self.subject.id)).await?;
        let records = page["reconciles"].as_array().cloned().unwrap_or_default();
        let of_key = records.iter().filter(|r| r["key"].as_str().is_some_and(|k| k.starts_with(key)));
        Ok(of_key.flat_map(|r| r["causes"].as_array().cloned().unwrap_or_default()).collect())
    }
}

/// Installs the CRDs, and offers two versions of `lighthouse`.
async fn offer_modules(kcp: &Client, namespace: &str, registry: &str, reporter: &dyn Reporter) -> Result<()> {
    let tell = Tell::start(reporter, "installing the CRDs and the module lighthouse");
    fleet::prepare_kcp(kcp, namespace).await?;
    for (version, manifest) in [("1.0.0", fixtures::LIGHTHOUSE_1_0_0), ("1.1.0", fixtures::LIGHTHOUSE_1_1_0)]
    {
        fleet::push_lighthouse(registry, version, manifest).await?;
        fleet::offer_template(kcp, namespace, version).await?;
    }
    fleet::release(kcp, namespace, &[("regular", "1.0.0"), ("fast", "1.1.0")]).await?;
    tell.done("CRDs installed in KCP; lighthouse 1.0.0, 1.1.0 pushed to the registry and released");
    Ok(())
}

fn has_ready_module(kyma: &Kyma) -> bool {
    kyma.module_status("lighthouse").is_some_and(|m| m.state == State::Ready)
        && kyma.status.as_ref().is_some_and(|s| s.state == State::Ready)
}

/// Edits the module list as users do.
pub async fn set_modules(runtime: &Client, modules: &Value) -> Result<()> {
    let api: Api<Kyma> = Api::namespaced(runtime.clone(), RUNTIME_NAMESPACE);
    let patch = Patch::Merge(json!({"spec": {"modules": modules}}));
    api.patch(RUNTIME_KYMA_NAME, &PatchParams::default(), &patch).await?;
    Ok(())
}

fn beacons(client: &Client) -> Api<DynamicObject> {
    let gvk = GroupVersionKind::gvk("lighthouse.tidewatch.dev", "v1alpha1", "Beacon");
    let resource = ApiResource::from_gvk_with_plural(&gvk, "beacons");
    Api::namespaced_with(client.clone(), RUNTIME_NAMESPACE, &resource)
}

async fn until<K>(api: Api<K>, name: &str, what: &str, is: impl Condition<K>) -> Result<()>
where
    K: Clone + std::fmt::Debug + Send + serde::de::DeserializeOwned + kube::Resource + 'static,
{
    // Watches fail before the kind is installed.
    let deadline = Instant::now() + LIMIT;
    loop {
        // `Condition` is not `Clone`.
        let watching = await_condition(api.clone(), name, |o: Option<&K>| is.matches_object(o));
        match tokio::time::timeout_at(deadline, watching).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) if Instant::now() < deadline => {
                if !matches!(&error, kube::runtime::wait::Error::ProbeFailed(_)) {
                    return Err(error.into());
                }
                wait::pause().await;
            }
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => bail!("timed out after {LIMIT:?} waiting for {what}"),
        }
    }
}
