//! An agent without receiver, without permission, or without the watched kind.

use std::{process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tidewatch_tests::{
    ControlPlane, Process, binaries, env,
    fleet::{self, AGENT_USER, Agent, Receiver},
    http, kcp,
    observed::{self, metric},
    ports, spare, wait,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

const SOON: Duration = Duration::from_mins(1);
const LABEL: &str = "tidewatch.dev/test";

/// A TCP relay to a receiver until it is dropped.
struct Relay(#[allow(dead_code, reason = "owns the tasks")] JoinSet<()>);

impl Relay {
    async fn open(port: u16, receiver: &Receiver) -> Result<Self> {
        let target = receiver.url.trim_start_matches("https://").to_owned();
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            // Dropped with this task and its connections.
            let mut open = JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                while open.try_join_next().is_some() {}
                let target = target.clone();
                open.spawn(async move {
                    if let Ok(mut far) = TcpStream::connect(target).await {
                        let _ended = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                    }
                });
            }
        });
        Ok(Self(tasks))
    }
}

struct World {
    receiver: Receiver,
    agent: Agent,
    cluster: &'static ControlPlane,
    /// The [`LABEL`] value of watched objects.
    mark: &'static str,
}

impl World {
    /// `port` overrides the receiver's port for the agent.
    async fn start(mark: &'static str, user: &str, port: Option<u16>, watches: &Value) -> Result<Self> {
        let env = env::shared().await?;
        let cluster = &spare::shared().await?.runtime3;
        let namespace = format!("kcp-bad-agent-{mark}");
        let (id, domain) = (format!("runtime-{mark}"), format!("{mark}.runtimes.example"));
        let client = env.kcp.client()?;
        fleet::prepare_kcp(&client, &namespace).await?;
        kcp::put_kyma(&client, &namespace, mark, &id, Some(&domain)).await?;
        let receiver = Receiver::start_without_agents(
            &env.harness,
            &env.kcp,
            &namespace,
            &env.registry.of(&namespace),
            Vec::new(),
        )
        .await?;
        let identity = receiver.identity(&env.harness, &id, &domain)?;
        let admin = ports::free()?;
        let url = port.map_or_else(|| receiver.url.clone(), |port| format!("https://127.0.0.1:{port}"));
        let folder = format!("agent-{mark}");
        let kubeconfig =
            env.harness.write(&format!("{folder}/runtime.yaml"), &cluster.kubeconfig_yaml(user)?)?;
        let config = json!({
            "runtimeId": id,
            "receiver": {"url": url, "caFile": receiver.ca_file, "certFile": identity.cert, "keyFile": identity.key},
            "adminAddress": format!("127.0.0.1:{admin}"),
            "kubeconfig": kubeconfig,
            "watches": watches,
        });
        let config = env.harness.write(&format!("{folder}/agent.yaml"), &config.to_string())?;
        let args = vec![
            format!("--config={}", config.display()),
            "--log-format=text".to_owned(),
            "--log-level=info,tidewatch_agent=debug".to_owned(),
        ];
        let spec = env.harness.spec(&format!("{folder}/agent"), &binaries::find("tidewatch-agent")?, args);
        let process = Process::start(&spec)?;
        let agent = Agent { admin: format!("http://127.0.0.1:{admin}"), identity, process };
        Ok(Self { receiver, agent, cluster, mark })
    }

    /// Waits for a condition on the status page; shows the page on timeout.
    async fn status(&self, what: &str, is: impl Fn(&Value) -> bool) -> Result<Value> {
        self.agent
            .process
            .ready(what, SOON, || async {
                let page = self.agent.status().await?;
                ensure!(is(&page), "its status: {page:#}");
                Ok(Some(page))
            })
            .await
    }

    async fn watch_is(&self, name: &str, reason: &str) -> Result<Value> {
        let what = format!("to say that watch {name} is {reason}");
        let page = self.status(&what, |page| watch(page, name)["reason"] == reason).await?;
        let series = format!("tidewatch_agent_watch_state{{reason=\"{reason}\",watch=\"{name}\"}}");
        ensure!(metric(&self.agent.admin, &series).await? == 1, "the metric does not say {reason}");
        Ok(watch(&page, name))
    }

    async fn delivered(&self) -> Result<Value> {
        self.status("to have delivered everything", |page| {
            page["receiver"]["connected"] == true
                && page["dirtyKeys"] == 0
                && page["lastObservedSeq"] == page["lastAcknowledgedSeq"]
        })
        .await
    }

    async fn put_config_map(&self, name: &str, value: &str) -> Result<()> {
        let api: Api<ConfigMap> = Api::default_namespaced(self.cluster.client()?);
        let name = format!("{}-{name}", self.mark);
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap",
                          "metadata": {"name": name, "labels": {LABEL: self.mark}}, "data": {"value": value}});
        api.patch(&name, &PatchParams::apply("tidewatch-tests"), &Patch::Apply(body)).await?;
        Ok(())
    }

    async fn received(&self) -> Result<u64> {
        let series = "tidewatch_receiver_events_total{change=\"changed\",contract=\"v3\",fate=\"unowned\"}";
        metric(&self.receiver.admin, series).await
    }

    fn healthy(&self) -> Result<()> {
        for process in [&self.agent.process, &self.receiver.process] {
            fleet::alive(process)?;
            observed::no_panic(process)?;
        }
        Ok(())
    }
}

fn watch(page: &Value, name: &str) -> Value {
    let watches = page["watches"].as_array().cloned().unwrap_or_default();
    watches.into_iter().find(|w| w["name"] == name).unwrap_or_default()
}

fn config_maps(mark: &str) -> Value {
    json!({"name": "configmaps", "resource": "configmaps", "field": "spec", "labels": {LABEL: mark}})
}

async fn allow(cluster: &ControlPlane, role: &str, user: &str, group: &str, resource: &str) -> Result<()> {
    let objects = [
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": role},
               "rules": [{"apiGroups": [group], "resources": [resource], "verbs": ["get", "list", "watch"]}]}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": role},
               "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
               "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]}),
    ];
    let yaml: Vec<String> = objects.iter().map(Value::to_string).collect();
    fleet::apply_yaml(&cluster.client()?, &yaml.join("\n---\n")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_during_a_receiver_outage_are_delivered_later() -> Result<()> {
    let cluster = &spare::shared().await?.runtime3;
    allow(cluster, "bad-input-configmaps", AGENT_USER, "", "configmaps").await?;
    let (mark, port) = ("away", ports::free()?);
    let world = World::start(mark, AGENT_USER, Some(port), &json!([config_maps(mark)])).await?;
    let away = |dirty: u64| {
        move |page: &Value| {
            page["receiver"]["connected"] == false
                && page["dirtyKeys"] == dirty
                && page["receiver"]["lastError"].as_str().is_some_and(|e| !e.is_empty())
        }
    };
    world.put_config_map("a", "1").await?;
    // Without an earlier digest, the agent also reports possible deletions.
    world.status("to hold one change and to say that its receiver is away", away(2)).await?;
    world.watch_is("configmaps", "Watching").await?;
    // Another object adds a key; repeated changes do not.
    world.put_config_map("a", "2").await?;
    world.put_config_map("b", "1").await?;
    let page = world
        .status("to hold two keys after three changes", |p| {
            away(3)(p) && p["lastObservedSeq"].as_u64() >= Some(4)
        })
        .await?;
    ensure!(page["lastAcknowledgedSeq"] == 0, "{page:#}");
    let Agent { admin, .. } = &world.agent;
    ensure!(metric(admin, "tidewatch_agent_connected").await? == 0, "the metric says connected");
    ensure!(metric(admin, "tidewatch_agent_dirty_keys").await? == 3, "the metric has other dirty keys");
    let failed = "tidewatch_agent_send_failures_total{reason=\"connect\",what=\"connect\"}";
    ensure!(metric(admin, failed).await? >= 1, "{}", http::text(&format!("{admin}/metrics")).await?);
    ensure!(http::status(&format!("{admin}/readyz")).await? == 503, "it is ready without a receiver");
    ensure!(world.received().await? == 0, "the receiver has heard of it already");

    let relay = Relay::open(port, &world.receiver).await?;
    world.delivered().await?;
    // Of two changes only the last state is sent.
    ensure!(world.received().await? == 2, "received: {}", world.received().await?);
    ensure!(metric(admin, "tidewatch_agent_connected").await? == 1, "the metric says not connected");
    ensure!(http::status(&format!("{admin}/readyz")).await? == 200, "it is not ready with a receiver");

    drop(relay);
    world.put_config_map("a", "3").await?;
    world.status("to hold the change made after the receiver went", away(1)).await?;
    let _relay = Relay::open(port, &world.receiver).await?;
    world.delivered().await?;
    ensure!(world.received().await? == 3, "received: {}", world.received().await?);
    world.healthy()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forbidden_kind_does_not_block_others() -> Result<()> {
    let cluster = &spare::shared().await?.runtime3;
    allow(cluster, "limited-configmaps", spare::LIMITED_USER, "", "configmaps").await?;
    let mark = "limited";
    let deployments =
        json!({"name": "deployments", "group": "apps", "resource": "deployments", "field": "status"});
    let world =
        World::start(mark, spare::LIMITED_USER, None, &json!([deployments, config_maps(mark)])).await?;

    let condition = world.watch_is("deployments", "Forbidden").await?;
    let message = condition["message"].as_str().unwrap_or_default();
    ensure!(message.contains("deployments.apps") && message.contains(spare::LIMITED_USER), "{condition:#}");
    ensure!(condition["resolved"] == "apps/v1/Deployment", "{condition:#}");
    let log = observed::text(&world.agent.process)?;
    // Canary and digest are forbidden too and log separately.
    let of_watch = |l: &&str| l.contains("WARN tidewatch_agent") && l.contains("watch=\"deployments\"");
    let told = log.lines().filter(of_watch).count();
    ensure!(told == 1, "{told} log lines instead of one:\n{log}");

    world.watch_is("configmaps", "Watching").await?;
    world.put_config_map("a", "1").await?;
    world.status("to have seen the ConfigMap", |page| watch(page, "configmaps")["objects"] == 1).await?;
    world.delivered().await?;
    ensure!(world.received().await? == 1, "received: {}", world.received().await?);
    world.watch_is("deployments", "Forbidden").await?;
    ensure!(http::status(&format!("{}/readyz", world.agent.admin)).await? == 200, "it is not ready");

    allow(cluster, "limited-deployments", spare::LIMITED_USER, "apps", "deployments").await?;
    let condition = world.watch_is("deployments", "Watching").await?;
    ensure!(condition["message"] == "", "{condition:#}");
    let forbidden = "tidewatch_agent_watch_state{reason=\"Forbidden\",watch=\"deployments\"}";
    ensure!(metric(&world.agent.admin, forbidden).await? == 0, "the metric still says Forbidden");
    world.healthy()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_installed_later_is_watched() -> Result<()> {
    let cluster = &spare::shared().await?.runtime3;
    let (mark, group) = ("later", "reef.tidewatch.dev");
    allow(cluster, "bad-input-configmaps", AGENT_USER, "", "configmaps").await?;
    allow(cluster, "bad-input-corals", AGENT_USER, group, "corals").await?;
    let corals = json!({"name": "corals", "group": group, "resource": "corals", "field": "spec"});
    let world = World::start(mark, AGENT_USER, None, &json!([corals, config_maps(mark)])).await?;
    let condition = world.watch_is("corals", "WaitingForKind").await?;
    let message = condition["message"].as_str().unwrap_or_default();
    ensure!(message.contains("does not serve corals") && message.contains(group), "{condition:#}");
    // Other watches continue.
    world.put_config_map("a", "1").await?;
    world.status("to have seen the ConfigMap", |page| watch(page, "configmaps")["objects"] == 1).await?;
    world.delivered().await?;

    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("corals.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"plural": "corals", "singular": "coral", "kind": "Coral", "listKind": "CoralList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": {"type": "object", "properties": {"depth": {"type": "integer"}}}}}}}]
        }
    });
    fleet::apply_yaml(&cluster.client()?, &crd.to_string()).await?;
    let condition = world.watch_is("corals", "Watching").await?;
    ensure!(condition["resolved"] == format!("{group}/v1/Coral"), "{condition:#}");
    let coral = json!({"apiVersion": format!("{group}/v1"), "kind": "Coral",
                       "metadata": {"name": "brain", "namespace": "default"}, "spec": {"depth": 3}});
    wait::until("the Coral to be applied", SOON, || async {
        fleet::apply_yaml(&cluster.client()?, &coral.to_string()).await.map(Some)
    })
    .await?;
    world.status("to have seen the Coral", |page| watch(page, "corals")["objects"] == 1).await?;
    world.delivered().await?;
    ensure!(world.received().await? == 2, "received: {}", world.received().await?);

    // After the CRD's deletion the agent reports the objects and waits for the kind.
    let crds: Api<
        k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    > = Api::all(cluster.client()?);
    crds.delete(&format!("corals.{group}"), &DeleteParams::default()).await?;
    world.status("to have seen the Coral go", |page| watch(page, "corals")["objects"] == 0).await?;
    world.watch_is("corals", "WaitingForKind").await?;
    world.delivered().await?;
    world.healthy()
}

#[test]
fn a_configuration_watching_secrets_is_refused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let config = folder.path().join("agent.yaml");
    for resource in ["secrets", "Secrets"] {
        let text = json!({
            "runtimeId": "runtime-1",
            "receiver": {"url": "https://127.0.0.1:1", "caFile": "ca.crt", "certFile": "tls.crt", "keyFile": "tls.key"},
            "adminAddress": "127.0.0.1:0",
            "watches": [{"name": "all", "resource": resource, "field": "spec"}],
        });
        std::fs::write(&config, text.to_string())?;
        let output =
            Command::new(binaries::find("tidewatch-agent")?).arg("--config").arg(&config).output()?;
        let said = String::from_utf8(output.stderr).context("not UTF-8")?;
        ensure!(output.status.code() == Some(2), "{resource}: it ended with {}: {said}", output.status);
        ensure!(
            said.lines().count() == 1 && said.contains("secrets are never watched"),
            "{resource}: {said}"
        );
    }
    Ok(())
}
