//! Faults seen by clients.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::{StreamExt, TryStreamExt};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{ListParams, PostParams, WatchEvent, WatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;
use tidewatch_drain::Drain;
use tidewatch_fake_apiserver::{
    Fault, Hosted, Options, Refusal, Server, ServerOptions, Token, User,
    registry::{Registry, Trouble},
    script::{Rule, Script, free_namespace, stick_namespace},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout},
};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Limit for immediate results.
const SOON: Duration = Duration::from_secs(20);
/// Nothing may arrive within this time.
const WHILE: Duration = Duration::from_millis(300);

struct World {
    script: Arc<Script>,
    server: Server,
    one: Arc<Hosted>,
    maps: Api<ConfigMap>,
    client: Client,
    _drain: Drain,
}

impl World {
    async fn start() -> Result<Self> {
        let (drain, script) = (Drain::new(), Arc::new(Script::new(7)));
        let faults = Arc::clone(&script) as _;
        let server = Server::start(ServerOptions { faults, ..ServerOptions::default() }, &drain).await?;
        let one = server.add("one", Options::default())?;
        one.allow_token(Token("good".into()), User::admin("admin"));
        let config = Kubeconfig::from_yaml(&server.kubeconfig("one", "good"))?;
        let mut config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
        (config.default_retry, config.proxy_url) = (false, None);
        let client = Client::try_from(config)?;
        let maps = Api::namespaced(client.clone(), "default");
        Ok(Self { script, server, one, maps, client, _drain: drain })
    }

    async fn refused(&self) -> Result<u16> {
        match timeout(SOON, self.maps.list(&ListParams::default())).await? {
            Err(kube::Error::Api(status)) => Ok(status.code),
            other => Err(format!("{other:?}").into()),
        }
    }

    async fn works(&self) -> Result {
        timeout(SOON, self.maps.list(&ListParams::default())).await??;
        Ok(())
    }

    async fn watch(&self) -> Result<impl StreamExt<Item = kube::Result<WatchEvent<ConfigMap>>> + Unpin> {
        let revision = self.one.with(|cluster| cluster.revision()).to_string();
        Ok(self.maps.watch(&WatchParams::default(), &revision).await?.boxed())
    }

    async fn create(&self, name: &str) -> Result {
        let map =
            ConfigMap { metadata: serde_json::from_value(json!({"name": name}))?, ..ConfigMap::default() };
        self.maps.create(&PostParams::default(), &map).await?;
        Ok(())
    }
}

#[tokio::test]
async fn responses_are_delayed_by_latency() -> Result {
    let world = World::start().await?;
    world.works().await?;
    let id = world.script.add(Rule::always(Fault::Latency(WHILE)));
    let started = Instant::now();
    world.works().await?;
    assert!(started.elapsed() >= WHILE);
    world.script.remove(id);
    let started = Instant::now();
    world.works().await?;
    assert!(started.elapsed() < WHILE);
    Ok(())
}

#[tokio::test]
async fn too_many_requests_with_retry_after() -> Result {
    let world = World::start().await?;
    world.script.add(Rule::always(Fault::Refuse(Refusal::too_many_requests(17))));
    let request = http::Request::get("/api/v1/namespaces").body(kube::client::Body::empty())?;
    let answer = world.client.send(request).await?;
    assert_eq!(answer.status(), 429);
    assert_eq!(answer.headers()["retry-after"], "17");
    Ok(())
}

#[tokio::test]
async fn server_errors_are_injected() -> Result {
    let world = World::start().await?;
    world.script.add(Rule::always(Fault::Refuse(Refusal::failing(503))));
    assert_eq!(world.refused().await?, 503);
    Ok(())
}

#[tokio::test]
async fn a_hanging_request_is_done_and_never_answered() -> Result {
    let world = World::start().await?;
    let id = world.script.add(Rule::always(Fault::Hang));
    timeout(WHILE, world.create("late")).await.unwrap_err();
    world.script.remove(id);
    assert!(world.maps.get_opt("late").await?.is_some());
    Ok(())
}

#[tokio::test]
async fn a_lost_request_is_not_done() -> Result {
    let world = World::start().await?;
    let id = world.script.add(Rule::always(Fault::Lost));
    timeout(WHILE, world.create("lost")).await.unwrap_err();
    world.script.remove(id);
    assert!(world.maps.get_opt("lost").await?.is_none());
    Ok(())
}

#[tokio::test]
async fn a_half_open_watch_stays_silent_and_open() -> Result {
    let world = World::start().await?;
    world
        .script
        .add(Rule { verbs: vec!["watch".into()], ..Rule::always(Fault::Silent(Duration::from_millis(1))) });
    let mut events = world.watch().await?;
    timeout(WHILE, events.next()).await.unwrap_err();
    world.create("unseen").await?;
    timeout(WHILE, events.next()).await.unwrap_err();
    Ok(())
}

#[tokio::test]
async fn a_watch_breaks_off_in_the_middle() -> Result {
    let world = World::start().await?;
    world.script.add(Rule { verbs: vec!["watch".into()], ..Rule::always(Fault::BreakOff(WHILE)) });
    let mut events = world.watch().await?;
    world.create("seen").await?;
    assert!(matches!(timeout(SOON, events.next()).await?, Some(Ok(WatchEvent::Added(_)))));
    assert!(timeout(SOON, events.next()).await?.is_none(), "and then it ends");
    Ok(())
}

#[tokio::test]
async fn a_dropped_request_has_no_answer() -> Result {
    let world = World::start().await?;
    world.script.add(Rule::always(Fault::Drop));
    let dropped = timeout(SOON, world.maps.list(&ListParams::default())).await?.unwrap_err();
    assert!(!matches!(dropped, kube::Error::Api(_)), "{dropped}");
    Ok(())
}

#[tokio::test]
async fn a_watch_expires_with_410() -> Result {
    let world = World::start().await?;
    world
        .script
        .add(Rule { verbs: vec!["watch".into()], ..Rule::always(Fault::Expire(Duration::from_millis(1))) });
    let mut events = world.watch().await?;
    let event = timeout(SOON, events.try_next()).await??;
    assert!(matches!(event, Some(WatchEvent::Error(status)) if status.code == 410));
    Ok(())
}

#[tokio::test]
async fn credentials_expire_for_one_user() -> Result {
    let world = World::start().await?;
    let rule = |user: &str| Rule { users: vec![user.to_owned()], ..Rule::always(Fault::Unauthorized) };
    world.script.add(rule("somebody else"));
    world.works().await?;
    world.script.add(rule("admin"));
    assert_eq!(world.refused().await?, 401);
    Ok(())
}

#[tokio::test]
async fn a_namespace_stays_terminating_until_freed() -> Result {
    let world = World::start().await?;
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    let space: Namespace = serde_json::from_value(json!({"metadata": {"name": "stuck"}}))?;
    namespaces.create(&PostParams::default(), &space).await?;
    let now = Timestamp::now();
    stick_namespace(&world.one, "stuck", now).map_err(|refusal| refusal.message)?;
    let phase = namespaces.get("stuck").await?.status.and_then(|status| status.phase);
    assert_eq!(phase.as_deref(), Some("Terminating"));
    let inside: Api<ConfigMap> = Api::namespaced(world.client.clone(), "stuck");
    let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "new"}}))?;
    let refused = inside.create(&PostParams::default(), &map).await.unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 403));
    free_namespace(&world.one, "stuck", now).map_err(|refusal| refusal.message)?;
    assert!(namespaces.get_opt("stuck").await?.is_none());
    Ok(())
}

#[tokio::test]
async fn scheduled_work_is_done_despite_a_wrong_clock() -> Result {
    let world = World::start().await?;
    for hours in [5, -5] {
        world.one.set_skew(SignedDuration::from_hours(hours));
        let name = format!("skewed{hours}");
        world.create(&name).await?;
        let created = world.maps.get(&name).await?.creation_timestamp().ok_or("no time")?.0;
        let ahead = created.duration_since(Timestamp::now()).as_secs();
        assert!((ahead - hours * 3600).abs() < 60, "{ahead}");
    }
    let later = Options { ready_after: Some(SignedDuration::from_millis(200)), ..Options::default() };
    for (name, hours) in [("fast", 5), ("slow", -5)] {
        let hosted = world.server.add(name, later.clone())?;
        hosted.set_skew(SignedDuration::from_hours(hours));
        hosted.allow_token(Token("good".into()), User::admin("admin"));
        let config = Kubeconfig::from_yaml(&world.server.kubeconfig(name, "good"))?;
        let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
        let api: Api<k8s_openapi::api::apps::v1::Deployment> =
            Api::namespaced(Client::try_from(config)?, "default");
        let pods = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let body = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": pods}});
        api.create(&PostParams::default(), &serde_json::from_value(body)?).await?;
        // Due work ignores later clock changes.
        hosted.set_skew(SignedDuration::ZERO);
        let ready = kube::runtime::wait::await_condition(
            api,
            "d",
            |d: Option<&k8s_openapi::api::apps::v1::Deployment>| {
                d.and_then(|d| d.status.as_ref()?.ready_replicas) == Some(1)
            },
        );
        timeout(SOON, ready).await??;
    }
    Ok(())
}

#[tokio::test]
async fn a_registry_is_slow_or_refuses() -> Result {
    let drain = Drain::new();
    let registry = Registry::start(&drain).await?;
    let ask = async || -> Result<(String, Duration)> {
        let started = Instant::now();
        let mut stream = TcpStream::connect(registry.host()).await?;
        stream.write_all(b"GET /v2/ HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        timeout(SOON, stream.read_to_string(&mut answer)).await??;
        Ok((answer.lines().next().unwrap_or_default().to_owned(), started.elapsed()))
    };
    assert!(ask().await?.0.contains(" 200 "));
    registry.set_trouble(Trouble { latency: WHILE, ..Trouble::default() });
    let (answer, took) = ask().await?;
    assert!(answer.contains(" 200 ") && took >= WHILE, "{answer} {took:?}");
    registry.set_trouble(Trouble { refuse: Some(503), ..Trouble::default() });
    assert!(ask().await?.0.contains(" 503 "));
    Ok(())
}

#[tokio::test]
async fn a_partition_silences_open_and_new_connections() -> Result {
    let world = World::start().await?;
    let clusters = Some(Arc::new(BTreeSet::from(["one".to_owned()])));
    let id = world.script.add(Rule { clusters, ..Rule::always(Fault::Lost) });
    timeout(WHILE, world.works()).await.unwrap_err();
    world.script.remove(id);
    world.works().await
}

#[tokio::test]
async fn a_restart_ends_connections_and_keeps_objects() -> Result {
    let world = World::start().await?;
    world.create("kept").await?;
    let mut events = world.watch().await?;
    let id = world.script.add(Rule::always(Fault::Drop));
    world.one.interrupt();
    assert!(!matches!(timeout(SOON, events.next()).await?, Some(Ok(_))));
    assert!(world.works().await.is_err());
    world.script.remove(id);
    assert!(world.maps.get_opt("kept").await?.is_some());
    Ok(())
}

#[tokio::test]
async fn a_removed_cluster_ends_its_watches() -> Result {
    let world = World::start().await?;
    let mut events = world.watch().await?;
    assert!(world.server.remove("one") && !world.server.remove("one"));
    assert!(!matches!(timeout(SOON, events.next()).await?, Some(Ok(_))));
    assert_eq!(world.refused().await?, 404);
    Ok(())
}
