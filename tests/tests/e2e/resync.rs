//! What an agent finds out at its start, and what it does not say again.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, ServiceAccount},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    runtime::wait::{await_condition, conditions},
};
use serde_json::json;
use tidewatch_api::{State, Watcher, names::API_VERSION};
use tidewatch_tests::{
    env, fixtures,
    fleet::{self, Agent, Member, Receiver},
    http,
    observed::{self, metric},
    runtime_pool::{self, Alone},
    solo::Solo,
    spare, story, wait,
};

const NAMESPACE: &str = "kcp-resync";
const SYSTEM: &str = "lighthouse-system";
const MANAGER: &str = "lighthouse-keeper";
/// Of the module, of these tests alone.
const VERSION: &str = "1.0.9";
const SOON: Duration = Duration::from_mins(1);
/// The engine has each agent watch its runtime's Kyma.
const KYMA: &str = "engine.kymas.operator.kyma-project.io.spec";
const NAMESPACES: &str = "engine.namespaces.spec";
const CRDS: &str = "engine.customresourcedefinitions.apiextensions.k8s.io.spec";
/// Watches of a runtime without modules.
const FIRST: [&str; 3] = [KYMA, NAMESPACES, CRDS];
/// Watches of a runtime with the module.
const WATCHES: [&str; 5] =
    [KYMA, NAMESPACES, CRDS, "engine.deployments.apps.spec", "engine.deployments.apps.status"];

struct World {
    receiver: Receiver,
    member: Member<'static>,
    _alone: Alone,
}

impl World {
    /// Starts the agent and waits until it has nothing left to say.
    async fn agent(&self, watches: &[&str]) -> Result<Agent> {
        let agent = Agent::start(&env::shared().await?.harness, &self.receiver, &self.member).await?;
        self.all_compared(&agent, watches).await?;
        Ok(agent)
    }

    async fn all_compared(&self, agent: &Agent, watches: &[&str]) -> Result<()> {
        for watch in watches {
            agent
                .process
                .ready(&format!("to have compared {watch}"), SOON, || async {
                    let (equal, different) =
                        (compared(agent, watch, "equal").await?, compared(agent, watch, "different").await?);
                    Ok((equal + different > 0).then_some(()))
                })
                .await?;
        }
        self.at_rest(agent).await
    }

    /// Until there is nothing to reconcile, not even later.
    async fn at_rest(&self, agent: &Agent) -> Result<()> {
        agent.connected().await?;
        fleet::has_nothing_to_do(&self.receiver).await?;
        agent.connected().await
    }

    /// The receiver has believed the digest of the agent before: of the user's Kyma, which nobody has changed, nothing was told again.
    async fn is_claimed(&self, agent: &Agent) -> Result<()> {
        if compared(agent, KYMA, "equal").await? != 1 {
            let page = http::text(&format!("{}/runtimes/{}", self.receiver.admin, self.member.id)).await?;
            bail!("what had not changed is told again; what was reconciled: {page}");
        }
        Ok(())
    }

    /// As a rolling update ends it.
    async fn end(&self, mut agent: Agent) -> Result<()> {
        self.at_rest(&agent).await?;
        agent.process.begin_end();
        wait::until("the agent to end", SOON, || async { Ok(agent.process.ended()) }).await?;
        observed::no_panic(&agent.process)
    }

    fn deployments(&self) -> Result<Api<Deployment>> {
        Ok(Api::namespaced(self.member.cluster.client()?, SYSTEM))
    }

    async fn deployment(&self, what: &str, is: impl Fn(&Deployment) -> bool) -> Result<Deployment> {
        let api = self.deployments()?;
        wait::until(what, SOON, || async { Ok(api.get_opt(MANAGER).await?.filter(&is)) }).await
    }

    async fn delete_deployment(&self, uid: &str) -> Result<()> {
        let api = self.deployments()?;
        api.delete(MANAGER, &DeleteParams::background()).await?;
        let gone = await_condition(api, MANAGER, conditions::is_deleted(uid));
        tokio::time::timeout(SOON, gone).await.context("the Deployment does not go")??;
        Ok(())
    }
}

async fn compared(agent: &Agent, watch: &str, result: &str) -> Result<u64> {
    let series = format!("tidewatch_agent_digest_comparisons_total{{result=\"{result}\",watch=\"{watch}\"}}");
    metric(&agent.admin, &series).await
}

async fn sent(agent: &Agent) -> Result<u64> {
    metric(&agent.admin, "tidewatch_agent_events_sent_total").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_agent_reports_only_missed_changes() -> Result<()> {
    let (env, alone) = (env::shared().await?, runtime_pool::alone().await?);
    spare::take_over(alone.cluster).await?;
    let kcp = env.kcp.client()?;
    fleet::prepare_kcp(&kcp, NAMESPACE).await?;
    // Ready without pods, of which this runtime has none: a module that is not would be looked at again at set times, and a look at
    // the wrong moment ends the claim of a digest, as any reconcile does.
    let objects = fixtures::LIGHTHOUSE_1_0_0.replace("replicas: 1", "replicas: 0");
    ensure!(objects != fixtures::LIGHTHOUSE_1_0_0, "the module's Deployment asks for no replicas");
    fleet::push_lighthouse(&env.registry.of(NAMESPACE), VERSION, &objects).await?;
    fleet::offer_template(&kcp, NAMESPACE, VERSION).await?;
    fleet::release(&kcp, NAMESPACE, &[("regular", VERSION)]).await?;
    let receiver = Receiver::start(&env.harness, &env.kcp, NAMESPACE, &env.registry.of(NAMESPACE)).await?;
    let member = Member { cluster: alone.cluster, kyma: "resync", id: "runtime-resync" };
    fleet::register(&kcp, NAMESPACE, &member).await?;
    fleet::kyma_in_state(&kcp, NAMESPACE, member.kyma, State::Ready).await?;
    let mut world = World { receiver, member, _alone: alone };

    // A first start knows nothing.
    let agent = world.agent(&FIRST).await?;
    for watch in FIRST {
        ensure!(compared(&agent, watch, "different").await? == 1, "{watch} knows of an earlier run");
    }
    story::set_modules(&member.cluster.client()?, &json!([{"name": "lighthouse"}])).await?;
    let first = world.deployment("the module's Deployment", |_| true).await?;
    world.all_compared(&agent, &WATCHES).await?;

    // Nothing has changed: one list of each watch and not one event.
    world.end(agent).await?;
    let agent = world.agent(&WATCHES).await?;
    for watch in WATCHES {
        ensure!(compared(&agent, watch, "equal").await? == 1, "{watch}: {}", agent.process.log_tail(40));
    }
    ensure!(sent(&agent).await? == 0, "events of an unchanged runtime: {}", agent.process.log_tail(40));

    // Deleted while the agent is down.
    world.end(agent).await?;
    world.delete_deployment(&first.uid().context("no uid")?).await?;
    let agent = world.agent(&WATCHES).await?;
    let second = world.deployment("the Deployment to be restored", |_| true).await?;
    world.is_claimed(&agent).await?;

    // Deleted and made again with the same generation, but not as it should be.
    world.end(agent).await?;
    let second = world.deployments()?.get(&second.name_any()).await?;
    world.delete_deployment(&second.uid().context("no uid")?).await?;
    let mut impostor = second.clone();
    impostor.metadata = kube::core::ObjectMeta {
        name: Some(MANAGER.to_owned()),
        labels: second.metadata.labels.clone(),
        ..kube::core::ObjectMeta::default()
    };
    impostor.spec.as_mut().context("no spec")?.replicas = Some(1);
    let impostor = world.deployments()?.create(&PostParams::default(), &impostor).await?;
    ensure!(impostor.metadata.generation == second.metadata.generation, "this shows nothing: {impostor:#?}");
    let agent = world.agent(&WATCHES).await?;
    let replicas = |d: &Deployment| d.spec.as_ref().and_then(|s| s.replicas);
    let corrected = world.deployment("the impostor to be corrected", |d| replicas(d) == Some(0)).await?;
    world.is_claimed(&agent).await?;

    // A receiver that restarts knows its past.
    world.at_rest(&agent).await?;
    world.receiver.restart().await?;
    world.at_rest(&agent).await?;
    ensure!(compared(&agent, KYMA, "different").await? == 0, "a usual restart costs no resync");

    // One whose control plane comes from a backup does not, even if the backup is of the same session. What is recorded
    // of it rises while there is work, and the agent has heard of it.
    let sessions: Api<ConfigMap> = Api::namespaced(kcp.clone(), NAMESPACE);
    let recorded = async || anyhow::Ok(sessions.get("tidewatch-sessions").await?.data.unwrap_or_default());
    let backup = recorded().await?;
    let mut last = corrected;
    for _ in 0..2 {
        let before = recorded().await?;
        world.delete_deployment(&last.uid().context("no uid")?).await?;
        last = world.deployment("the Deployment to be restored", |_| true).await?;
        wait::until("the work to be marked", SOON, || async {
            Ok((recorded().await? != before).then_some(()))
        })
        .await?;
    }
    world.at_rest(&agent).await?;
    let restored = Patch::Merge(json!({"data": backup}));
    sessions.patch("tidewatch-sessions", &PatchParams::default(), &restored).await?;
    world.delete_deployment(&last.uid().context("no uid")?).await?;
    wait::until("the receiver to see that its session is not known", SOON, || async {
        Ok(world.receiver.process.ended())
    })
    .await?;
    world.receiver.start_again().await?;
    for watch in WATCHES {
        agent
            .process
            .ready(&format!("to report all of {watch}"), SOON, || async {
                Ok((compared(&agent, watch, "different").await? > 0).then_some(()))
            })
            .await?;
    }
    world.at_rest(&agent).await?;
    ensure!(metric(&world.receiver.admin, "tidewatch_receiver_resync_answers_total").await? > 0, "not asked");
    observed::no_panic(&world.receiver.process)?;
    observed::no_panic(&agent.process)
}

/// Objects in one watch.
const MANY: usize = 2_000;

#[tokio::test(flavor = "multi_thread")]
async fn objects_enter_and_leave_a_selector_by_the_thousand() -> Result<()> {
    let namespace = "kcp-selector";
    let solo = Solo::start_watched(namespace, "selector", Vec::new()).await?;
    let watchers: Api<Watcher> = Api::namespaced(solo.kcp.clone(), namespace);
    let watcher = json!({
        "apiVersion": API_VERSION, "kind": "Watcher", "metadata": {"name": "accounts"},
        "spec": {"manager": "lifecycle-manager", "field": "spec", "labelsToWatch": {"tidewatch.dev/test": "in"},
                 "resourceToWatch": {"group": "", "version": "v1", "resource": "serviceaccounts"},
                 "serviceInfo": {"name": "events", "namespace": "kcp-system", "port": 8082},
                 "gateway": {"selector": {"matchLabels": {"a": "b"}}}}
    });
    watchers.patch("accounts", &PatchParams::apply("tidewatch-tests"), &Patch::Apply(watcher)).await?;
    let watch = format!("{namespace}.accounts");

    // Without spec and without generation. A third of them is in the selector from the start.
    let api: Api<ServiceAccount> = Api::default_namespaced(solo.runtime.clone());
    let name = |n: usize| format!("selector-{n}");
    let put = |n: usize, mark: &'static str| {
        let (api, name) = (api.clone(), name(n));
        async move {
            let body = json!({"apiVersion": "v1", "kind": "ServiceAccount",
                              "metadata": {"name": name, "labels": {"tidewatch.dev/test": mark}}});
            api.patch(&name, &PatchParams::apply("tidewatch-tests"), &Patch::Apply(body)).await.map(drop)
        }
    };
    let put_all = |which: std::ops::Range<usize>, mark: &'static str| {
        stream::iter(which).map(Ok).try_for_each_concurrent(16, move |n| put(n, mark))
    };
    put_all(0..MANY / 2, "in").await?;
    put_all(MANY / 2..MANY, "out").await?;

    let agent = solo.agent().await?;
    let objects = |count: usize| {
        let (agent, watch) = (&agent, &watch);
        async move {
            let what = format!("to remember {count} objects");
            let is = || async {
                let page = agent.status().await?;
                let mut all = page["watches"].as_array().into_iter().flatten();
                Ok(all.any(|w| w["name"] == **watch && w["objects"] == count).then_some(()))
            };
            agent.process.ready(&what, SOON, is).await?;
            agent.connected().await
        }
    };
    objects(MANY / 2).await?;
    put_all(MANY / 2..MANY, "in").await?;
    objects(MANY).await?;
    put_all(0..MANY - 1, "out").await?;
    objects(1).await?;
    // Each object's way in and out was told, whatever became of those in between.
    let event = |change: &str| {
        let series = format!(
            "tidewatch_receiver_events_total{{change=\"{change}\",contract=\"v3\",fate=\"unowned\"}}"
        );
        let admin = solo.receiver.admin.clone();
        async move { metric(&admin, &series).await }
    };
    ensure!(event("changed").await? >= MANY as u64, "{} came", event("changed").await?);
    ensure!(event("gone").await? >= MANY as u64 - 1, "{} went", event("gone").await?);
    let log = observed::text(&agent.process)?;
    ensure!(!log.contains("does not stream lists"), "this server streams lists");
    observed::no_panic(&agent.process)
}
