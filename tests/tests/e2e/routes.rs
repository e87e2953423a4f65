//! Events for other managers: their services get exactly what their Watchers are about, with the certificate of the
//! runtime; and a proxy in front of the receiver is believed by its certificate alone.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde_json::json;
use tidewatch_api::{Watcher, names};
use tidewatch_certs::{ClientRequest, Issued};
use tidewatch_tests::{
    by_hand::{self, Settings},
    env,
    fleet::{self, Identity, Member, Receiver},
    kcp,
    mtls::{Connection, Http, sized},
    observed::metric,
    spare, wait,
};
use tidewatch_tls::xfcc;
use tidewatch_wire::{Epoch, Route, Seq, SeqSet, v3};

use crate::service::{Service, free};

const SOON: Duration = Duration::from_secs(30);
const RUNTIME: (&str, &str, &str) = ("jetty", "runtime-jetty", "jetty.runtimes.example");

/// Registers another manager for changes of one resource.
pub(crate) async fn put_watcher(namespace: &str, manager: &str, group: &str, resource: &str) -> Result<()> {
    let api: Api<Watcher> = Api::namespaced(env::shared().await?.kcp.client()?, namespace);
    let body = json!({
        "apiVersion": names::API_VERSION, "kind": "Watcher", "metadata": {"name": manager},
        "spec": {"serviceInfo": {"name": "svc", "namespace": "ops", "port": 80}, "manager": manager,
                 "resourceToWatch": {"group": group, "version": "*", "resource": resource},
                 "field": "spec", "gateway": {"selector": {"matchLabels": {"a": "b"}}}}
    });
    api.patch(manager, &PatchParams::apply("tidewatch-tests"), &Patch::Apply(body)).await?;
    Ok(())
}

async fn prepare_kcp(namespace: &str) -> Result<()> {
    let client = env::shared().await?.kcp.client()?;
    fleet::prepare_kcp(&client, namespace).await?;
    kcp::put_kyma(&client, namespace, RUNTIME.0, RUNTIME.1, Some(RUNTIME.2)).await?;
    put_watcher(namespace, "keeper", "apps", "deployments").await?;
    put_watcher(namespace, "pilot", "", "configmaps").await?;
    put_watcher(namespace, "lifecycle-manager", names::GROUP, "kymas").await
}

/// A receiver in a namespace of its own, with a registered runtime and Watchers of two other managers.
struct World {
    namespace: &'static str,
    receiver: Receiver,
    runtime: Identity,
}

impl World {
    async fn start(namespace: &'static str, routes: &[(&str, SocketAddr)]) -> Result<Self> {
        let env = env::shared().await?;
        prepare_kcp(namespace).await?;
        let routes = routes.iter().map(|(manager, to)| format!("--route-address={manager}={to}")).collect();
        let modules = env.registry.of(namespace);
        let receiver =
            Receiver::start_without_agents(&env.harness, &env.kcp, namespace, &modules, routes).await?;
        Self::of(namespace, receiver).await
    }

    /// Starts with certificates in files, as a trusted proxy needs them, and returns the proxy's.
    async fn start_behind_proxy(namespace: &'static str) -> Result<(Self, Issued)> {
        let env = env::shared().await?;
        prepare_kcp(namespace).await?;
        let mut proxy = None;
        let modules = env.registry.of(namespace);
        let receiver = by_hand::receiver(&env.harness, &env.kcp, namespace, &modules, |ca| {
            let request = ClientRequest {
                runtime_id: "gateway".to_owned(),
                dns_names: Vec::new(),
                organizations: Vec::new(),
                validity: SignedDuration::from_hours(1),
            };
            let issued = ca.issue_client(&request, Timestamp::now())?;
            let file = env.harness.write(&format!("receiver-{namespace}/proxies.pem"), &issued.cert_pem)?;
            proxy = Some(issued);
            Ok(vec![format!("--trusted-proxy={}", file.display())])
        })
        .await?;
        Ok((Self::of(namespace, receiver).await?, proxy.context("no proxy")?))
    }

    async fn of(namespace: &'static str, receiver: Receiver) -> Result<Self> {
        let runtime = receiver.identity(&env::shared().await?.harness, RUNTIME.1, RUNTIME.2)?;
        Ok(Self { namespace, receiver, runtime })
    }

    fn event(
        &self,
        seq: u64,
        watch: &str,
        (group, kind): (&str, &str),
        (namespace, name): (&str, &str),
    ) -> v3::Event<'static> {
        v3::Event {
            seq: Seq(seq),
            watch: format!("{}.{watch}", self.namespace).into(),
            group: group.to_owned().into(),
            version: "v1".into(),
            kind: kind.to_owned().into(),
            namespace: namespace.to_owned().into(),
            name: name.to_owned().into(),
            uid: "".into(),
            resource_version: "".into(),
            change: v3::Change::Changed,
            listed: false,
            observed_at: Timestamp::now(),
        }
    }

    async fn metric(&self, name: &str) -> Result<u64> {
        metric(&self.receiver.admin, &format!("tidewatch_receiver_{name}")).await
    }
}

/// An agent, by hand.
struct Agent {
    connection: Connection,
    epoch: Epoch,
    /// Every number that it has sent. It lets none go, so that each can be asked for again.
    awaiting: SeqSet,
}

impl Agent {
    async fn connect(world: &World) -> Result<Self> {
        let connection = Connection::open(&world.receiver, Some(&world.runtime.issued), Http::H2).await?;
        Ok(Self { connection, epoch: Epoch::random(), awaiting: SeqSet::new() })
    }

    async fn post(&mut self, events: Vec<v3::Event<'static>>) -> Result<v3::Response> {
        for event in &events {
            self.awaiting.insert(event.seq);
        }
        let awaiting = self.awaiting.clone();
        let request = v3::Request { events, awaiting, ..v3::Request::new(self.epoch) };
        let answer = self.connection.send("POST", v3::PATH, sized(serde_json::to_vec(&request)?)).await?;
        ensure!(answer.status() == 200, "{answer:?}");
        Ok(serde_json::from_slice(answer.body())?)
    }

    /// Asks until a route has said of a number that it is done.
    async fn done(&mut self, route: &Route, seq: u64) -> Result<()> {
        let until = tokio::time::Instant::now() + SOON;
        loop {
            let answer = self.post(Vec::new()).await?;
            if answer.acks.iter().any(|ack| ack.route == *route && ack.done.contains(Seq(seq))) {
                return Ok(());
            }
            ensure!(tokio::time::Instant::now() < until, "{route:?} has not done {seq}: {answer:?}");
            wait::pause().await;
        }
    }
}

fn said(answer: &v3::Response, manager: &str) -> (Vec<u64>, Vec<u64>) {
    let route = Route::manager(manager);
    let of = |set: &SeqSet| set.ranges().flat_map(|(from, to)| from..=to).collect();
    answer
        .acks
        .iter()
        .find(|ack| ack.route == route)
        .map_or_else(Default::default, |ack| (of(&ack.done), of(&ack.refused)))
}

const DEPLOYMENT: (&str, &str) = ("apps", "Deployment");
const CONFIG_MAP: (&str, &str) = ("", "ConfigMap");
const KYMA: (&str, &str) = (names::GROUP, "Kyma");

#[tokio::test]
async fn a_manager_gets_exactly_the_events_of_its_own_watches() -> Result<()> {
    let (at_keeper, at_pilot) = (free()?, free()?);
    let (mut keeper, mut pilot) = (Service::start(at_keeper).await?, Service::start(at_pilot).await?);
    let world = World::start("kcp-routes-own", &[("keeper", at_keeper), ("pilot", at_pilot)]).await?;
    let mut agent = Agent::connect(&world).await?;
    let events = vec![
        world.event(1, "keeper", DEPLOYMENT, ("a", "one")),
        world.event(2, "pilot", CONFIG_MAP, ("a", "two")),
        // Of a watch that is not about such objects, and of one that there is not.
        world.event(3, "keeper", CONFIG_MAP, ("a", "three")),
        world.event(4, "nobody", DEPLOYMENT, ("a", "four")),
        world.event(5, "lifecycle-manager", KYMA, ("kyma-system", "default")),
    ];
    let answer = agent.post(events).await?;
    ensure!(said(&answer, "keeper").1 == [3], "{answer:?}");
    ensure!(answer.acks.iter().any(|a| a.refused.contains(Seq(4))), "{answer:?}");
    agent.done(&Route::manager("keeper"), 1).await?;
    agent.done(&Route::manager("pilot"), 2).await?;
    agent.done(&Route::engine(), 5).await?;

    let own = CertificateDer::from_pem_slice(world.runtime.issued.cert_pem.as_bytes())?;
    for (service, manager, (group, kind), name) in
        [(&mut keeper, "keeper", DEPLOYMENT, "one"), (&mut pilot, "pilot", CONFIG_MAP, "two")]
    {
        let heard = service.next().await?;
        ensure!(heard.path == format!("/v2/{manager}/event"), "{heard:?}");
        ensure!(xfcc::parse(heard.certificate.as_bytes())? == own, "{heard:?}");
        let body = json!({"watched": {"Namespace": "a", "Name": name},
                          "watchedGvk": {"group": group, "version": "v1", "kind": kind}});
        ensure!(heard.body == body, "{heard:?}");
        ensure!(service.heard.try_recv().is_err(), "{manager} was told of something else");
    }
    ensure!(world.metric("refused_events_total{reason=\"other_kind\"}").await? == 1);
    ensure!(world.metric("refused_events_total{reason=\"unknown_watch\"}").await? == 1);

    // As the Go agent, HTTP/1.1 and HTTP/2: taken, and told.
    for (http, name) in [(Http::H1, "five"), (Http::H2, "six")] {
        let mut go = Connection::open(&world.receiver, Some(&world.runtime.issued), http).await?;
        let body = |kind: (&str, &str)| {
            let body = json!({"watched": {"Namespace": "a", "Name": name},
                              "watchedGvk": {"group": kind.0, "version": "v1", "kind": kind.1}});
            sized(body.to_string())
        };
        let json = [("content-type", "application/json")];
        let answer = go.send_with("POST", "/v2/keeper/event", &json, body(DEPLOYMENT)).await?;
        ensure!(answer.status() == 200 && answer.body().is_empty(), "{answer:?}");
        ensure!(keeper.next().await?.body["watched"]["Name"] == name);
        let answer = go.send_with("POST", "/v2/keeper/event", &json, body(CONFIG_MAP)).await?;
        ensure!(answer.status() == 403, "{answer:?}");
        let answer = go.send_with("POST", "/v2/lifecycle-manager/event", &json, body(KYMA)).await?;
        ensure!(answer.status() == 200, "{answer:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_dead_service_delays_none_and_gets_held_events() -> Result<()> {
    let at_keeper = free()?;
    let world = World::start("kcp-routes-dead", &[("keeper", at_keeper)]).await?;
    let mut agent = Agent::connect(&world).await?;
    let dead: Vec<_> =
        (1..=100).map(|seq| world.event(seq, "keeper", DEPLOYMENT, ("a", &format!("d{seq}")))).collect();
    agent.post(dead).await?;
    wait::until("the dead service to be tried", SOON, || async {
        let tried = world.metric("forwards_total{manager=\"keeper\",result=\"unreachable\"}").await?;
        Ok((tried >= 8).then_some(()))
    })
    .await?;
    // The engine's event is done, in time, while nothing of the dead manager's is.
    agent.post(vec![world.event(101, "lifecycle-manager", KYMA, ("kyma-system", "default"))]).await?;
    agent.done(&Route::engine(), 101).await?;
    let answer = agent.post(Vec::new()).await?;
    ensure!(said(&answer, "keeper") == (vec![], vec![]) && answer.unknown.is_empty(), "{answer:?}");
    ensure!(world.metric("forward_pending{manager=\"keeper\"}").await? == 100);

    let mut keeper = Service::start(at_keeper).await?;
    let mut names = std::collections::BTreeSet::new();
    while names.len() < 100 {
        names.insert(keeper.next().await?.body["watched"]["Name"].to_string());
    }
    for seq in [1, 50, 100] {
        agent.done(&Route::manager("keeper"), seq).await?;
    }

    // A Watcher that is taken away: what its service has not taken is let go.
    drop(keeper);
    agent.post(vec![world.event(102, "keeper", DEPLOYMENT, ("a", "last"))]).await?;
    let api: Api<Watcher> = Api::namespaced(env::shared().await?.kcp.client()?, world.namespace);
    api.delete("keeper", &DeleteParams::default()).await?;
    let until = tokio::time::Instant::now() + SOON;
    loop {
        let answer = agent.post(Vec::new()).await?;
        if said(&answer, "keeper").1 == [102] {
            return Ok(());
        }
        ensure!(tokio::time::Instant::now() < until, "nobody lets go of it: {answer:?}");
        wait::pause().await;
    }
}

#[tokio::test]
async fn a_proxy_is_trusted_only_by_its_certificate() -> Result<()> {
    let (world, proxy) = World::start_behind_proxy("kcp-routes-proxy").await?;
    let runtime = CertificateDer::from_pem_slice(world.runtime.issued.cert_pem.as_bytes())?;
    let header = xfcc::format(&runtime)?;
    let heartbeat = || sized(json!({"epoch": Epoch::random()}).to_string());
    for http in [Http::H1, Http::H2] {
        let mut connection = Connection::open(&world.receiver, Some(&proxy), http).await?;
        let mut send = async |headers: &[(&str, &str)]| -> Result<u16> {
            Ok(connection.send_with("POST", v3::PATH, headers, heartbeat()).await?.status().as_u16())
        };
        ensure!(send(&[(xfcc::HEADER, &header)]).await? == 200, "the proxy names its client");
        ensure!(send(&[]).await? == 401, "a proxy is no runtime itself");
        ensure!(send(&[(xfcc::HEADER, "rubbish")]).await? == 400);
        let several = format!("{header},{header}");
        ensure!(send(&[(xfcc::HEADER, &several)]).await? == 400);
        ensure!(send(&[(xfcc::HEADER, &header), (xfcc::HEADER, &header)]).await? == 400);
        let long = format!("{header};URI={}", "x".repeat(30 * 1024 - header.len()));
        ensure!(send(&[(xfcc::HEADER, &long)]).await? == 200, "up to 32 KiB");
        ensure!(send(&[(xfcc::HEADER, &header)]).await? == 200);

        // A runtime that is registered, but not whom the header names: it is itself, whatever it claims.
        let stranger = ClientRequest {
            runtime_id: "runtime-unregistered".to_owned(),
            dns_names: vec![RUNTIME.2.to_owned()],
            organizations: Vec::new(),
            validity: SignedDuration::from_hours(1),
        };
        let stranger = world.receiver.ca.issue_client(&stranger, Timestamp::now())?;
        let mut liar = Connection::open(&world.receiver, Some(&stranger), http).await?;
        let answer = liar.send_with("POST", v3::PATH, &[(xfcc::HEADER, &header)], heartbeat()).await?;
        ensure!(answer.status() == 403, "{answer:?}");
    }
    ensure!(world.metric("refused_requests_total{reason=\"xfcc_several_elements\"}").await? == 4);
    ensure!(world.metric("refused_requests_total{reason=\"xfcc_malformed\"}").await? == 2);
    Ok(())
}

#[tokio::test]
async fn an_agent_speaks_v2_to_a_v2_listener() -> Result<()> {
    let (env, cluster) = (env::shared().await?, &spare::shared().await?.runtime3);
    let world = World::start("kcp-routes-v2", &[]).await?;
    let member = Member { cluster, kyma: RUNTIME.0, id: RUNTIME.1 };
    fleet::apply_yaml(&cluster.client()?, ROLE).await?;
    let watches = json!([{"name": "configmaps", "version": "v1", "resource": "configmaps", "field": "spec",
                          "namespace": "default", "labels": {"routes-v2": "yes"}}]);
    let receiver = &world.receiver;
    let settings = Settings {
        protocol: "v2",
        receiver: &receiver.url,
        api: cluster.url(),
        watches,
        follows_engine: false,
    };
    let agent = settings.start(&env.harness, receiver, &member).await?;
    agent.connected().await?;
    let config_maps: Api<ConfigMap> = Api::namespaced(cluster.client()?, "default");
    for (round, content) in ["one", "two", "three"].into_iter().enumerate() {
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"content": content},
                          "metadata": {"name": "routes-v2", "labels": {"routes-v2": "yes"}}});
        let params = PatchParams::apply("tidewatch-tests");
        config_maps.patch("routes-v2", &params, &Patch::Apply(body)).await?;
        wait::until("the change to be told in v2 and let go", SOON, || async {
            let series = "events_total{change=\"unknown\",contract=\"v2\",fate=\"unowned\"}";
            let told = world.metric(series).await?;
            let status = agent.status().await?;
            Ok((told == round as u64 + 1 && status["dirtyKeys"] == 0).then_some(()))
        })
        .await?;
    }
    ensure!(world.metric("requests_total{code=\"200\",endpoint=\"v3\"}").await? == 0, "it speaks v2 only");
    ensure!(metric(&agent.admin, "tidewatch_agent_connections_total").await? == 1, "one connection is kept");
    config_maps.delete("routes-v2", &DeleteParams::default()).await?;
    Ok(())
}

const ROLE: &str = r"
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: routes-v2, namespace: default}
rules:
  - {apiGroups: [''], resources: [configmaps], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: routes-v2, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: routes-v2}
subjects:
  - {apiGroup: rbac.authorization.k8s.io, kind: User, name: 'system:serviceaccount:kyma-system:tidewatch-agent'}
";
