//! Receiver and agents of neighbouring versions.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use serde_json::{Value, json};
use tidewatch_agent::{
    app::{Surroundings, start_within},
    config::Config,
    send::{Channel, Fate, SendError, Transport},
};
use tidewatch_api::names::{AGENT_CONFIG_KEY, AGENT_CONFIG_MAP, RUNTIME_NAMESPACE};
use tidewatch_demo::pod::Pod;
use tidewatch_drain::Drain;
use tidewatch_tests::{
    mtls::{Connection, Http, sized},
    observed::{self, metric},
    ports,
    solo::Solo,
    wait,
};
use tidewatch_wire::{Route, v3};
use tokio::sync::watch;

use crate::rotation::{certs, ferry, load};

const SOON: Duration = Duration::from_mins(1);
const UPGRADING: &str = "tidewatch_receiver_agent_upgrades{state=\"upgrading\"}";

/// The path of an agent of the former version: its health has no `trust` and no `installation`.
#[derive(Clone)]
struct Former<T>(T);

impl<T: Transport> Transport for Former<T> {
    type Connection = Former<T::Connection>;

    async fn connect(self) -> Result<Self::Connection, SendError> {
        Ok(Former(self.0.connect().await?))
    }

    fn renewals(&self) -> watch::Receiver<()> {
        self.0.renewals()
    }

    fn fate(&self, connection: &Self::Connection) -> Fate {
        self.0.fate(&connection.0)
    }

    fn set_routes(&self, routes: &BTreeMap<String, Vec<Route>>) {
        self.0.set_routes(routes);
    }
}

impl<C: Channel> Channel for Former<C> {
    fn not_after(&self) -> Timestamp {
        self.0.not_after()
    }

    async fn closed(&mut self) -> SendError {
        self.0.closed().await
    }

    fn post(
        &self,
        request: &v3::Request<'static>,
        deadline: Duration,
    ) -> impl Future<Output = Result<v3::Response, SendError>> + Send + use<C> {
        let mut request = request.clone();
        if let Some(health) = &mut request.health {
            health.trust.clear();
            health.installation.clear();
        }
        self.0.post(&request, deadline)
    }
}

/// Starts the installed agent as its former version.
async fn start_former(solo: &Solo, drain: &Drain) -> Result<()> {
    let folder = solo.env.harness.folder().join(format!("former-agent-{}", solo.namespace));
    let admin = format!("127.0.0.1:{}", ports::free()?);
    let kubeconfig = |token: &str| Ok(solo.cluster.kubeconfig_with(token, solo.cluster.url()));
    let of = (solo.kyma, solo.receiver.url.as_str());
    let pod = Pod::prepare(&solo.runtime, of, &folder, &admin, kubeconfig).await?;
    let config = Config::load(&pod.config)?;
    Box::pin(start_within(config, Some(pod.config), Surroundings::default(), drain, Former)).await?;
    Ok(())
}

async fn is_proven(solo: &Solo) -> Result<()> {
    wait::until("the event path to be proven", SOON, || async {
        let page = solo.receiver.runtime(solo.kyma).await?;
        ensure!(page["eventPath"] == "proven", "{page:#}");
        Ok(Some(()))
    })
    .await
}

/// Waits until the rotation of the CA would wait for these Kymas.
async fn lagging(solo: &Solo, kymas: &Value) -> Result<()> {
    let receiver = [format!("--admin={}", solo.receiver.admin)];
    wait::until(&format!("the agents that lag to be {kymas}"), SOON, || async {
        let status = certs(solo, "status", &receiver).await?;
        ensure!(status["lagging"] == *kymas, "{status:#}");
        Ok(Some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_of_the_former_version_works_until_its_upgrade() -> Result<()> {
    let mut solo = Solo::start_watched("kcp-skew", "slipway", Vec::new()).await?;
    let drain = Drain::new();
    start_former(&solo, &drain).await?;
    is_proven(&solo).await?;
    solo.offer(&ferry()).await?;
    solo.enable(&json!([{"name": "ferry"}])).await?;
    solo.ready_by_its_agent("ferry", "1.0.0").await?;
    load(&solo, Some(2)).await?;
    lagging(&solo, &json!([solo.kyma])).await?;

    solo.receiver
        .restart_with(|args| {
            for arg in args.iter_mut().filter(|arg| arg.starts_with("--agent-image=")) {
                *arg = "--agent-image=tidewatch-agent:next".to_owned();
            }
        })
        .await?;
    let count = async || metric(&solo.receiver.admin, UPGRADING).await;
    wait::until("the upgrade", SOON, || async { Ok((count().await? == 1).then_some(())) }).await?;
    // The first canary of a start comes at once. A former agent proves the path, and not the upgrade.
    let _outcome = drain.shutdown(SOON).await;
    let drain = Drain::new();
    start_former(&solo, &drain).await?;
    is_proven(&solo).await?;
    load(&solo, Some(1)).await?;
    ensure!(count().await? == 1, "no new agent is awaited");

    let _outcome = drain.shutdown(SOON).await;
    let agent = solo.agent().await?;
    wait::until("the new agent to be proven", SOON, || async { Ok((count().await? == 0).then_some(())) })
        .await?;
    lagging(&solo, &json!([])).await?;
    observed::no_panic(&solo.receiver.process)?;
    observed::no_panic(&agent.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_of_the_next_version_with_unknown_fields_is_proven() -> Result<()> {
    let solo = Solo::start("kcp-skew-next", "slipway").await?;
    let maps: Api<ConfigMap> = Api::namespaced(solo.runtime.clone(), RUNTIME_NAMESPACE);
    let configured = wait::until("the agent's configuration", SOON, || async {
        let data = maps.get(AGENT_CONFIG_MAP).await?.data.unwrap_or_default();
        Ok(data.get(AGENT_CONFIG_KEY).cloned())
    })
    .await?;
    let unknown = json!({"nested": [1, null, "text"]});
    let report = json!({
        "epoch": tidewatch_wire::Epoch::random(), "unknown": unknown, "awaiting": [[1, 1]],
        "health": {"configuration": v3::configuration(&configured), "unknown": unknown},
        "events": [{"seq": 1, "watch": v3::CANARY, "group": "coordination.k8s.io", "version": "v1", "kind": "Lease",
                    "namespace": RUNTIME_NAMESPACE, "name": "tidewatch-agent-canary", "change": "changed",
                    "observedAt": Timestamp::now(), "unknown": unknown}],
    });
    let identity = solo.receiver.identity(&solo.env.harness, solo.kyma, &solo.member().domain())?;
    let mut connection = Connection::open(&solo.receiver, Some(&identity.issued), Http::H2).await?;
    let answer = connection.send("POST", v3::PATH, sized(report.to_string())).await?;
    ensure!(answer.status() == 200, "{answer:?}");
    let answer: v3::Response = serde_json::from_slice(answer.body()).context("the answer")?;
    ensure!(answer.unknown.is_empty(), "the canary was not taken: {answer:?}");
    is_proven(&solo).await
}
