//! Watchers in KCP are what the agents watch and may see, in every runtime and without a restart.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
    core::v1::ConfigMap,
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, State, Watcher,
    names::{AGENT_CONFIG_MAP, AGENT_WATCHES_ROLE, API_VERSION, GROUP, RUNTIME_NAMESPACE},
};
use tidewatch_tests::{
    ControlPlane, env,
    fleet::{self, AGENT_USER, Agent, Member, Receiver},
    observed::{self, metric},
    runtime_pool, spare, wait,
};

const NAMESPACE: &str = "kcp-watchers";
const SOON: Duration = Duration::from_mins(1);
const LABEL: &str = "tidewatch.dev/watchers";
const MANAGER: &str = "tidewatch-tests";

async fn put_watcher(kcp: &Client, name: &str, group: &str, resource: &str, label: &str) -> Result<()> {
    let api: Api<Watcher> = Api::namespaced(kcp.clone(), NAMESPACE);
    let body = json!({
        "apiVersion": API_VERSION, "kind": "Watcher", "metadata": {"name": name},
        "spec": {
            "manager": "lifecycle-manager", "field": "spec", "labelsToWatch": {LABEL: label},
            "resourceToWatch": {"group": group, "version": "v1", "resource": resource},
            "serviceInfo": {"name": "events", "namespace": "kcp-system", "port": 8082},
            "gateway": {"selector": {"matchLabels": {"operator.kyma-project.io/watcher-gateway": "default"}}}
        }
    });
    api.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(body)).await?;
    Ok(())
}

async fn watcher_says(kcp: &Client, name: &str, state: State, word: &str) -> Result<()> {
    let api: Api<Watcher> = Api::namespaced(kcp.clone(), NAMESPACE);
    wait::until(&format!("Watcher {name} to be {state} and to say '{word}'"), SOON, || async {
        let status = api.get_status(name).await?.status.unwrap_or_default();
        ensure!(status.state == state, "{status:?}");
        Ok(status.conditions.iter().any(|c| c.message.contains(word)).then_some(()))
    })
    .await
}

/// Waits until the agent's role allows exactly these resources of the core group, beside those of the engine's own watches.
async fn allowed(cluster: &ControlPlane, resources: &[&str]) -> Result<()> {
    let api: Api<ClusterRole> = Api::all(cluster.client()?);
    let listed = |group: &str, resources: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": ["get", "list", "watch"]});
    // What the engine has watched for itself comes besides.
    let core: BTreeSet<&str> = resources.iter().copied().chain(["namespaces"]).collect();
    let wanted = json!([
        listed("", &core.into_iter().collect::<Vec<_>>()),
        listed("apiextensions.k8s.io", &["customresourcedefinitions"]),
        listed("certificates.k8s.io", &["certificatesigningrequests"]),
        listed(GROUP, &["kymas", "modulereleasemetas", "moduletemplates"]),
    ]);
    wait::until(&format!("the agent's role to be for exactly {resources:?}"), SOON, || async {
        let role = api.get(AGENT_WATCHES_ROLE).await?;
        let rules = json!(role.rules.unwrap_or_default());
        ensure!(rules == wanted, "{rules}");
        Ok(Some(()))
    })
    .await
}

/// Whether the agent may list a resource of the core group in all namespaces, as the API server decides it.
async fn may_list(cluster: &ControlPlane, resource: &str) -> Result<bool> {
    let api: Api<SelfSubjectAccessReview> = Api::all(cluster.client_of(AGENT_USER)?);
    let attributes = ResourceAttributes {
        verb: Some("list".to_owned()),
        resource: Some(resource.to_owned()),
        ..ResourceAttributes::default()
    };
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() },
        ..SelfSubjectAccessReview::default()
    };
    let review = api.create(&PostParams::default(), &review).await?;
    Ok(review.status.is_some_and(|status| status.allowed))
}

/// Waits until the agent's status page fulfils a condition; a timeout shows the page.
async fn status(agent: &Agent, what: &str, is: impl Fn(&Value) -> bool) -> Result<Value> {
    agent
        .process
        .ready(what, SOON, || async {
            let page = agent.status().await?;
            ensure!(is(&page), "its status: {page:#}");
            Ok(Some(page))
        })
        .await
}

fn watch<'a>(page: &'a Value, name: &str) -> Option<&'a Value> {
    page["watches"].as_array()?.iter().find(|watch| watch["name"] == name)
}

fn watches_kind(page: &Value, name: &str, kind: &str) -> bool {
    watch(page, name).is_some_and(|w| w["reason"] == "Watching" && w["resolved"] == kind)
}

async fn observed(agent: &Agent, watch: &str, count: u64) -> Result<()> {
    let series = format!("tidewatch_agent_changes_observed_total{{watch=\"{watch}\"}}");
    wait::until(&format!("{count} changes seen by {watch}"), SOON, || async {
        let seen = metric(&agent.admin, &series).await?;
        ensure!(seen == count, "it has seen {seen}");
        Ok(Some(()))
    })
    .await?;
    status(agent, "to have delivered everything", |page| page["dirtyKeys"] == 0).await?;
    Ok(())
}

async fn put_config_map(cluster: &ControlPlane, name: &str, label: &str) -> Result<()> {
    let api: Api<ConfigMap> = Api::default_namespaced(cluster.client()?);
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {LABEL: label}}});
    api.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(body)).await?;
    Ok(())
}

/// resourceVersions of the agent's configuration and role; all of them exist.
async fn versions(cluster: &ControlPlane) -> Result<[Option<String>; 3]> {
    let client = cluster.client()?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), RUNTIME_NAMESPACE);
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let bindings: Api<ClusterRoleBinding> = Api::all(client);
    Ok([
        maps.get(AGENT_CONFIG_MAP).await?.resource_version(),
        roles.get(AGENT_WATCHES_ROLE).await?.resource_version(),
        bindings.get(AGENT_WATCHES_ROLE).await?.resource_version(),
    ])
}

/// Neither its configuration nor its role is left.
async fn ensure_nothing_left(cluster: &ControlPlane) -> Result<()> {
    let client = cluster.client()?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), RUNTIME_NAMESPACE);
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let bindings: Api<ClusterRoleBinding> = Api::all(client);
    ensure!(maps.get_opt(AGENT_CONFIG_MAP).await?.is_none(), "the configuration is left");
    ensure!(roles.get_opt(AGENT_WATCHES_ROLE).await?.is_none(), "the role is left");
    ensure!(bindings.get_opt(AGENT_WATCHES_ROLE).await?.is_none(), "the binding is left");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_take_effect_everywhere_without_a_restart() -> Result<()> {
    let env = env::shared().await?;
    let (first, second) = (runtime_pool::alone().await?, runtime_pool::alone().await?);
    let kcp = env.kcp.client()?;
    fleet::prepare_kcp(&kcp, NAMESPACE).await?;
    let receiver = Receiver::start(&env.harness, &env.kcp, NAMESPACE, &env.registry.of(NAMESPACE)).await?;
    let (with_agent, without) = (first.cluster, second.cluster);
    let member = Member { cluster: with_agent, kyma: "lookout", id: "runtime-lookout" };
    let other = Member { cluster: without, kyma: "blind", id: "runtime-blind" };
    for member in [&member, &other] {
        spare::take_over(member.cluster).await?;
        fleet::register(&kcp, NAMESPACE, member).await?;
        fleet::kyma_in_state(&kcp, NAMESPACE, member.kyma, State::Ready).await?;
    }
    let agent = Agent::start(&env.harness, &receiver, &member).await?;
    let before = agent.status().await?;
    let generation = |page: &Value| page["configuration"]["generation"].as_str().map(str::to_owned);
    let bare =
        generation(&before).context("without a Watcher the configuration is empty, but it is there")?;
    allowed(with_agent, &[]).await?;
    ensure!(!may_list(with_agent, "configmaps").await?, "the shipped role allows more than it should");

    // A new one.
    let began = tokio::time::Instant::now();
    put_watcher(&kcp, "maps", "", "configmaps", "yes").await?;
    let name = format!("{NAMESPACE}.maps");
    let page = status(&agent, "to watch ConfigMaps", |p| watches_kind(p, &name, "v1/ConfigMap")).await?;
    let took = tokio::time::Instant::now().duration_since(began);
    println!("a new Watcher was watched after {took:?}");
    ensure!(took < Duration::from_secs(20), "that took {took:?}");
    ensure!(generation(&page).is_some_and(|g| g != bare), "{page:#}");
    allowed(with_agent, &["configmaps"]).await?;
    allowed(without, &["configmaps"]).await?;
    ensure!(may_list(with_agent, "configmaps").await? && !may_list(with_agent, "services").await?);
    watcher_says(&kcp, "maps", State::Ready, &name).await?;
    put_config_map(with_agent, "a", "yes").await?;
    put_config_map(with_agent, "b", "no").await?;
    observed(&agent, &name, 1).await?;

    // Another selector: what it selected before is gone for it, what it selects now is new.
    put_watcher(&kcp, "maps", "", "configmaps", "no").await?;
    observed(&agent, &name, 3).await?;

    // Another kind.
    put_watcher(&kcp, "maps", "", "services", "yes").await?;
    status(&agent, "to watch Services", |p| watches_kind(p, &name, "v1/Service")).await?;
    for cluster in [with_agent, without] {
        allowed(cluster, &["services"]).await?;
    }
    ensure!(!may_list(with_agent, "configmaps").await? && may_list(with_agent, "services").await?);

    // One that is refused takes nothing from the other.
    put_watcher(&kcp, "keys", "", "secrets", "yes").await?;
    watcher_says(&kcp, "keys", State::Error, "never watched").await?;
    allowed(with_agent, &["services"]).await?;
    ensure!(!may_list(with_agent, "secrets").await?);

    // A configuration that is broken by hand changes nothing, and is written again as soon as the agent has said so.
    let maps: Api<ConfigMap> = Api::namespaced(with_agent.client()?, RUNTIME_NAMESPACE);
    let broken = Patch::Merge(json!({"data": {"watches.yaml": "watches: [{resource: secrets}]"}}));
    maps.patch(AGENT_CONFIG_MAP, &PatchParams::default(), &broken).await?;
    let page = status(&agent, "to refuse the configuration", |page| {
        page["configuration"]["configMap"]["state"] == "Refused"
    })
    .await?;
    ensure!(watches_kind(&page, &name, "v1/Service"), "{page:#}");
    status(&agent, "to have its configuration back", |page| {
        page["configuration"]["configMap"]["state"] == "Applied"
    })
    .await?;

    // Gone.
    let watchers: Api<Watcher> = Api::namespaced(kcp.clone(), NAMESPACE);
    for name in ["maps", "keys"] {
        watchers.delete(name, &DeleteParams::default()).await?;
    }
    let page = status(&agent, "to end the watch", |page| watch(page, &name).is_none()).await?;
    ensure!(
        generation(&page).as_deref() == Some(&bare),
        "the same configuration has the same generation: {page:#}"
    );
    for cluster in [with_agent, without] {
        allowed(cluster, &[]).await?;
    }
    ensure!(!may_list(with_agent, "services").await?);

    let after = agent.status().await?;
    ensure!(after["epoch"] == before["epoch"], "the agent has been restarted");
    ensure!(after["watches"].as_array().map(Vec::len) == before["watches"].as_array().map(Vec::len));
    agent.connected().await?;
    for process in [&agent.process, &receiver.process] {
        fleet::alive(process)?;
        observed::no_panic(process)?;
    }

    // A receiver that has just started reads what there is, and writes nothing that is there.
    let (configured, also) = (versions(with_agent).await?, versions(without).await?);
    drop((agent, receiver));
    let receiver = Receiver::start(&env.harness, &env.kcp, NAMESPACE, &env.registry.of(NAMESPACE)).await?;
    let done = "tidewatch_receiver_reconciles_total{class=\"rollout\",kind=\"AgentConfig\",outcome=\"done\"}";
    wait::until("both runtimes to have been looked at", SOON, || async {
        Ok((metric(&receiver.admin, done).await? >= 2).then_some(()))
    })
    .await?;
    fleet::settled_but_for_retries(&receiver).await?;
    ensure!(versions(with_agent).await? == configured, "{:?}, {configured:?}", versions(with_agent).await?);
    ensure!(versions(without).await? == also, "{:?}, {also:?}", versions(without).await?);

    // With the Kyma goes all of it.
    let kymas: Api<Kyma> = Api::namespaced(kcp, NAMESPACE);
    for member in [&member, &other] {
        kymas.delete(member.kyma, &DeleteParams::default()).await?;
    }
    for member in [&member, &other] {
        wait::until("the Kyma to go", SOON, || async {
            Ok(kymas.get_opt(member.kyma).await?.is_none().then_some(()))
        })
        .await?;
        ensure_nothing_left(member.cluster).await?;
    }
    Ok(())
}
