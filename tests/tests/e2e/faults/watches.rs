//! Watches with silently broken connections, and changed kinds.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::{
    api::core::v1::ServiceAccount,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams},
    runtime::wait::{await_condition, conditions},
};
use serde_json::{Value, json};
use tidewatch_real_only::real_only;
use tidewatch_tests::{
    ControlPlane,
    by_hand::Settings,
    censor::Censor,
    env,
    faulty::{Blow, Proxy},
    fleet::{self, Agent, Member, Receiver},
    kcp,
    observed::{self, metric},
    spare, wait,
};
use tokio::time::Instant;

use super::rig::{NOTICED, SOON};

const MANAGER: &str = "tidewatch-tests";

/// An agent with one watch. KCP has only the Kyma's name, so its events have no owner.
struct Watching {
    receiver: Receiver,
    agent: Agent,
    way: Proxy,
}

impl Watching {
    async fn start(
        name: &str,
        cluster: &ControlPlane,
        api: &str,
        group: &str,
        resource: &str,
    ) -> Result<Self> {
        let env = env::shared().await?;
        let (namespace, id) = (format!("kcp-{name}"), format!("runtime-{name}"));
        let control = env.kcp.client()?;
        fleet::prepare_kcp(&control, &namespace).await?;
        let member = Member { cluster, kyma: name, id: &id };
        kcp::put_kyma(&control, &namespace, name, &id, Some(&member.domain())).await?;
        let receiver = Receiver::start_without_agents(
            &env.harness,
            &env.kcp,
            &namespace,
            &env.registry.of(&namespace),
            Vec::new(),
        )
        .await?;
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name},
            "rules": [{"apiGroups": [group], "resources": [resource], "verbs": ["get", "list", "watch"]}]});
        let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": fleet::AGENT_USER}]});
        fleet::apply_yaml(&cluster.client()?, &format!("{role}\n---\n{binding}")).await?;
        let way = Proxy::before(&receiver.url).await?;
        let watches = json!([{"name": name, "group": group, "resource": resource, "field": "spec",
                              "labels": {"tidewatch.dev/test": name}}]);
        let settings = Settings { protocol: "v3", receiver: &way.url(), api, watches, follows_engine: false };
        let agent = settings.start(&env.harness, &receiver, &member).await?;
        agent.connected().await?;
        Ok(Self { receiver, agent, way })
    }

    async fn events(&self, change: &str) -> Result<u64> {
        let series = format!(
            "tidewatch_receiver_events_total{{change=\"{change}\",contract=\"v3\",fate=\"unowned\"}}"
        );
        metric(&self.receiver.admin, &series).await
    }

    /// Waits for one more event than `before`, acknowledged at the agent.
    async fn one_more(&self, change: &str, before: u64, within: Duration) -> Result<()> {
        wait::until(&format!("one more event {change}"), within, || async {
            Ok((self.events(change).await? > before).then_some(()))
        })
        .await
        .with_context(|| self.agent.process.log_tail(25))?;
        self.agent.connected().await
    }

    fn healthy(&self) -> Result<()> {
        observed::no_panic(&self.receiver.process)?;
        observed::no_panic(&self.agent.process)
    }
}

/// Detects a deletion behind a half-open watch.
async fn half_open() -> Result<()> {
    let cluster = &spare::shared().await?.runtime3;
    let name = "half-open";
    let api = Proxy::before(cluster.url()).await?;
    let watching = Watching::start(name, cluster, &api.url(), "", "serviceaccounts").await?;
    let accounts: Api<ServiceAccount> = Api::default_namespaced(cluster.client()?);
    for account in ["half-open-1", "half-open-2"] {
        let body = json!({"apiVersion": "v1", "kind": "ServiceAccount",
                          "metadata": {"name": account, "labels": {"tidewatch.dev/test": name}}});
        let before = watching.events("changed").await?;
        accounts.patch(account, &PatchParams::apply(MANAGER), &Patch::Apply(body)).await?;
        watching.one_more("changed", before, SOON).await?;
    }

    // Each watch has its own connection. New connections work, so only silence reveals the fault.
    let (gone, connections) = (watching.events("gone").await?, api.accepted());
    api.strike(Blow::HalfOpen);
    accounts.delete("half-open-1", &DeleteParams::background()).await?;
    watching.one_more("gone", gone, NOTICED).await?;
    ensure!(api.accepted() > connections, "it was heard on a connection that is dead");
    watching.healthy()
}

/// Detects a dropped event on a healthy watch: by a list of few objects, or by a repeated watch of many.
async fn swallowed(name: &str, many: usize) -> Result<()> {
    let cluster = &spare::shared().await?.runtime3;
    let api = Censor::before(cluster.client_of(fleet::AGENT_USER)?).await?;
    let accounts: Api<ServiceAccount> = Api::default_namespaced(cluster.client()?);
    let put = async |account: &str| {
        let body = json!({"apiVersion": "v1", "kind": "ServiceAccount",
                          "metadata": {"name": account, "labels": {"tidewatch.dev/test": name}}});
        accounts.patch(account, &PatchParams::apply(MANAGER), &Patch::Apply(body)).await
    };
    // Created first: the initial count sets the list interval.
    let others: Vec<_> = (0..many).map(|n| format!("{name}-other-{n}")).collect();
    stream::iter(&others)
        .map(|other| put(other))
        .buffer_unordered(16)
        .try_for_each(|_| async { Ok(()) })
        .await?;
    let watching = Watching::start(name, cluster, api.url(), "", "serviceaccounts").await?;
    let (first, second) = (format!("{name}-1"), format!("{name}-2"));
    let before = watching.events("changed").await?;
    put(&first).await?;
    watching.one_more("changed", before, SOON).await?;

    if many == 0 {
        api.forbid(&first);
    } else {
        api.forbid_once(&first);
    }
    let gone = watching.events("gone").await?;
    accounts.delete(&first, &DeleteParams::background()).await?;
    wait::until("the event to be swallowed", SOON, || async { Ok((api.swallowed() > 0).then_some(())) })
        .await?;
    // The watch itself continues.
    let before = watching.events("changed").await?;
    put(&second).await?;
    watching.one_more("changed", before, SOON).await?;
    ensure!(watching.events("gone").await? == gone, "it was not swallowed");
    watching.one_more("gone", gone, NOTICED).await?;
    let by = if many == 0 { "list" } else { "replay" };
    let missed = format!("tidewatch_agent_watch_checks_total{{by=\"{by}\",result=\"missed\"}}");
    ensure!(metric(&watching.agent.admin, &missed).await? == 1, "{}", watching.agent.process.log_tail(25));
    watching.healthy()
}

fn crd(versions: &[(&str, bool, bool)]) -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {
        "spec": {"type": "object", "properties": {"height": {"type": "integer"}}}}}});
    let versions: Vec<Value> = versions
        .iter()
        .map(|(name, served, storage)| json!({"name": name, "served": served, "storage": storage, "schema": schema}))
        .collect();
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
           "metadata": {"name": "tides.faults.tidewatch.dev"},
           "spec": {"group": "faults.tidewatch.dev", "scope": "Namespaced", "versions": versions,
                    "names": {"kind": "Tide", "listKind": "TideList", "plural": "tides", "singular": "tide"}}})
}

/// Watches a kind across version changes, then loses an answer after the receiver accepted the event.
async fn versions() -> Result<()> {
    let cluster = &spare::shared().await?.runtime4;
    let (name, client) = ("versions", cluster.client()?);
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let serve = |versions: &'static [(&str, bool, bool)]| {
        let crds = crds.clone();
        async move {
            let name = "tides.faults.tidewatch.dev";
            crds.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(crd(versions))).await?;
            let served = await_condition(crds, name, conditions::is_crd_established());
            tokio::time::timeout(SOON, served).await.context("the CRD is not established")??;
            anyhow::Ok(())
        }
    };
    serve(&[("v1alpha1", true, true)]).await?;
    let watching = Watching::start(name, cluster, cluster.url(), "faults.tidewatch.dev", "tides").await?;
    let rise = |version: &'static str, height: u64| {
        let gvk = GroupVersionKind::gvk("faults.tidewatch.dev", version, "Tide");
        let api: Api<DynamicObject> =
            Api::default_namespaced_with(client.clone(), &ApiResource::from_gvk_with_plural(&gvk, "tides"));
        let body = json!({"apiVersion": gvk.api_version(), "kind": "Tide", "spec": {"height": height},
                          "metadata": {"name": "high", "labels": {"tidewatch.dev/test": name}}});
        let watching = &watching;
        async move {
            // New versions are not served everywhere at once.
            let before = wait::until(&format!("height {height} to be taken in {version}"), SOON, || async {
                let before = watching.events("changed").await?;
                api.patch("high", &PatchParams::apply(MANAGER).force(), &Patch::Apply(&body)).await?;
                Ok(Some(before))
            })
            .await?;
            watching.one_more("changed", before, SOON).await.with_context(|| format!("height {height}"))
        }
    };
    rise("v1alpha1", 1).await?;
    // Both versions with a new storage version, then only the new one.
    serve(&[("v1alpha1", true, false), ("v1", true, true)]).await?;
    rise("v1alpha1", 2).await?;
    rise("v1", 3).await?;
    let gone = watching.events("gone").await?;
    serve(&[("v1alpha1", false, false), ("v1", true, true)]).await?;
    rise("v1", 4).await?;
    let resolved = || async {
        let status = watching.agent.status().await?;
        Ok((status["watches"][0]["resolved"] == "faults.tidewatch.dev/v1/Tide").then_some(()))
    };
    watching.agent.process.ready("to watch the new version", SOON, resolved).await?;
    rise("v1", 5).await?;
    ensure!(watching.events("gone").await? == gone, "what is still there was told as gone");

    watching.way.strike(Blow::SwallowAnswers);
    let begun = Instant::now();
    rise("v1", 6).await.context("answers are swallowed")?;
    ensure!(begun.elapsed() < NOTICED && watching.way.lost() > 0, "{:?}", begun.elapsed());
    watching.healthy()
}

/// One test: it mostly waits, and several would block other tests.
#[real_only("the stored version of a kind changes, and etcd forgets what was")]
#[tokio::test(flavor = "multi_thread")]
async fn silent_watches_and_lost_events_lose_no_change() -> Result<()> {
    let (silent, few, many, new) = futures::future::join4(
        Box::pin(half_open()),
        Box::pin(swallowed("swallowed", 0)),
        // Fully read kinds list five objects per second, so the next list is minutes away.
        Box::pin(swallowed("swallowed-of-many", 900)),
        Box::pin(versions()),
    )
    .await;
    silent.context("half-open watches")?;
    few.context("a swallowed event")?;
    many.context("a swallowed event, among many objects")?;
    new.context("versions and answers")
}
